"""The change feed processor on feeds that are kept by a server: the same handlers, the same documents."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from azure.cosmos import CosmosClient as PlainClient
from azure.cosmos.aio import CosmosClient
from prometheus_client.parser import text_string_to_metric_families

from evenflow import Manual
from evenflow.changefeed import ChangeContext, ChangeFeedProcessor
from evenflow.embedded.container.clock import wall_us
from evenflow.errors import HubReplaced, Misconfigured, PartitionHalted
from evenflow.model import MICROSECONDS
from evenflow.signals import Paused, Spent, Trouble
from evenflow.stores.memory import MemoryStore
from evenflow.testing.cosmos import Cosmos, cosmos
from tests.integration.cosmos_scene import Orders, ordering, served, until
from tests.integration.programs import answer
from tests.integration.table_scene import TableScene, staged
from tests.servers.cosmos import shared_plain_vercel_or_skip
from tests.servers.cosmos_leases import documents, make_container, store_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.changefeed import LeaseEstimate

PATIENCE_S = 60.0


class Changes(list[Any]):
    async def __call__(self, changes: list[Any], context: ChangeContext) -> None:
        self.extend(changes)


def processor(scene: TableScene, handler: Any, store: MemoryStore, mode: Any = "latest") -> ChangeFeedProcessor:
    made = ChangeFeedProcessor(scene.url("all").replace("&mode=all", ""), store, "mails", start="beginning", mode=mode)
    made.on_changes(handler)
    return made


def total(found: list[LeaseEstimate]) -> int:
    return sum(one.remaining or 0 for one in found)


@staged
async def test_rows_of_a_watched_table_are_documents(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(2, all_versions=True)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 1 FROM generate_series(1, 10) g".encode())
    await hand.execute(f"UPDATE {scene.table} SET version = 2 WHERE id = 3".encode())
    store, seen = MemoryStore(), Changes()
    mails = processor(scene, seen, store)
    before = await mails.estimate()
    assert total(before) == 11
    assert all(one.since is not None for one in before)
    async with asyncio.timeout(PATIENCE_S):
        await mails.serve(until="caught_up")
    assert {row["id"]: row["version"] for row in seen} == {number: 1 + (number == 3) for number in range(1, 11)}
    assert total(await mails.estimate()) == 0
    with pytest.raises(Misconfigured, match="reads with mode=latest, and this instance with mode=all"):
        await processor(scene, seen, store, "all").estimate()


@staged
async def test_changes_of_a_table_come_whatever_the_poll_interval(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(2)
    hand, seen = await scene.hand(), Changes()
    with pytest.raises(Misconfigured, match="watched for its latest versions only"):
        await processor(scene, Changes(), MemoryStore(), "all").serve(until="caught_up")
    mails = ChangeFeedProcessor(scene.url(), MemoryStore(), "mails", start="beginning", poll_interval_s=3600.0)
    mails.on_changes(seen)
    async with asyncio.timeout(PATIENCE_S), mails:
        await until(lambda: len(mails.owned) == 2)
        await asyncio.sleep(0.5)  # readers sleep by then, or soon
        await hand.execute(f"INSERT INTO {scene.table} SELECT g, 1 FROM generate_series(1, 10) g".encode())
        await until(lambda: len(seen) == 10)


@staged
async def test_all_versions_of_a_watched_table_come_in_the_words_of_cosmos(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(1, all_versions=True)
    hand = await scene.hand()
    for statement in ("INSERT INTO {} VALUES (7, 1)", "UPDATE {} SET version = 2", "DELETE FROM {}"):
        await hand.execute(statement.format(scene.table).encode())
    tokens: list[tuple[str, tuple[str, str] | None]] = []
    seen = Changes()

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        tokens.append((context.lease_token, context.feed_range))
        await seen(changes, context)

    async with asyncio.timeout(PATIENCE_S):
        await processor(scene, handle, MemoryStore(), "all").serve(until="caught_up")
    assert [change["metadata"]["operationType"] for change in seen] == ["create", "replace", "delete"]
    assert (seen[1]["previous"], seen[1]["current"]) == ({"id": 7, "version": 1}, {"id": 7, "version": 2})
    assert set(tokens) == {("0", None)}


# --- Cosmos DB, with the lease container beside the monitored one
@pytest.fixture(scope="module")
def server() -> Iterator[Cosmos]:
    with served() as server:
        yield server


@pytest.fixture
def orders(server: Cosmos) -> Iterator[Orders]:
    with ordering(server, leases=True) as scene:
        yield scene


def on_cosmos(orders: Orders, handler: Any, **options: Any) -> ChangeFeedProcessor:
    given = {"leases": orders.leases, "start": "beginning", "poll_interval_s": 0.1, "refresh_s": 0.2, **options}
    made = ChangeFeedProcessor(orders.url, processor_name="mails", **given)
    made.on_changes(handler)
    return made


async def caught_up(processor: ChangeFeedProcessor) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await processor.serve(until="caught_up")


def test_documents_of_cosmos_are_handled_and_what_that_costs_is_told(orders: Orders) -> None:
    orders.write(*range(20))
    given: list[tuple[str, tuple[str, str] | None, bool]] = []
    sizes: list[int] = []
    seen, told = Changes(), list[Spent]()

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        sizes.append(len(changes))
        given.append((context.lease_token, context.feed_range, bool(context.request_charge)))
        await seen(changes, context)

    async def main() -> None:
        mails = on_cosmos(orders, handle, max_items=7)
        mails.listen(lambda one: told.append(one) if isinstance(one, Spent) else None)
        assert total(await mails.estimate()) == 20
        await caught_up(mails)
        assert total(await mails.estimate()) == 0
        orders.write(*range(20, 25))
        assert total(await mails.estimate()) == 5
        assert {"read feed", "read ranges", "write lease"} <= mails.charges.keys()
        assert mails.charges["read feed"] > 0
        assert [one.units for one in told] == [mails.charges]

    asyncio.run(main())
    assert sorted(change["n"] for change in seen) == list(range(20))
    assert max(sizes) == 7, "no page and no call has more than max_items"
    spans = {one.id: (one.min, one.max) for one in orders.inside.ranges()}
    assert set(given) == {(name, span, True) for name, span in spans.items()}


def test_an_operator_sees_request_units_and_lag_of_hosts_that_run(orders: Orders, tmp_path: Path) -> None:
    """In another process, from the lease container alone."""
    orders.write(*range(20))
    seen, asked = Changes(), ["--group", "mails", "--source", orders.url, "--store", orders.leases]

    async def look(*command: str) -> str:
        return await asyncio.to_thread(answer, *command, *asked, folder=tmp_path)

    async def main() -> tuple[str, str, ChangeFeedProcessor]:
        mails = on_cosmos(orders, seen, instance_name="one", heartbeat_s=0.2, ttl_s=5.0)
        async with asyncio.timeout(PATIENCE_S), mails:
            while "write lease" not in (text := await look("metrics")) or len(seen) < 20:
                pass
            return text, await look("status"), mails

    metrics, status, mails = asyncio.run(main())
    told = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    ]
    units = {labels["operation"]: value for name, labels, value in told if name.endswith("request_units_total")}
    assert {"read feed", "read ranges", "write lease"} <= units.keys()
    assert all(0 <= value <= mails.charges[kind] + 0.01 for kind, value in units.items())
    assert {labels["partition"] for name, labels, _ in told if name == "evenflow_partition_lag_events"} == {"0", "1"}
    (spent,) = (line for line in status.splitlines() if line.startswith("SPENT "))
    assert " request units by 1 member: " in spent
    assert spent.endswith(" old)")


def test_the_lease_container_may_be_in_another_account(orders: Orders) -> None:
    """Here even on a server that nobody here wrote. Two hosts share the ranges, one is split, and nothing is lost."""
    account = shared_plain_vercel_or_skip()
    container = make_container(account)
    seen = {"one": Changes(), "two": Changes()}

    def numbers() -> list[int]:
        return sorted(change["n"] for found in seen.values() for change in found)

    async def main() -> None:
        options = {"leases": store_url(account, container), "heartbeat_s": 0.2, "ttl_s": 5.0}
        hosts = [on_cosmos(orders, handler, instance_name=name, **options) for name, handler in seen.items()]
        async with asyncio.timeout(PATIENCE_S), hosts[0], hosts[1]:
            await until(lambda: [len(host.owned) for host in hosts] == [1, 1])
            orders.write(*range(20))
            orders.inside.split("0")
            orders.write(*range(20, 40))
            await until(lambda: len(numbers()) >= 40 and sum(len(host.owned) for host in hosts) == 3)

    asyncio.run(main())
    assert numbers() == list(range(40))
    tokens = {one["LeaseToken"]: one["Owner"] for one in documents(account, container) if ".." in one["id"]}
    assert tokens == dict.fromkeys("123")


def test_all_hosts_are_paused_and_resumed_through_the_lease_container(orders: Orders, tmp_path: Path) -> None:
    asked = ["--group", "mails", "--source", orders.url, "--store", orders.leases, "--yes"]

    async def steer(verb: str) -> None:
        await asyncio.to_thread(answer, "leases", verb, *asked, folder=tmp_path)

    async def main() -> None:
        seen = {name: Changes() for name in ("one", "two")}
        times = {"heartbeat_s": 0.2, "ttl_s": 5.0}
        one, two = (on_cosmos(orders, handler, instance_name=name, **times) for name, handler in seen.items())
        async with asyncio.timeout(PATIENCE_S), one, two:
            await until(lambda: len(one.owned) == len(two.owned) == 1)
            await steer("pause")
            await until(lambda: not one.owned and not two.owned)
            orders.write(*range(20))
            await steer("resume")
            await until(lambda: len(one.owned) == len(two.owned) == 1)
            await until(lambda: sum(map(len, seen.values())) == 20)

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "mode"), [("async", "latest"), ("plain", "all")])
def test_containers_of_the_official_client_are_monitored_and_hold_leases(orders: Orders, kind: str, mode: Any) -> None:
    orders.write(1, 2, 3)
    seen = Changes()

    async def follow(client: Any) -> None:
        database = client.get_database_client(orders.database)
        container, leases = (database.get_container_client(name) for name in ("orders", "leases"))
        made = ChangeFeedProcessor(container, leases, "mails", start="beginning", mode=mode, poll_interval_s=0.1)
        made.on_changes(seen)
        await caught_up(made)
        assert total(await made.estimate()) == 0, "they are still open"

    async def main() -> None:
        if kind == "plain":
            with PlainClient(orders.server.url, orders.server.key) as client:
                await follow(client)
        else:
            async with CosmosClient(orders.server.url, orders.server.key) as client:
                await follow(client)

    asyncio.run(main())
    assert sorted(change.get("current", change)["n"] for change in seen) == [1, 2, 3]
    assert all(("metadata" in change) == (mode == "all") for change in seen)


def test_two_of_one_name_on_different_containers_do_not_meet_in_their_lease_container(orders: Orders) -> None:
    orders.server.account.create_container(orders.database, {"id": "returns", "partitionKey": {"paths": ["/k"]}})
    orders.server.container(orders.database, "returns").upsert_many([{"id": "r", "k": "r", "n": 100}])
    orders.write(1, 2, 3)
    seen = {name: Changes() for name in ("orders", "returns")}

    async def main() -> None:
        for name, handler in seen.items():
            url = orders.url.removesuffix("orders") + name
            made = ChangeFeedProcessor(url, orders.leases, "mails", start="beginning", poll_interval_s=0.1)
            made.on_changes(handler)
            await caught_up(made)

    asyncio.run(main())
    assert {name: sorted(change["n"] for change in found) for name, found in seen.items()} == {
        "orders": [1, 2, 3],
        "returns": [100],
    }
    leases = orders.server.container(orders.database, "leases").query("SELECT c.id FROM c WHERE CONTAINS(c.id, '..')")
    assert len({lease["id"].partition("..")[0] for lease in leases}) == 2


def test_an_empty_feed_is_asked_again_after_the_poll_interval(orders: Orders) -> None:
    """Units are counted for every question: by default there would be one in five seconds."""

    async def main() -> None:
        mails = on_cosmos(orders, Changes(), poll_interval_s=0.05)
        async with asyncio.timeout(PATIENCE_S), mails:
            await until(lambda: len(mails.owned) == 2)
            before = mails.charges.get("read feed", 0.0)
            await until(lambda: mails.charges.get("read feed", 0.0) >= before + 30)

    asyncio.run(main())


def test_changes_that_are_no_longer_kept_stop_a_scheduled_run() -> None:
    """With the continuation in a lease container."""
    ahead, seen = [0], Changes()

    async def main(orders: Orders) -> None:
        await caught_up(on_cosmos(orders, seen, mode="all"))
        orders.write(*range(10, 20))
        ahead[0] = 8 * 24 * 3600 * MICROSECONDS
        orders.inside.trim()
        ahead[0] = 0
        orders.write(*range(20, 25))
        with pytest.raises(PartitionHalted, match=r"is halted after .* are no longer kept"):
            await caught_up(on_cosmos(orders, seen, mode="all"))
        await caught_up(on_cosmos(orders, seen, mode="all", on_gone="earliest"))

    with cosmos(ranges=2, wall_us=lambda: wall_us() + ahead[0]) as server:
        orders = Orders(server)
        orders.make_leases()
        orders.write(*range(10))
        asyncio.run(main(orders))
    assert sorted(change["current"]["n"] for change in seen) == [*range(10), *range(20, 25)]


def test_a_monitored_container_that_is_made_again_is_another_one(orders: Orders) -> None:
    """Its leases are others, too, as .NET's are: a host that is started anew begins where its start says."""
    seen, troubles, told = Changes(), list[str](), list[str]()

    async def main() -> None:
        mails = on_cosmos(orders, seen)
        mails.listen(lambda one: troubles.append(str(one.error)) if isinstance(one, Trouble) else None)
        mails.on_error(lambda error, lease_token: told.append(str(error)) if lease_token is None else None)
        orders.write(*range(5))
        async with asyncio.timeout(PATIENCE_S):
            serving = asyncio.create_task(mails.serve())
            await until(lambda: len(seen) == 5)
            orders.delete()
            await until(lambda: any("it was deleted. Restore it" in one for one in troubles))
            orders.make()
            orders.write(*range(5, 8))
            with pytest.raises(HubReplaced, match="was deleted and made again"):
                await serving
        await caught_up(on_cosmos(orders, seen))

    asyncio.run(main())
    assert sorted(change["n"] for change in seen) == list(range(8))
    assert ["it was deleted. Restore it" in one for one in told] == [True], "once, whatever was tried"


