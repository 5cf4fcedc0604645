"""`evenflow leases` with the leases in Cosmos DB, and as .NET's hosts left them. (In files: tests/unit/cli.)"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from evenflow import Event, Processor
from evenflow.cli.profiles import Profile
from evenflow.cli.selection import opened
from evenflow.errors import Misconfigured
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.testing.cosmos import cosmos
from tests.unit.cli.command import answer, evenflow, facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow import OwnedPartition
    from evenflow.model import Group
    from evenflow.testing.cosmos import Cosmos

pytestmark = pytest.mark.process


async def _run_once(source: str, store: str) -> None:
    processor = Processor(source, store, "alerts", heartbeat_s=0.1, ttl_s=2.0, margin_s=0.1)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        pass

    async with asyncio.timeout(30):
        await processor.serve(until="caught_up")


def offsets(*flags: str, folder: Path) -> dict[str, str | None]:
    found = facts("leases", "list", *flags, folder=folder)
    return {one["partition"]: one["offset"] for one in found["leases"]}


@pytest.fixture
def server() -> Iterator[Cosmos]:
    with cosmos(ranges=2) as found, CosmosClient(found.url, found.key) as client:
        database = client.create_database("shop")
        orders = database.create_container("orders", PartitionKey("/customer"))
        database.create_container("leases", PartitionKey("/id"))
        for number in range(20):
            orders.create_item({"id": f"o{number}", "customer": f"c{number}"})
        yield found


def feed(server: Cosmos) -> list[str]:
    where = f"127.0.0.1:{server.port}/shop"
    source, store = f"cosmos://{where}/orders?poll_s=0.1", f"cosmos-leases://{where}/leases"
    return ["--source", source, "--store", store, "--group", "alerts"]


def test_ranges_that_were_split_since_go_on_in_their_children(server: Cosmos, tmp_path: Path) -> None:
    asyncio.run(_run_once(feed(server)[1], feed(server)[3]))
    answer("leases", "export", "leases.json", *feed(server), folder=tmp_path)
    before = offsets(*feed(server), folder=tmp_path)
    server.container("shop", "orders").split("0")
    store = ["--store", "sqlite:other", *feed(server)[:2], *feed(server)[4:]]
    done = facts("leases", "import", "leases.json", *store, "--yes", folder=tmp_path)
    there = {one["partition"]: one["to"] for one in done["partitions"]}
    assert set(there) == {"1", "2", "3"}
    assert there["1"] == before["1"]
    lsn = (before["0"] or "").partition("@")[0]
    assert {there[child].partition("@")[0] for child in "23"} == {lsn}


def test_leases_that_only_dotnet_has_had_are_listed_and_rewound(server: Cosmos, tmp_path: Path) -> None:
    prefix = asyncio.run(_prefix(feed(server)[1]))
    _left_by_dotnet(server, prefix)
    assert offsets(*feed(server), folder=tmp_path) == {"0": "3", "1": "3"}
    done: dict[str, Any] = facts("leases", "rewind", "--to-earliest", *feed(server), "--yes", folder=tmp_path)
    assert [one["from"] for one in done["partitions"]] == ["3", "3"]
    with CosmosClient(server.url, server.key) as client:
        leases = client.get_database_client("shop").get_container_client("leases")
        found = leases.read_item(f"{prefix}..0", f"{prefix}..0")
        assert found["ContinuationToken"] == '"0"'


def _left_by_dotnet(server: Cosmos, prefix: str, **fields: Any) -> None:
    with CosmosClient(server.url, server.key) as client:
        leases = client.get_database_client("shop").get_container_client("leases")
        for token in "01":
            lease = {"id": f"{prefix}..{token}", "version": 0, "LeaseToken": token, "Owner": None}
            lease |= {"ContinuationToken": '"3"', "properties": {}, "timestamp": None}
            leases.create_item({**lease, **fields})


def test_what_was_done_is_told_after_a_reset(server: Cosmos, tmp_path: Path) -> None:
    """Above all where everything was: in a pipe as a whole, to undo it."""
    asyncio.run(_run_once(feed(server)[1], feed(server)[3]))
    before = offsets(*feed(server), folder=tmp_path)
    answer("leases", "reset", *feed(server), "--yes", folder=tmp_path)
    (reset,) = answer("group", "actions", *feed(server), folder=tmp_path).splitlines()[1:]
    assert all(f"{name} at {offset}" in reset for name, offset in before.items()), reset


async def _prefix(source: str) -> str:
    opened = CosmosSource(source)
    try:
        return (await opened.convention("alerts")).prefix
    finally:
        await opened.aclose()


def test_leases_that_are_written_otherwise_are_named(server: Cosmos, tmp_path: Path) -> None:
    """The name misspelt, or the host in another spelling: nobody is told that there is nothing, and nobody begins."""
    prefix = asyncio.run(_prefix(feed(server)[1]))
    _left_by_dotnet(server, prefix)
    elsewhere = [flag.replace("127.0.0.1", "localhost") for flag in feed(server)]
    misspelt = evenflow("leases", "list", *feed(server)[:-1], "alert", folder=tmp_path)
    assert f"{prefix!r} (2 leases)" in misspelt.stderr
    for source in (elsewhere[1], None):
        with pytest.raises(Misconfigured, match=re.escape(prefix)):
            asyncio.run(_found(elsewhere[3], source))
    listed = evenflow("group", "list", "--json", *feed(server)[:4], folder=tmp_path)
    assert prefix in listed.stderr
    assert json.loads(listed.stdout) == {"groups": [], "foreign": [{"prefix": prefix, "leases": 2}]}
    with pytest.raises(Misconfigured, match=re.escape(prefix)):
        asyncio.run(_run_once(elsewhere[1], elsewhere[3]))
    asyncio.run(_run_once(elsewhere[1], f"{elsewhere[3]}?prefix={prefix}"))
    assert sum(one["handled"] for one in _leases(elsewhere, tmp_path)) == 14, "they went on after the continuation"


def test_a_group_under_a_prefix_of_its_own_is_found_without_saying_it(server: Cosmos, tmp_path: Path) -> None:
    source, store = feed(server)[1], feed(server)[3]
    asyncio.run(_run_once(source, f"{store}?prefix=mine"))
    assert sum(one["handled"] for one in _leases(feed(server), tmp_path)) == 20
    with pytest.raises(Misconfigured, match=r"It has no groups yet.* 'mine' \(2 leases\)"):
        asyncio.run(_found(f"{store}?prefix=others", source))
    with pytest.raises(Misconfigured, match=r"in 'localhost:.* It has: 127.0.0.1:"):
        asyncio.run(_found(store, source.replace("127.0.0.1", "localhost")))


def _leases(flags: list[str], folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = facts("leases", "list", *flags, folder=folder)["leases"]
    return found


async def _found(store: str, source: str | None) -> Group:
    chosen = Profile(store=store, source=source, group="alerts")
    async with opened(chosen) as at:
        return at.group
