"""Servers that lose writes: restarted with and without persistence, killed, emptied, and replaced by a replica.

Real ones, each of its own. What a server lost is detected by what instances saw.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost, StoreUnavailable
from evenflow.model import Group, Member, epoch_parts, next_epoch, restore_epoch
from evenflow.stores.redis.store import RedisStore
from evenflow.testing.store.scene import PATIENCE_S, after, at, first, granted, present
from tests.servers.processes import wait_until
from tests.servers.redis import KINDS, Endpoint, RedisServer, program_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from evenflow.model import Cursor, Lease, Ledger

GROUP = Group("homes.example", "sensors", "alerts")
AOF = ("--appendonly", "yes", "--appendfsync")
KEPT = {
    "stopped, everysec": ("everysec", RedisServer.stop),
    "stopped, always": ("always", RedisServer.stop),
    "killed, always": ("always", RedisServer.kill),
}
"""What loses nothing. (With everysec, a kill may: where the disk is slow, the server answers before it has written.)"""


@pytest.fixture
def make_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    program = program_of(getattr(request, "param", "redis"))
    with ExitStack() as ends:

        def make(name: str, *options: str) -> RedisServer:
            server = RedisServer(tmp_path / name, *options, program=program).start()
            ends.callback(server.stop)
            return server

        yield make


class Instance:
    """A store client with a member that follows the group, as a processor does."""

    def __init__(self, url: str, name: str) -> None:
        self.store = RedisStore(url)
        self.me = Member(id=name, nonce=f"nonce of {name}", ttl_s=1.0)
        self.cursor: Cursor | None = None

    async def heartbeat(self) -> Ledger:
        ledger = await self.store.heartbeat(GROUP, self.me, self.cursor)
        self.me, self.cursor = structs.replace(present(ledger), mark=0, heartbeat_at=0.0), ledger.cursor
        return ledger

    async def claim(self, partition: str, **more: object) -> Lease:
        history = self.cursor.history if self.cursor else 0
        (outcome,) = await self.store.swap(GROUP, [first(partition, self.me.owner, history=history, **more)])
        return granted(outcome)


async def again(instance: Instance) -> Ledger:
    """The next heartbeat that is answered."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await instance.heartbeat()
        except StoreUnavailable:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)


async def close(*instances: Instance) -> None:
    for instance in instances:
        await instance.store.aclose()


# --- nothing is lost
@pytest.mark.parametrize("make_server", KINDS, indirect=True)
@pytest.mark.parametrize(("sync", "end"), KEPT.values(), ids=KEPT)
def test_epochs_and_progress_survive_a_restart_with_persistence_on(
    make_server: Callable[..., RedisServer], sync: str, end: Callable[[RedisServer], None]
) -> None:
    async def scenario() -> None:
        server = make_server("one", *AOF, sync)
        one, two, quiet = (Instance(server.url, name) for name in ("one", "two", "quiet"))
        for instance in (quiet, two, one):
            await instance.heartbeat()
        lease = await one.claim("0", epoch=next_epoch(0, 1 << 22))
        await one.store.seal(GROUP, "0", lease.epoch, at(0))
        await one.store.commit(GROUP, [at(7, epoch=lease.epoch)])
        before = await one.heartbeat()
        for _ in range(2):
            end(server)
            with pytest.raises(StoreUnavailable):
                await one.heartbeat()
            server.start()
            ledger = await again(one)
            assert (ledger.whole, ledger.cursor.history) == (False, 0), "it goes on as if nothing had happened"
            assert ledger.cursor.revision > before.cursor.revision
            assert (await again(two)).cursor.history == 0
        ledger = await again(quiet)
        assert (ledger.whole, ledger.cursor.history, ledger.leases) == (False, 0, (lease,)), "two restarts are no loss"
        assert (await two.store.seal(GROUP, "0", lease.epoch, at(0))).ordinal == 7
        with_a_new_epoch = await two.store.swap(GROUP, [after(lease, two.me.owner)])
        assert granted(with_a_new_epoch[0]).epoch == lease.epoch + 1
        await close(one, two, quiet)

    asyncio.run(scenario())


def test_a_snapshot_at_the_end_is_persistence_enough_for_an_orderly_stop(
    make_server: Callable[..., RedisServer],
) -> None:
    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1")
        one = Instance(server.url, "one")
        await one.heartbeat()
        lease = await one.claim("0")
        await one.heartbeat()
        server.stop()
        server.start()
        ledger = await again(one)
        assert (ledger.whole, ledger.cursor.history) == (False, 0)
        peeked = await one.store.peek(GROUP)
        assert peeked is not None
        assert peeked.leases == (lease,)
        await close(one)

    asyncio.run(scenario())


