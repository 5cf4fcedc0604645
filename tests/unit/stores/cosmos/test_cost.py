"""What a lease container is asked, counted: a quiet fleet of four hosts with a hundred ranges, against what the
defaults of .NET's processor imply."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from msgspec import json, structs

from evenflow.changefeed.processor import HEARTBEAT_S
from evenflow.model import Change, Checkpoint, Group, GroupState, Lease, Member, Position, Wish, next_epoch
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos.names import prefix_of
from evenflow.stores.cosmos.store import CosmosLeasesStore, from_url
from evenflow.stores.third_party import DisplacedOwner
from tests.servers.cosmos_leases import lease_server, make_container, store_url

if TYPE_CHECKING:
    from evenflow.model import Cursor

pytestmark = pytest.mark.process

RANGES, HOSTS = 100, 4
MINUTES = 5
GROUP = Group("account", "shop/orders", "feed")
DOTNET_PER_MINUTE = RANGES * 60 / 17 + HOSTS * 60 / 13
"""A renewal of each lease every 17 s (it reads the lease before it replaces it: here that counts once), and each host
lists all leases every 13 s."""


class Watch:
    """The wall clock that timestamps are made by, which can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._real = time.time

    def __call__(self) -> float:
        return self._real() + self.ahead_s


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    found = Watch()
    monkeypatch.setattr(time, "time", found)
    return found


@pytest.fixture
def url() -> str:
    server = lease_server("evenflow")
    return store_url(server, make_container(server))


class Host:
    def __init__(self, url: str, name: str) -> None:
        self.store: CosmosLeasesStore = from_url(url)
        self.me = Member(id=name, nonce=name, ttl_s=20.0, heartbeat_s=5.0)
        self.since: Cursor | None = None

    async def heartbeat(self) -> None:
        ledger = await self.store.heartbeat(GROUP, self.me, self.since)
        assert ledger.me is not None
        self.me, self.since = ledger.me, ledger.cursor

    async def claim(self, partitions: list[str]) -> None:
        epoch = next_epoch(0, 0)
        claims = [
            Change(partition=name, revision=0, history=0, owner=self.me.owner, epoch=epoch, ttl_s=20.0)
            for name in partitions
        ]
        assert all(outcome.ok for outcome in await self.store.swap(GROUP, claims))


def asked(hosts: list[Host]) -> Counter[str]:
    return sum((host.store.requests() for host in hosts), Counter())


def units(hosts: list[Host]) -> float:
    return sum(sum(host.store.charges().values()) for host in hosts)


async def spent_by(url: str, watch: Watch, ranges: int, hosts: int, heartbeat_s: float) -> tuple[Counter[str], float]:
    """What a fleet in which nothing happens asks for in a minute, and the units that it is charged."""
    fleet = [Host(url, f"host{number}") for number in range(hosts)]
    try:
        for number, host in enumerate(fleet):
            await host.heartbeat()
            await host.claim([str(name) for name in range(ranges) if name % hosts == number])
            await host.heartbeat()
        watch.ahead_s += 300.0
        for host in fleet:
            await host.heartbeat()  # by now each has seen how many leases there are
        before, units_before = asked(fleet), units(fleet)
        for _ in range(round(MINUTES * 60 / heartbeat_s)):
            watch.ahead_s += heartbeat_s
            for host in fleet:
                await host.heartbeat()
        spent = asked(fleet)
        spent.subtract(before)
        return spent, (units(fleet) - units_before) / MINUTES
    finally:
        for host in fleet:
            await host.store.aclose()


@pytest.mark.parametrize(("heartbeat_s", "requests", "charged"), [(HEARTBEAT_S, 180, 1_700), (5.0, 116, 1_100)])
def test_a_quiet_fleet_asks_for_at_most_half_of_what_dotnets_would(
    url: str, watch: Watch, heartbeat_s: float, requests: int, charged: float
) -> None:
    """The figures of docs/how-to/leases-in-cosmos.md."""
    spent, units_a_minute = asyncio.run(spent_by(url, watch, RANGES, HOSTS, heartbeat_s))
    assert round(sum(spent.values()) / MINUTES) == requests, +spent
    assert requests <= 0.5 * DOTNET_PER_MINUTE
    assert set(+spent) <= {"write member", "query leases", "renew lease"}
    # On a busy machine it is less: a query asks for what the last seconds have changed.
    assert units_a_minute <= charged * 1.05
    # To replace a small document costs ten units, to read it one.
    assert units_a_minute <= 0.5 * RANGES * 60 / 17 * 11


@pytest.mark.parametrize(("heartbeat_s", "requests", "charged"), [(HEARTBEAT_S, 88, 585), (10.0, 32, 230)])
def test_what_a_small_fleet_costs(url: str, watch: Watch, heartbeat_s: float, requests: int, charged: float) -> None:
    """Two hosts and four ranges; the same figures, and those of docs/reference/stores-cosmos-leases.md."""
    spent, units_a_minute = asyncio.run(spent_by(url, watch, 4, 2, heartbeat_s))
    assert round(sum(spent.values()) / MINUTES) == requests, +spent
    assert units_a_minute <= charged * 1.05


