"""Documents, queries and ETags through the official client: on `evenflow container serve` in another process, and the
same on a server that nobody here wrote, so that what is tested is Cosmos DB and not ourselves."""

from __future__ import annotations

import asyncio
import warnings
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncClient
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

from tests.servers.cosmos import CosmosServer, connected, shared_local, shared_vercel_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

_names = count(1)


@pytest.fixture(params=["evenflow", "vercel"])
def server(request: pytest.FixtureRequest) -> CosmosServer:
    return shared_local() if request.param == "evenflow" else shared_vercel_or_skip()


@pytest.fixture
def database(server: CosmosServer) -> Iterator[Any]:
    with connected(server) as client:
        yield client.create_database(f"shop{next(_names)}")


@pytest.fixture
def orders(database: Any) -> Any:
    return database.create_container("orders", PartitionKey("/customer"))


def found(
    container: Any, query: str, *, key: str | None = None, page: int | None = None, **parameters: Any
) -> list[Any]:
    """With a key, the query has to say the same: the other server does not look at the header."""
    place = {} if key is None else {"partition_key": key}
    named = [{"name": f"@{name}", "value": value} for name, value in parameters.items()]
    return list(
        container.query_items(query, parameters=named, max_item_count=page, enable_cross_partition_query=True, **place)
    )


def absent(server: CosmosServer) -> type[CosmosHttpResponseError]:
    """What is raised for a document that is not there. The other server stumbles over it, and answers 400."""
    return CosmosResourceNotFoundError if server is shared_local() else CosmosHttpResponseError


def unless_changed(document: dict[str, Any]) -> dict[str, Any]:
    return {"etag": document["_etag"], "match_condition": MatchConditions.IfNotModified}


def test_databases_and_containers(server: CosmosServer, database: Any) -> None:
    with connected(server) as client:
        assert database.id in [one["id"] for one in client.list_databases()]
        with pytest.raises(CosmosResourceExistsError):
            client.create_database(database.id)
        with pytest.raises(CosmosResourceNotFoundError):
            client.get_database_client("nobody").read()
    made = database.create_container("a", PartitionKey("/k")).read()
    assert (made["id"], made["partitionKey"]["paths"]) == ("a", ["/k"])
    with pytest.raises(CosmosResourceExistsError):
        database.create_container("a", PartitionKey("/k"))
    database.create_container("b", PartitionKey("/k"))
    assert sorted(one["id"] for one in database.list_containers()) == ["a", "b"]
    database.delete_container("a")
    with pytest.raises(CosmosResourceNotFoundError):
        database.get_container_client("a").read()
    assert [one["id"] for one in database.list_containers()] == ["b"]


def test_a_document_is_created_read_replaced_and_deleted(server: CosmosServer, orders: Any) -> None:
    made = orders.create_item({"id": "o-1", "customer": "ann", "total": 1, "lines": [{"n": 1}]})
    assert {"_rid", "_self", "_etag", "_ts"} <= made.keys()
    assert orders.read_item("o-1", "ann") == made
    with pytest.raises(CosmosResourceExistsError):
        orders.create_item({"id": "o-1", "customer": "ann"})
    other = orders.create_item({"id": "o-1", "customer": "bob"})
    assert other["_rid"] != made["_rid"]
    replaced = orders.replace_item("o-1", {"id": "o-1", "customer": "ann", "total": 2})
    assert (replaced["total"], "lines" in replaced, replaced["_rid"]) == (2, False, made["_rid"])
    assert orders.upsert_item({"id": "o-1", "customer": "ann", "total": 3})["total"] == 3
    assert orders.upsert_item({"id": "o-2", "customer": "ann"})["id"] == "o-2"
    orders.delete_item("o-1", "ann")
    for use in (orders.read_item, orders.delete_item):
        with pytest.raises(absent(server)):
            use("o-1", "ann")
    with pytest.raises(absent(server)):
        orders.replace_item("o-1", {"id": "o-1", "customer": "ann"})
    assert orders.read_item("o-1", "bob")["customer"] == "bob"
    # A document stands for its id, too.
    assert orders.replace_item(other, {**other, "total": 2})["total"] == 2
    assert orders.read_item(other, "bob")["total"] == 2
    orders.delete_item(other, "bob")
    with pytest.raises(absent(server)):
        orders.read_item(other, "bob")


def test_ids_with_all_kinds_of_characters(orders: Any) -> None:
    for id in ("with space", "ümläut", "a+b=c&d", "100%", "dots.in.it", "'quoted'", "(x)"):
        orders.create_item({"id": id, "customer": id})
        assert orders.read_item(id, id)["id"] == id
        assert [one["id"] for one in found(orders, "SELECT * FROM c WHERE c.id = @id", id=id)] == [id]
        orders.delete_item(id, id)