def test_one_name_in_two_modes_is_refused_and_leases_in_the_monitored_container_are_too(orders: Orders) -> None:
    async def main() -> None:
        await caught_up(on_cosmos(orders, Changes()))
        with pytest.raises(Misconfigured, match="reads with mode=latest, and this instance with mode=all"):
            await caught_up(on_cosmos(orders, Changes(), mode="all"))
        made = ChangeFeedProcessor(orders.leases.replace("-leases:", ":"), orders.leases, "mails")
        made.on_changes(Changes())
        with pytest.raises(Misconfigured, match="is the very container that is monitored"):
            await caught_up(made)

    asyncio.run(main())


def test_a_lease_container_that_is_deleted_is_named_and_hosts_go_on_when_it_is_made_again(orders: Orders) -> None:
    leases, seen, troubles = {"id": "leases", "partitionKey": {"paths": ["/id"]}}, Changes(), list[str]()
    account, database = orders.server.account, orders.database

    async def main() -> None:
        mails = on_cosmos(orders, seen, heartbeat_s=0.2, ttl_s=1.0, margin_s=0.2, longest_ttl_s=1.5)
        mails.listen(lambda one: troubles.append(str(one.error)) if isinstance(one, Trouble) else None)
        orders.write(*range(20))
        async with asyncio.timeout(PATIENCE_S), mails:
            await until(lambda: len(seen) == 20)
            account.delete_container(database, "leases")
            told = f"no container 'leases' in the database '{database}' (store cosmos-leases:"
            await until(lambda: any(told in one and "Make it again, partitioned by /id" in one for one in troubles))
            account.create_container(database, {**leases, "partitionKey": {"paths": ["/customer"]}})
            await until(lambda: any("partitioned by /customer" in one for one in troubles))
            account.delete_container(database, "leases")
            orders.write(*range(20, 30))
            await until(lambda: not mails.owned)
            account.create_container(database, leases)
            await until(lambda: len(mails.owned) == 2)
            orders.write(*range(30, 40))
            await until(lambda: len({change["n"] for change in seen}) == 40)
        orders.write(40)
        await caught_up(on_cosmos(orders, seen))

    asyncio.run(main())
    assert len({change["n"] for change in seen}) == 41
    assert len(seen) <= 41 + 20, "at most what was not checkpointed when it went comes again"


