"""The change feed through the official client, on `evenflow container serve` in another process: both modes, parts of
ranges, continuations, splits and merges while a reader reads, and what else clients rely on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncClient
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceNotFoundError

from evenflow.embedded.container import Container
from tests.integration.programs import wait_for
from tests.servers.cosmos import CosmosServer, connected, shared_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

_names = count(1)


class Orders:
    """A container with four ranges: as a client has it, and as it is in its folder."""

    def __init__(self, server: CosmosServer, client: Any) -> None:
        self.database = client.create_database(f"feed{next(_names)}")
        self.items = self.database.create_container("orders", PartitionKey("/k"))
        self.folder = server.folder / self.database.id / "orders"

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.items.upsert_item({"id": f"i{number}", "k": f"k{number % 11}", "n": number})

    def changes(self, **place: Any) -> tuple[list[Any], str]:
        """All there are now, and the continuation."""
        found = list(self.items.query_items_change_feed(**place))
        return found, self.items.client_connection.last_response_headers["etag"]


@pytest.fixture
def server() -> CosmosServer:
    return shared_local()


@pytest.fixture
def orders(server: CosmosServer) -> Iterator[Orders]:
    with connected(server) as client:
        yield Orders(server, client)


def numbers(found: list[Any]) -> list[int]:
    return sorted(one["n"] for one in found)


def test_each_range_is_read_once_and_in_order(orders: Orders) -> None:
    orders.write(*range(40), *range(20))
    everything = []
    for feed_range in orders.items.read_feed_ranges():
        found, _ = orders.changes(feed_range=feed_range, start_time="Beginning", max_item_count=3)
        assert [one["_lsn"] for one in found] == sorted({one["_lsn"] for one in found})
        everything += found
    assert numbers(everything) == list(range(40))
    with Container(orders.folder) as inside:
        assert sum(one.lsn for one in inside.ranges()) == 60
    assert numbers(orders.changes(start_time="Beginning", max_item_count=7)[0]) == list(range(40))


def test_a_reader_goes_on_where_it_was(orders: Orders) -> None:
    orders.write(*range(20))
    continuations = [
        orders.changes(feed_range=one, start_time="Beginning")[1] for one in orders.items.read_feed_ranges()
    ]
    for continuation in continuations:
        assert orders.changes(continuation=continuation)[0] == []
    orders.write(3, 30, 31)
    news = [orders.changes(continuation=one)[0] for one in continuations]
    assert numbers([item for part in news for item in part]) == [3, 30, 31]


def test_from_now_on_and_from_a_time(orders: Orders) -> None:
    orders.write(*range(5))
    ranges = list(orders.items.read_feed_ranges())
    now = [orders.changes(feed_range=one, start_time="Now") for one in ranges]
    assert [found for found, _ in now] == [[]] * len(ranges)
    orders.write(7, 8)
    assert numbers([item for _, one in now for item in orders.changes(continuation=one)[0]]) == [7, 8]
    an_hour = timedelta(hours=1)
    assert numbers(orders.changes(start_time=datetime.now(UTC) - an_hour)[0]) == [0, 1, 2, 3, 4, 7, 8]
    assert orders.changes(start_time=datetime.now(UTC) + an_hour)[0] == []


def test_one_partition_key_and_parts_of_a_range(orders: Orders) -> None:
    orders.write(*range(44))
    assert numbers(orders.changes(partition_key="k3", start_time="Beginning")[0]) == [3, 14, 25, 36]
    whole = orders.items.feed_range_from_partition_key("k3")
    assert numbers(orders.changes(feed_range=whole, start_time="Beginning")[0]) == [3, 14, 25, 36]
    with Container(orders.folder) as inside:
        # Two halves of a range that is there as one: the reader asks for parts of it.
        parts = []
        for one in inside.ranges():
            cut = f"{int(one.min[:2] or '0', 16) + 8:02X}"
            parts += [_epk_range(one.min, cut), _epk_range(cut, one.max)]
    found = [orders.changes(feed_range=part, start_time="Beginning", max_item_count=2)[0] for part in parts]
    assert numbers([item for part in found for item in part]) == list(range(44))
    assert len([part for part in found if part]) > 4


def _epk_range(low: str, high: str) -> dict[str, Any]:
    return {"Range": {"min": low, "max": high, "isMinInclusive": True, "isMaxInclusive": False}}


def test_all_versions_and_deletes(orders: Orders) -> None:
    mode = {"mode": "AllVersionsAndDeletes"}
    ranges = list(orders.items.read_feed_ranges())
    continuations = [orders.changes(feed_range=one, **mode)[1] for one in ranges]
    made = orders.items.create_item({"id": "a", "k": "x", "n": 1})
    orders.items.replace_item("a", {"id": "a", "k": "x", "n": 2})
    orders.items.delete_item("a", "x")
    found = [item for one in continuations for item in orders.changes(continuation=one)[0]]
    assert [one["metadata"]["operationType"] for one in found] == ["create", "replace", "delete"]
    lsns = [one["metadata"]["lsn"] for one in found]
    assert lsns == [1, 2, 3]
    assert [one["metadata"].get("previousImageLSN") for one in found] == [None, 1, 2]
    assert found[0]["current"] == made
    assert "previous" not in found[0]
    assert (found[1]["current"]["n"], found[1]["previous"]["n"]) == (2, 1)
    assert (found[2]["current"], found[2]["previous"]["n"]) == ({}, 2)
    assert (found[2]["metadata"]["id"], found[2]["metadata"]["partitionKey"]) == ("a", {"k": "x"})


def test_a_reader_gets_over_splits_and_merges(orders: Orders) -> None:
    orders.write(*range(30))
    ranges = list(orders.items.read_feed_ranges())
    read = [orders.changes(feed_range=one, start_time="Beginning") for one in ranges]
    seen = [item["n"] for found, _ in read for item in found]
    with Container(orders.folder) as inside:
        _, second = inside.split("0")
        inside.split(second.id)
    orders.write(*range(30, 50))
    again = [orders.changes(continuation=continuation) for _, continuation in read]
    seen += [item["n"] for found, _ in again for item in found]
    assert sorted(seen) == list(range(50))
    with Container(orders.folder) as inside:
        inside.merge("1", "2")
        low, high = (one.id for one in inside.ranges()[:2])
        inside.merge(low, high)
    orders.write(*range(50, 70))
    # One lease may span several ranges now, which azure-cosmos cannot go on with: read_feed_ranges names what is there.
    fresh = [
        orders.changes(feed_range=one, start_time="Beginning")[0]
        for one in orders.items.read_feed_ranges(force_refresh=True)
    ]
    assert numbers([item for part in fresh for item in part]) == list(range(70))


def test_a_reader_goes_on_in_a_merged_range_by_its_own_part(orders: Orders) -> None:
    orders.write(*range(30))
    ranges = list(orders.items.read_feed_ranges())
    read = [orders.changes(feed_range=one, start_time="Beginning") for one in ranges]
    with Container(orders.folder) as inside:
        inside.merge("0", "1")
    orders.write(*range(30, 60))
    news = [orders.changes(continuation=continuation)[0] for _, continuation in read]
    assert numbers([item for part in news for item in part]) == list(range(30, 60))


def test_queries_and_documents_get_over_a_split_as_well(orders: Orders) -> None:
    orders.write(*range(20))
    ranges = list(orders.items.read_feed_ranges())
    with Container(orders.folder) as inside:
        for one in inside.ranges():
            inside.split(one.id)
    query = "SELECT VALUE c.n FROM c"
    assert sorted(orders.items.query_items(query, enable_cross_partition_query=True)) == list(range(20))
    found = [list(orders.items.query_items(query, feed_range=one)) for one in ranges]
    assert sorted(n for part in found for n in part) == list(range(20))
    assert orders.items.read_item("i3", "k3")["n"] == 3
    many = orders.items.read_items([(f"i{n}", f"k{n % 11}") for n in range(15)])
    assert numbers(many) == list(range(15))


def test_the_asynchronous_client_gets_over_a_split(server: CosmosServer) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, server.key) as client:
            database = await client.create_database(f"feed{next(_names)}")
            items = await database.create_container("orders", PartitionKey("/k"))
            for number in range(20):
                await items.upsert_item({"id": str(number), "k": number, "n": number})
            ranges = [one async for one in items.read_feed_ranges()]
            seen, continuations = [], []
            for one in ranges:
                seen += [
                    item["n"] async for item in items.query_items_change_feed(feed_range=one, start_time="Beginning")
                ]
                continuations.append(items.client_connection.last_response_headers["etag"])
            assert sorted(seen) == list(range(20))
            with Container(server.folder / database.id / "orders") as inside:
                await asyncio.to_thread(inside.split, "1")
            for number in range(20, 40):
                await items.upsert_item({"id": str(number), "k": number, "n": number})
            seen = []
            for one in continuations:
                seen += [item["n"] async for item in items.query_items_change_feed(continuation=one)]
            assert sorted(seen) == list(range(20, 40))
            mode: Any = {"mode": "AllVersionsAndDeletes", "start_time": "Now"}
            assert [item async for item in items.query_items_change_feed(**mode)] == []

    asyncio.run(main())


def test_a_container_that_was_made_again_is_noticed(orders: Orders) -> None:
    orders.write(1)
    (feed_range, *_) = orders.items.read_feed_ranges()
    _, continuation = orders.changes(feed_range=feed_range, start_time="Beginning")
    orders.database.delete_container("orders")
    with pytest.raises(CosmosResourceNotFoundError):
        orders.items.read_item("i1", "k1")
    orders.database.create_container("orders", PartitionKey("/k"))
    orders.write(2)
    assert orders.items.read_item("i2", "k2")["n"] == 2
    with pytest.raises(ValueError, match="rid"):
        orders.changes(continuation=continuation)


def test_a_read_brings_nothing_when_nothing_has_changed(orders: Orders) -> None:
    made = orders.items.create_item({"id": "a", "k": "x"})
    unchanged = {"etag": made["_etag"], "match_condition": MatchConditions.IfModified}
    assert not orders.items.read_item("a", "x", **unchanged)
    orders.items.upsert_item({"id": "a", "k": "x", "n": 1})
    assert orders.items.read_item("a", "x", **unchanged)["n"] == 1


def test_answers_say_what_they_cost_and_where_they_are(orders: Orders) -> None:
    headers = orders.items.client_connection
    orders.items.create_item({"id": "a", "k": "x"})
    assert float(headers.last_response_headers["x-ms-request-charge"]) == 5.0
    orders.items.create_item({"id": "b", "k": "x", "v": "x" * 10_000})
    assert float(headers.last_response_headers["x-ms-request-charge"]) > 10
    orders.items.read_item("a", "x")
    assert float(headers.last_response_headers["x-ms-request-charge"]) == 1.0
    range_id, _, lsn = headers.last_response_headers["x-ms-session-token"].partition(":-1#")
    assert (range_id in "0123", int(lsn) >= 1) == (True, True)
    assert len(headers.last_response_headers["x-ms-activity-id"]) == 36
    minimal = orders.items.upsert_item({"id": "a", "k": "x"}, no_response=True)
    assert not minimal
    with pytest.raises(CosmosHttpResponseError) as refused:
        list(orders.items.query_items("SELECT * FROM c"))
    assert refused.value.status_code == 400


UNSUPPORTED: dict[str, Callable[[Any], object]] = {
    "a patch": lambda items: items.patch_item("a", "x", [{"op": "add", "path": "/n", "value": 1}]),
    "a batch": lambda items: items.execute_item_batch([("create", ({"id": "q", "k": "x"},))], "x"),
    "a stored procedure": lambda items: items.scripts.create_stored_procedure({"id": "p", "body": "function () {}"}),
    "the throughput": lambda items: items.get_throughput(),
    "the deletion of a partition key": lambda items: items.delete_all_items_by_partition_key("x"),
    "a trigger before": lambda items: items.create_item({"id": "q", "k": "x"}, pre_trigger_include="stamp"),
    "a trigger after": lambda items: items.upsert_item({"id": "q", "k": "x"}, post_trigger_include="stamp"),
    "DISTINCT": lambda items: everything(items, "SELECT DISTINCT c.n FROM c"),
    "JOIN": lambda items: everything(items, "SELECT VALUE t FROM c JOIN t IN c.l"),
    "SUM": lambda items: everything(items, "SELECT VALUE SUM(c.n) FROM c"),
}


def everything(items: Any, query: str) -> list[Any]:
    return list(items.query_items(query, enable_cross_partition_query=True))


def test_what_is_not_supported_is_answered_with_501_and_a_sentence(orders: Orders) -> None:
    orders.write(1)
    for what, use in UNSUPPORTED.items():
        with pytest.raises(CosmosHttpResponseError) as refused:
            use(orders.items)
        assert (refused.value.status_code, "does not support" in str(refused.value)) == (501, True), what


def test_times_to_live(orders: Orders) -> None:
    items = orders.database.create_container("short", PartitionKey("/k"), default_ttl=3600)
    items.create_item({"id": "a", "k": "x", "ttl": 1})
    items.create_item({"id": "b", "k": "x"})
    assert items.read()["defaultTtl"] == 3600
    wait_for(lambda: list(items.query_items("SELECT VALUE c.id FROM c", partition_key="x")) == ["b"], "the end of a")