@pytest.mark.parametrize(("leases", "ahead_s"), [(4, 60.0), (50, 300.0), (120, 600.0)])
def test_timestamps_are_ahead_by_no_more_than_few_renewals_need(
    url: str, watch: Watch, leases: int, ahead_s: float
) -> None:
    """A .NET host that comes when all of ours were killed waits for so long."""

    async def play() -> None:
        host = Host(url, "host")
        try:
            await host.heartbeat()
            await host.claim([str(name) for name in range(leases)])
            for _ in range(3):
                await host.heartbeat()
            room, now_s = host.store._room(GROUP), time.time()
            told = [
                datetime.fromisoformat(one.note.timestamp[:26] + "+00:00") for one in room.held.values() if one.note
            ]
            assert all(ahead_s / 2 - 5 < one.timestamp() - now_s <= ahead_s for one in told)
            before = asked([host])
            for _ in range(24):
                watch.ahead_s += 5.0
                await host.heartbeat()
            assert asked([host])["renew lease"] - before["renew lease"] <= 2 * 20 + leases % 100
        finally:
            await host.store.aclose()

    asyncio.run(play())


def test_beside_hosts_of_another_make_leases_are_renewed_at_their_pace(url: str, watch: Watch) -> None:
    async def play() -> None:
        one = Host(f"{url}&shared=yes", "one")
        try:
            await one.heartbeat()
            await one.claim([str(name) for name in range(RANGES)])
            before = one.store.requests()
            for _ in range(34):
                watch.ahead_s += 1.0
                await one.heartbeat()
            renewals = one.store.requests()["renew lease"] - before["renew lease"]
            assert RANGES <= renewals <= 2 * RANGES, "each every 17 s"
        finally:
            await one.store.aclose()

    asyncio.run(play())


def test_what_did_not_change_is_not_asked_for_again(url: str, watch: Watch) -> None:
    """A heartbeat brings the rows of those who heartbeat, and leases that moved: however many there are."""

    async def play() -> None:
        one = Host(url, "one")
        try:
            await one.heartbeat()
            await one.claim([str(name) for name in range(RANGES)])
            await one.heartbeat()
            room = one.store._room(GROUP)
            room.newest_s += 60  # as if all of that had been a minute ago
            documents = await one.store._papers.changed(room.names.heartbeats, room.since())
            assert documents == []
            assert (await one.store._papers.changed(room.names.heartbeats, 0)) != []
        finally:
            await one.store.aclose()

    asyncio.run(play())


def test_charges_are_told_by_kind(url: str) -> None:
    async def play() -> None:
        one = Host(url, "one")
        try:
            await one.heartbeat()
            await one.claim(["0"])
            charges = one.store.charges()
            assert charges.keys() >= {"read container", "query leases", "write member", "write group", "write lease"}
            assert all(units > 0 for kind, units in charges.items() if kind != "read container")
            kept = structs.replace(one.me, weight=2.0)
            await one.store.heartbeat(GROUP, kept, None)
            assert one.store.charges()["write member"] > charges["write member"]
        finally:
            await one.store.aclose()

    asyncio.run(play())


# --- bytes, which writes are charged by
KINDS = ("read container", "read ranges", "read feed", "query leases", "query groups", "write group", "write member")


def test_a_row_with_all_that_is_told_of_a_host_is_within_a_kilobyte(url: str) -> None:
    async def row() -> dict[str, object]:
        host = Host(url, "billing-6f7d8b9c-xkzvw")
        told = {"host": host.me.id, "pid": 7, "version": "0.1.0", "started_at": time.time(), "source": "RTirYMRpqyg="}
        host.me = structs.replace(host.me, charges=dict.fromkeys(KINDS, 123.45), **told)
        try:
            await host.heartbeat()
            (found,) = await host.store._papers.changed(f"{prefix_of(GROUP)}.evenflow.member.", 0)
            return dict(found)
        finally:
            await host.store.aclose()

    assert len(json.encode(asyncio.run(row()))) <= 900


def test_what_is_empty_is_not_written_and_is_read_as_it_was() -> None:
    me = Member(id="a", nonce="n", ttl_s=8.0, heartbeat_s=2.0, weight=1.0, load={}, charges=None)
    lease = Lease(partition="0", owner=me.owner, epoch=1, revision=2, ttl_s=8.0, reason="claimed", settled=False)
    record = Checkpoint(partition="0", epoch=1, position=Position("0", 0), ordinal=0, notes={"stopped": {"at": None}})
    notes = (
        wire.RowNote(1, 0.0, 0, me),
        wire.LeaseNote("0", "then", lease, record, robbed=DisplacedOwner("dotnet", 0)),
        wire.Charter(GROUP, "line", floors={"0": 0}, state=GroupState(pauses={"*": Wish("ada", "")})),
    )
    for note in notes:
        text = wire.text_of(note)
        assert wire.read(text, type(note), "document") == note
        assert len(text) < len(json.encode(note))
    assert wire.text_of(me) == '{"id":"a","nonce":"n","ttl_s":8.0,"heartbeat_s":2.0,"weight":1.0,"load":{}}'