def test_a_lease_that_was_edited_by_hand_stops_no_other_and_goes_on_when_it_is_put_back(orders: Orders) -> None:
    seen, told = Changes(), list[str]()
    leases = orders.server.container(orders.database, "leases")

    def lease(token: str) -> dict[str, Any]:
        found = leases.query("SELECT * FROM c WHERE ENDSWITH(c.id, @end)", {"@end": f"..{token}"})
        return dict(next(iter(found)))

    async def main() -> None:
        quick = {"heartbeat_s": 0.2, "ttl_s": 1.0, "margin_s": 0.2}
        mails = on_cosmos(orders, seen, **quick)
        mails.listen(lambda one: told.append(str(one)) if isinstance(one, Paused) else None)
        orders.write(*range(20))
        async with asyncio.timeout(PATIENCE_S), mails:
            await until(lambda: len(seen) == 20)
            await until(lambda: all(lease(token)["ContinuationToken"] != '"0"' for token in "01"))
            before = lease("0")
            leases.upsert({**before, "LeaseToken": "77"})
            await until(lambda: set(mails.owned) == {"1"})
            orders.write(*range(20, 40))
            await until(lambda: len(seen) > 25)
            assert f"'{before['id']}' is damaged: LeaseToken is '77'" in told[0]
            assert f"/{orders.database}/leases" in told[0]
        assert len(seen) < 40
        with pytest.raises(PartitionHalted, match=r"partition 0 paused by the store: .*LeaseToken"):
            await caught_up(on_cosmos(orders, seen, **quick))
        leases.upsert({**before, "Owner": None})
        await caught_up(on_cosmos(orders, seen, **quick))

    asyncio.run(main())
    assert sorted(change["n"] for change in seen) == list(range(40)), "nothing is lost, and nothing repeated"