def test_an_etag_decides_who_was_first(orders: Any) -> None:
    made = orders.create_item({"id": "o-1", "customer": "ann"})
    newer = orders.replace_item("o-1", {**made, "total": 1}, **unless_changed(made))
    assert newer["_etag"] != made["_etag"]
    with pytest.raises(CosmosAccessConditionFailedError):
        orders.replace_item("o-1", {**made, "total": 2}, **unless_changed(made))
    with pytest.raises(CosmosAccessConditionFailedError):
        orders.delete_item("o-1", "ann", **unless_changed(made))
    assert orders.read_item("o-1", "ann")["total"] == 1
    orders.delete_item("o-1", "ann", **unless_changed(newer))


def test_queries(orders: Any) -> None:
    for number in range(20):
        orders.create_item({"id": f"o-{number:02}", "customer": f"c-{number % 4}", "total": number, "paid": number > 9})
    assert found(orders, "SELECT VALUE COUNT(1) FROM c") == [20]
    assert found(orders, "SELECT VALUE COUNT(1) FROM c WHERE c.customer = 'c-1'", key="c-1") == [5]
    assert len(found(orders, "SELECT * FROM c", page=3)) == 20
    assert len(list(orders.read_all_items(max_item_count=5))) == 20
    assert [one["id"] for one in found(orders, "SELECT * FROM c WHERE c.id = @id", id="o-07")] == ["o-07"]
    few = "c.customer = 'c-1' AND c.total >= @least AND c.total < 12"
    query = f"SELECT c.id, c.total FROM c WHERE {few} ORDER BY c.total DESC"
    assert found(orders, query, key="c-1", least=2) == [{"id": "o-09", "total": 9}, {"id": "o-05", "total": 5}]
    paid = (
        "SELECT VALUE c.id FROM c WHERE c.paid = true AND (STARTSWITH(c.id, 'o-1') AND NOT (c.id IN ('o-11', 'o-12')))"
    )
    assert sorted(found(orders, paid)) == ["o-10", *(f"o-{number}" for number in range(13, 20))]
    assert found(orders, "SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.nothing)") == []
    assert len(found(orders, "SELECT * FROM c WHERE c.total != 3 OR c.id = 'o-03'")) == 20
    assert found(orders, "SELECT VALUE c.total FROM c WHERE c.customer = 'c-0' ORDER BY c.total", key="c-0") == [
        *range(0, 20, 4)
    ]
    with pytest.raises(CosmosHttpResponseError) as refused:
        found(orders, "SELECT * FROM c WHERE")
    assert refused.value.status_code == 400


def test_values_of_all_kinds_compare_as_they_should(orders: Any) -> None:
    values: list[Any] = [None, True, False, 0, 1, -2.5, "", "1", "true", [1], {"a": 1}]
    for number, value in enumerate(values):
        orders.create_item({"id": str(number), "customer": "x", "v": value})
    orders.create_item({"id": "missing", "customer": "x"})

    def ids(where: str, **parameters: Any) -> list[str]:
        return sorted(found(orders, f"SELECT VALUE c.id FROM c WHERE {where}", **parameters))

    for number, value in enumerate(values):
        assert ids("c.v = @v", v=value) == [str(number)]
        assert len(ids("c.v != @v", v=value)) == len(values) - 1
    assert ids("c.v > 0") == ["4"]
    assert ids("c.v <= 0") == ["3", "5"]
    assert ids("c.v >= ''") == ["6", "7", "8"]
    assert ids("NOT c.v") == ["2"]
    assert ids("c.v") == ["1"]
    assert ids("NOT IS_DEFINED(c.v)") == ["missing"]
    assert ids("c.v = 1 OR c.nothing = 1") == ["4"]
    assert ids("IS_NULL(c.v) OR IS_ARRAY(c.v)") == ["0", "9"]


def test_the_asynchronous_client_does_the_same(server: CosmosServer) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, server.key, **server.options) as client:
            database = await client.create_database(f"shop{next(_names)}")
            orders = await database.create_container("orders", PartitionKey("/customer"))
            made = await orders.create_item({"id": "o-1", "customer": "ann"})
            with pytest.raises(CosmosResourceExistsError):
                await orders.create_item({"id": "o-1", "customer": "ann"})
            newer = await orders.replace_item("o-1", {**made, "total": 1}, **unless_changed(made))
            with pytest.raises(CosmosAccessConditionFailedError):
                await orders.replace_item("o-1", {**made, "total": 2}, **unless_changed(made))
            assert await orders.read_item("o-1", "ann") == newer
            await asyncio.gather(
                *(orders.upsert_item({"id": f"p-{n}", "customer": f"c-{n}", "n": n}) for n in range(20))
            )
            listed: list[Any] = [one async for one in orders.query_items("SELECT VALUE c.n FROM c WHERE c.n >= 5")]
            assert sorted(listed) == list(range(5, 20))
            await orders.delete_item("o-1", "ann")
            with pytest.raises(absent(server)):
                await orders.read_item("o-1", "ann")
            await client.delete_database(database.id)

    with warnings.catch_warnings():
        # aiohttp closes connections with TLS a little later than the loop.
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(main())