# --- something is
def test_a_restart_without_persistence_raises_the_history(make_server: Callable[..., RedisServer]) -> None:
    async def scenario() -> None:
        server = make_server("one")
        one, two = Instance(server.url, "one"), Instance(server.url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        lease = await one.claim("0")
        incarnations = one.me.incarnation, two.me.incarnation
        for history in (1, 2):
            server.kill()
            server.start()
            for instance in (two, one, two):
                ledger = await again(instance)
                assert (ledger.cursor.history, ledger.whole or instance is two) == (history, True)
            assert ledger.leases == ()
            assert [member.id for member in sorted(ledger.members, key=lambda m: m.id)] in (["one", "two"], ["one"])
        assert (one.me.incarnation, two.me.incarnation) == incarnations
        taken = await one.claim("0", epoch=next_epoch(lease.epoch, 2))
        assert epoch_parts(taken.epoch) == (2, 1)
        assert await one.store.groups() == [GROUP], "it is in the list again"
        await close(one, two)

    asyncio.run(scenario())


def test_an_emptied_server_raises_the_history(make_server: Callable[..., RedisServer]) -> None:
    async def scenario() -> None:
        server = make_server("one")
        one = Instance(server.url, "one")
        await one.heartbeat()
        lease = await one.claim("0")
        await one.store.seal(GROUP, "0", lease.epoch, at(0))
        server.ask("FLUSHALL")
        assert (await one.store.commit(GROUP, [at(3, epoch=lease.epoch)]))[0].why == "epoch"
        with pytest.raises(LeaseLost) as caught:  # the default may be the end of the log
            await one.store.seal(GROUP, "0", lease.epoch, at(9))
        assert caught.value.lowest_epoch == restore_epoch(1)
        ledger = await one.heartbeat()
        assert (ledger.cursor.history, ledger.whole, ledger.leases) == (1, True, ())
        record = await one.store.seal(GROUP, "0", next_epoch(0, 1), at(3))
        assert record.ordinal == 3, "what is remembered counts"
        await close(one)

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["group", "leases", "records"])
def test_a_deleted_key_raises_the_history(make_server: Callable[..., RedisServer], key: str) -> None:
    """Or evicts: where a server may, it takes one key at a time."""

    async def scenario() -> None:
        server = make_server("one")
        one, two = Instance(server.url, "one"), Instance(server.url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        epoch = next_epoch(0, 3)
        lease = await one.claim("0", epoch=epoch)
        await one.store.seal(GROUP, "0", epoch, at(5))
        before = await one.heartbeat()
        assert before.cursor.history == 0
        server.ask("DEL", f"evenflow:{{homes.example/sensors/alerts}}:{key}")
        if key == "records":
            with pytest.raises(LeaseLost):
                await one.store.seal(GROUP, "0", epoch, at(0))
        (outcome,) = await two.store.swap(GROUP, [first("0", two.me.owner, epoch=epoch)])
        assert not outcome.ok
        newcomer = await two.store.heartbeat(GROUP, Member(id="newcomer", nonce="1", ttl_s=1.0), None)
        assert newcomer.began == 0, "records show that the group was there before"
        ledger = await one.heartbeat()
        assert ledger.whole
        assert (ledger.cursor.history, ledger.began) == (4 if key == "group" else 1, 0)
        assert ledger.leases == (() if key != "records" else (lease,))
        remembered = await one.store.seal(GROUP, "0", next_epoch(epoch, ledger.cursor.history), at(4))
        assert remembered.ordinal == (4 if key == "records" else 5)
        assert (await one.heartbeat()).cursor.history == ledger.cursor.history, "once"
        await close(one, two)

    asyncio.run(scenario())


def test_records_that_were_restored_are_missed_too(make_server: Callable[..., RedisServer]) -> None:
    async def scenario() -> None:
        server = make_server("one")
        one = Instance(server.url, "one")
        await one.heartbeat()
        server.ask("FLUSHALL")
        assert (await one.heartbeat()).cursor.history == 1
        assert (await one.store.commit(GROUP, [at(3, epoch=7)]))[0].ok
        server.ask("DEL", "evenflow:{homes.example/sensors/alerts}:records")
        assert (await one.heartbeat()).cursor.history == 2
        await close(one)

    asyncio.run(scenario())


def test_a_server_that_is_put_back_raises_the_history(make_server: Callable[..., RedisServer]) -> None:
    """A snapshot of a while ago, and a crash: the same lineage, and less of it."""

    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1")
        one, two = Instance(server.url, "one"), Instance(server.url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        server.ask("SAVE")
        lease = await one.claim("0")
        await one.heartbeat()
        server.kill()
        server.start()
        ledger = await again(one)
        assert (ledger.cursor.history, ledger.leases) == (1, ())
        assert (await two.heartbeat()).cursor.history == 1
        (outcome,) = await two.store.swap(GROUP, [after(lease, two.me.owner)])
        assert outcome.why == "history"
        await close(one, two)

    asyncio.run(scenario())


@contextmanager
def crashed_after_a_snapshot(_: Callable[..., RedisServer], server: RedisServer) -> Iterator[None]:
    server.ask("SAVE")
    yield
    server.kill()
    server.start()


@contextmanager
def failed_over_and_back(make: Callable[..., RedisServer], master: RedisServer) -> Iterator[None]:
    """The replica lags and takes over, and the master again before anything was written to the replica."""
    with Endpoint(master.port) as between, ExitStack() as held:
        replica = make("replica")
        _follow(replica, between.port)
        wait_until(lambda: replica.offset == master.offset, "the replica to have it all")
        held.enter_context(between.holding())
        yield
        between.cut()
        replica.ask("REPLICAOF", "NO", "ONE")
        _follow(master, replica.port)
        master.ask("REPLICAOF", "NO", "ONE")


def _follow(replica: RedisServer, port: int) -> None:
    replica.ask("REPLICAOF", "127.0.0.1", port)
    wait_until(lambda: replica.ask("INFO", "replication")["master_link_status"] == "up", "the first copy")


@contextmanager
def put_back_by_hand(_: Callable[..., RedisServer], server: RedisServer) -> Iterator[None]:
    kept = {key: server.ask("DUMP", key) for key in server.ask("KEYS", "*")}
    yield
    for key, value in kept.items():
        server.ask("RESTORE", key, 0, value, "REPLACE")


@pytest.mark.parametrize("can_see", ["which run it is", "nothing of the server"])
@pytest.mark.parametrize("losing", [crashed_after_a_snapshot, failed_over_and_back, put_back_by_hand])
def test_a_loss_is_found_although_others_have_written_more_since(
    make_server: Callable[..., RedisServer], losing: Callable[..., AbstractContextManager[None]], can_see: str
) -> None:
    """The revision has grown past all that was lost before its witness comes."""
    rights = ("+@all",) if can_see == "which run it is" else ("+@all", "-info")

    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1", "--user", "app", "on", ">app", "~*", "&*", *rights)
        url = server.url.replace("redis://", "redis://app:app@")
        one, two = Instance(url, "one"), Instance(url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        with losing(make_server, server):
            await one.heartbeat()
        await again(two)
        for _ in range(20):
            assert (await two.heartbeat()).cursor.history == 0
        assert (await one.heartbeat()).cursor.history == 1
        assert (await two.heartbeat()).cursor.history == 1, "once"
        await close(one, two)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_lost", [True, False])
def test_where_each_run_ended_covers_revisions_whose_names_are_gone(
    make_server: Callable[..., RedisServer], is_lost: bool
) -> None:
    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1")
        one, two = Instance(server.url, "one"), Instance(server.url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        if is_lost:
            server.ask("SAVE")
        await one.heartbeat()
        (server.kill if is_lost else server.stop)()
        server.start()
        await again(two)
        server.ask("HINCRBY", "evenflow:{homes.example/sensors/alerts}:group", "revision", 5_000)
        await two.heartbeat()
        assert (await again(one)).cursor.history == int(is_lost)
        await close(one, two)

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["a swap", "a seal"])
def test_who_was_answered_a_swap_or_a_seal_is_a_witness_too(make_server: Callable[..., RedisServer], what: str) -> None:
    """Its last heartbeat was not lost, so that its cursor alone would prove nothing."""

    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1")
        one = Instance(server.url, "one")
        await one.heartbeat()
        server.ask("SAVE")
        if what == "a swap":
            await one.claim("0")
        else:
            await one.store.seal(GROUP, "0", 1, at(0))
        server.kill()
        server.start()
        assert (await again(one)).cursor.history == 1
        await close(one)

    asyncio.run(scenario())


def test_a_commit_that_is_lost_stops_no_instance(make_server: Callable[..., RedisServer]) -> None:
    """The next one is above it; and if there is none, its events are handled again, which is what is promised."""

    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1")
        one = Instance(server.url, "one")
        await one.heartbeat()
        await one.store.seal(GROUP, "0", 1, at(0))
        server.ask("SAVE")
        await one.store.commit(GROUP, [at(5)])
        server.kill()
        server.start()
        assert (await again(one)).cursor.history == 0
        assert (await one.store.seal(GROUP, "0", 1, at(0))).ordinal == 0
        assert (await one.store.commit(GROUP, [at(6)]))[0].ok
        await close(one)

    asyncio.run(scenario())


def test_after_a_restart_no_instance_gets_a_lease_before_every_one_has_reported_what_it_saw(
    make_server: Callable[..., RedisServer],
) -> None:
    """Otherwise a lease whose claim was lost would be given to another, under the very same epoch."""

    async def scenario() -> None:
        server = make_server("one", "--save", "3600", "1")
        one, two = Instance(server.url, "one"), Instance(server.url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        server.ask("SAVE")
        lost = await one.claim("0")
        server.kill()
        server.start()
        await again(two)
        (outcome,) = await two.store.swap(GROUP, [first("0", two.me.owner)])
        assert (outcome.ok, outcome.why) == (False, "mark")
        assert (await one.heartbeat()).cursor.history == 1
        await two.heartbeat()
        taken = await two.claim("0", epoch=next_epoch(0, 1))
        assert taken.epoch > lost.epoch
        await close(one, two)

    asyncio.run(scenario())


def test_after_a_restart_a_lease_is_given_once_everybody_has_beaten_or_had_the_time(
    make_server: Callable[..., RedisServer],
) -> None:
    """One that had the time, and stays silent, may have been given a lease that was lost: the history rises."""

    async def scenario() -> None:
        server = make_server("one", *AOF, "always")
        one, two = Instance(server.url, "one"), Instance(server.url, "two")
        for instance in (one, two):
            await instance.heartbeat()
        server.kill()
        server.start()
        for instance in (one, two):
            await again(instance)
        claimed = await one.claim("0")
        assert granted((await one.store.swap(GROUP, [after(claimed, two.me.owner)]))[0])
        server.kill()
        server.start()
        began_s = time.monotonic()
        await again(two)
        history = 0
        while True:
            change = first("1", two.me.owner, history=history, epoch=next_epoch(0, history))
            (outcome,) = await two.store.swap(GROUP, [change])
            if outcome.ok:
                break
            assert time.monotonic() < began_s + PATIENCE_S
            history = (await two.heartbeat()).cursor.history
        assert time.monotonic() - began_s > 0.9 * one.me.ttl_s, "one is silent: it had all its time"
        assert history == 1
        await close(one, two)

    asyncio.run(scenario())


# --- a replica takes over
@pytest.mark.parametrize(
    ("make_server", "writes_are_lost"),
    [("redis", True), ("redis", False), ("valkey", True)],
    indirect=["make_server"],
)
def test_a_replica_that_is_promoted(make_server: Callable[..., RedisServer], writes_are_lost: bool) -> None:
    """Two real servers. The way between them is cut before the last writes have passed; the master dies."""

    async def scenario() -> None:
        master, replica = make_server("master"), make_server("replica")
        with ExitStack() as cut, Endpoint(master.port) as between, Endpoint(master.port) as endpoint:
            _follow(replica, between.port)
            url = f"redis://127.0.0.1:{endpoint.port}"
            one, two = Instance(url, "one"), Instance(url, "two")
            for instance in (one, two):
                await instance.heartbeat()
            early = await one.claim("0")
            wait_until(lambda: replica.offset == master.offset, "the replica to have it all")
            if writes_are_lost:
                cut.enter_context(between.holding())
            late = await one.claim("1")
            await one.store.seal(GROUP, "1", late.epoch, at(4))
            if not writes_are_lost:
                wait_until(lambda: replica.offset == master.offset, "the replica to have it all")
            master.kill()
            between.cut()
            replica.ask("REPLICAOF", "NO", "ONE")
            cut.close()
            endpoint.point_to(replica.port)
            for _ in range(20):
                await again(two)
            assert two.cursor is not None
            assert two.cursor.history == 0, "two saw nothing of what was lost"
            ledger = await again(one)
            assert ledger.cursor.history == int(writes_are_lost)
            peeked = await one.store.peek(GROUP)
            assert peeked is not None
            kept = {early.partition: early} if writes_are_lost else {early.partition: early, late.partition: late}
            assert {lease.partition: lease for lease in peeked.leases} == kept
            remembered = await one.store.seal(GROUP, "1", next_epoch(late.epoch, ledger.cursor.history), at(9))
            assert remembered.ordinal == (9 if writes_are_lost else 4)
            await close(one, two)

    asyncio.run(scenario())


def test_a_replica_is_not_written_to(make_server: Callable[..., RedisServer]) -> None:
    async def scenario() -> None:
        master = make_server("master")
        replica = make_server("replica", "--replicaof", "127.0.0.1", str(master.port))
        wait_until(lambda: replica.ask("INFO", "replication")["master_link_status"] == "up", "the first copy")
        one = Instance(replica.url, "one")
        with pytest.raises(StoreUnavailable, match="cannot be written now"):
            await one.heartbeat()
        replica.ask("REPLICAOF", "NO", "ONE")
        assert (await one.heartbeat()).me is not None
        await close(one)

    asyncio.run(scenario())