def test_manual_checkpoints_lose_nothing_when_ranges_of_cosmos_split_and_merge(orders: Orders) -> None:
    """.NET's processor loses what was read and not checkpointed."""
    orders.write(*range(40))
    marked: set[int] = set()

    async def handle_some() -> None:
        before: dict[str, set[int]] = defaultdict(set)

        async def mark_the_first(changes: list[Any], context: ChangeContext) -> None:
            numbers = [change["n"] for change in changes]
            await context.checkpoint(changes[0])
            marked.update(before[context.lease_token], numbers[:1])
            before[context.lease_token].update(numbers)

        await caught_up(on_cosmos(orders, mark_the_first, checkpoint=Manual(), max_items=5))

    async def main() -> list[Any]:
        await handle_some()
        left, right = orders.inside.split("0")
        orders.write(*range(40, 60))
        await handle_some()
        orders.inside.merge(left.id, right.id)
        orders.write(*range(60, 80))
        rest, again = Changes(), Changes()
        await caught_up(on_cosmos(orders, rest, max_items=5))
        await caught_up(on_cosmos(orders, again))
        assert again == []
        return rest

    rest = asyncio.run(main())
    assert 10 < len(marked) < 60
    assert sorted(change["n"] for change in rest) == sorted(set(range(80)) - marked)
