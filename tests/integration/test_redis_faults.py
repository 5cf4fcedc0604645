"""What a Redis store makes of faults of its server and of the way there, one client at a time.

Where a server's own words or habits decide, on Valkey as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from evenflow.errors import Misconfigured, StorageFull, StoreUnavailable
from evenflow.model import Action, Member, Steering
from evenflow.stores.redis import wakeups as redis_wakeups
from evenflow.stores.redis.store import RedisStore
from evenflow.testing.store.scene import after, at, first, granted, present
from tests.integration import one_client
from tests.integration.one_client import GROUP, ME, PATIENCE_S, SOON_S, patiently
from tests.servers.processes import standing_still
from tests.servers.proxy import Proxy
from tests.servers.redis import KINDS, RedisServer, program_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


pytestmark = pytest.mark.process

SECRET = "open%20sesame"
opened = partial(one_client.opened, RedisStore)


ON_BOTH = pytest.mark.parametrize("server", KINDS, indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    program = program_of(getattr(request, "param", "redis"))
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = RedisServer(tmp_path / "server", *options, program=program).start()
    yield server
    server.stop()


@asynccontextmanager
async def through_a_proxy(server: RedisServer, timeout_s: float = 30.0) -> AsyncIterator[tuple[RedisStore, Proxy]]:
    with Proxy(server.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}?timeout_s={timeout_s}") as store:
            yield store, proxy


# --- the server
def test_a_restart_in_the_middle_of_heartbeats_costs_only_the_time_it_takes(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            for end in (server.stop, server.kill):
                await one_client.heartbeats_go_on_after(store, end, server.start)

    asyncio.run(play())


def test_a_server_that_stands_still_is_given_up_in_time_and_found_again(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(f"{server.url}?timeout_s={SOON_S}") as store:
            me = present(await patiently(lambda: store.heartbeat(GROUP, ME, None)))
            with standing_still(server):
                began_s = time.monotonic()
                with pytest.raises(StoreUnavailable, match="has not answered for 1 s"):
                    await store.heartbeat(GROUP, me, None)
                assert time.monotonic() - began_s < PATIENCE_S / 2
            assert present(await patiently(lambda: store.heartbeat(GROUP, me, None))).incarnation == me.incarnation

    asyncio.run(play())


def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            server.ask("SCRIPT", "FLUSH")
            assert present(await store.heartbeat(GROUP, me, None)).incarnation == me.incarnation

    asyncio.run(play())


@ON_BOTH
def test_a_server_without_memory_is_full_and_loses_nothing(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            before = await store.peek(GROUP), await store.checkpoints(GROUP)
            server.ask("CONFIG", "SET", "maxmemory", "1")
            for request in (
                store.heartbeat(GROUP, me, None),
                store.swap(GROUP, [after(lease, None)]),
                store.seal(GROUP, "0", lease.epoch + 1, at(0)),
                store.commit(GROUP, [at(1, epoch=lease.epoch)]),
            ):
                with pytest.raises(StorageFull, match="no room"):
                    await request
            assert (await store.peek(GROUP), await store.checkpoints(GROUP)) == before, "not even a part of it"
            server.ask("CONFIG", "SET", "maxmemory", "0")
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok

    asyncio.run(play())


def test_a_server_without_a_disk_is_full_too(tmp_path: Path) -> None:
    """It was told to keep snapshots, and cannot: it takes no writes until it can."""
    server = RedisServer(tmp_path / "server", "--save", "3600", "1").start()

    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            (server.folder / "dump.rdb").mkdir()  # what is written beside it cannot take its place
            with suppress(redis.ResponseError):
                server.ask("BGSAVE")
            async with asyncio.timeout(PATIENCE_S):
                while server.ask("INFO", "persistence")["rdb_last_bgsave_status"] != "err":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            with pytest.raises(StorageFull, match=r"MISCONF|disk"):
                await store.heartbeat(GROUP, me, None)
            (server.folder / "dump.rdb").rmdir()
            server.ask("SAVE")
            assert (await store.heartbeat(GROUP, me, None)).me is not None

    try:
        asyncio.run(play())
    finally:
        server.stop()


# --- the way there
def test_a_connection_that_is_cut_is_made_again(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy):
            me = present(await store.heartbeat(GROUP, ME, None))
            proxy.cut()
            with pytest.raises(StoreUnavailable):
                await store.heartbeat(GROUP, me, None)
            assert present(await store.heartbeat(GROUP, me, None)).incarnation == me.incarnation
            assert proxy.count.connections == 2

    asyncio.run(play())


def test_a_connection_that_hangs_is_given_up_and_replaced(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server, SOON_S) as (store, proxy):
            me = present(await patiently(lambda: store.heartbeat(GROUP, ME, None)))
            with proxy.holding():
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match="has not answered"):
                        await store.heartbeat(GROUP, me, None)
            assert present(await patiently(lambda: store.heartbeat(GROUP, me, None))).incarnation == me.incarnation
            assert proxy.count.connections >= 3

    asyncio.run(play())


def test_who_gives_up_waiting_spoils_no_connection_for_the_next(server: RedisServer) -> None:
    """An answer that comes too late must not be taken for that of another request."""

    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            for _ in range(10):
                server.pause()
                waiting = asyncio.create_task(store.checkpoints(GROUP))
                await asyncio.sleep(0.01)
                waiting.cancel()
                server.resume()
                assert present(await store.heartbeat(GROUP, me, None)).incarnation == me.incarnation

    asyncio.run(play())


def test_a_lost_answer_leaves_one_effect(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy), opened(server.url) as other:
            await one_client.lost_answers_leave_one_effect(store, other, proxy.losing_answers)

    asyncio.run(play())


# --- wake-ups
@ON_BOTH
def test_wake_ups_come_again_after_a_cut_and_after_a_restart(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy), opened(server.url) as other:
            woken = asyncio.Event()
            end = store.watch(GROUP, "me", woken.set)
            me, heir = [
                present(await other.heartbeat(GROUP, Member(id=id, nonce="1", ttl_s=8.0), None))
                for id in ("other", "me")
            ]
            lease = granted((await other.swap(GROUP, [first("0", me.owner)]))[0])
            faults: list[Callable[[], None]] = [proxy.cut, partial(_again, server, server.kill)]
            for fault in (None, *faults):
                if fault is not None:
                    fault()
                async with asyncio.timeout(PATIENCE_S):
                    await woken.wait()  # it listens
                    for owner in (heir.owner, me.owner):
                        woken.clear()
                        await patiently(lambda: other.heartbeat(GROUP, me, None))
                        await patiently(lambda: other.heartbeat(GROUP, heir, None))
                        lease = granted((await other.swap(GROUP, [after(lease, owner)]))[0])
                        if owner == heir.owner:
                            await woken.wait()
                woken.clear()
            end()

    asyncio.run(play())


def test_a_listener_whose_connection_hangs_gives_it_up_and_comes_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is all that a listener hears on most days: so it asks for a sign of life now and then."""
    monkeypatch.setattr(redis_wakeups, "PING_AFTER_S", 0.2)
    monkeypatch.setattr(redis_wakeups, "RECONNECT_S", 0.1)

    async def play() -> None:
        async with through_a_proxy(server, SOON_S) as (store, proxy):
            woken = asyncio.Event()
            end = store.watch(GROUP, "me", woken.set)
            async with asyncio.timeout(PATIENCE_S):
                await woken.wait()
                woken.clear()
                with proxy.holding():
                    while proxy.count.connections < 3:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                await woken.wait()
            end()

    asyncio.run(play())


def _again(server: RedisServer, end: Callable[[], None]) -> None:
    end()
    server.start()


# --- rights
@ON_BOTH
def test_wrong_credentials_are_named_and_never_shown(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">open sesame", "~evenflow:*", "&*", "+@read", "+info")
    server.ask("ACL", "SETUSER", "writer", "on", ">open sesame", "~evenflow:*", "&*", "+@all", "-@dangerous", "-@admin")
    server.ask("ACL", "SETUSER", "default", "resetpass", ">another")
    there = f"127.0.0.1:{server.port}"

    async def refused(url: str) -> str:
        store = RedisStore(url)
        try:
            with pytest.raises(Misconfigured) as caught:
                await store.heartbeat(GROUP, ME, None)
            assert "sesame" not in repr(store)
            told: list[str] = []
            error: BaseException | None = caught.value
            while error is not None:
                told.append(str(error))
                error = error.__cause__
            assert "sesame" not in " ".join(told)
            return told[0]
        finally:
            await store.aclose()

    async def play() -> None:
        assert "credentials" in await refused(f"redis://{there}")
        assert "credentials" in await refused(f"redis://:{SECRET}@{there}")
        assert "credentials" in await refused(f"redis://nobody:{SECRET}@{there}")
        assert "may do" in await refused(f"redis://reader:{SECRET}@{there}")
        assert "may do" in await refused(f"redis://writer:{SECRET}@{there}?prefix=elsewhere")
        async with opened(f"redis://:another@{there}") as store:
            assert (await store.heartbeat(GROUP, ME, None)).me is not None

    asyncio.run(play())


@ON_BOTH
def test_rights_that_are_taken_away_are_an_outage(server: RedisServer) -> None:
    rights = "~evenflow:*", "&*", "+@all"
    server.ask("ACL", "SETUSER", "writer", "on", ">open sesame", *rights)

    async def play() -> None:
        async with opened(f"redis://writer:{SECRET}@127.0.0.1:{server.port}") as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            for fewer in (("-@write",), ("-@all",), ("resetpass", ">another")):
                server.ask("ACL", "SETUSER", "writer", *fewer)
                server.ask("CLIENT", "KILL", "USER", "writer")
                with suppress(StoreUnavailable):  # that a connection was ended may be found out first
                    await store.heartbeat(GROUP, present(ledger), ledger.cursor)
                with pytest.raises(StoreUnavailable, match=r"or what they may do.*goes on by itself"):
                    await store.heartbeat(GROUP, present(ledger), ledger.cursor)
                server.ask("ACL", "SETUSER", "writer", ">open sesame", *rights)
            assert present(await store.heartbeat(GROUP, present(ledger), ledger.cursor))

    asyncio.run(play())


@ON_BOTH
def test_the_rights_that_the_reference_names_are_enough(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/stores-redis.md").read_text()
    (rule,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER app")]
    server.ask(*rule.split())

    async def play() -> None:
        async with opened(f"redis://app:PASSWORD@127.0.0.1:{server.port}") as store:
            woken = asyncio.Event()
            end = store.watch(GROUP, ME.id, woken.set)
            me = present(await store.heartbeat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok
            action = Action(kind="pause", by="", why="", what="")
            async with asyncio.timeout(PATIENCE_S):
                await woken.wait()
                woken.clear()
                await store.steer(GROUP, Steering(pause=("0",)), action)
                await woken.wait()
            assert await store.groups() == [GROUP]
            await store.delete(GROUP)
            assert await store.groups() == []
            end()

    asyncio.run(play())
    assert not caplog.records


def test_who_may_not_ask_for_info_is_warned_once_and_served(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("ACL", "SETUSER", "writer", "on", ">open sesame", "~evenflow:*", "&*", "+@all", "-@dangerous", "-@admin")

    async def play() -> None:
        async with opened(f"redis://writer:{SECRET}@127.0.0.1:{server.port}") as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            me = present(ledger)
            for _ in range(3):
                ledger = await store.heartbeat(GROUP, me, ledger.cursor)
            assert not ledger.whole
            assert granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            assert await store.groups() == [GROUP]

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "maxmemory-policy" in caplog.text
    assert "sesame" not in caplog.text


def test_a_database_that_is_not_there_is_named(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(f"redis://127.0.0.1:{server.port}/99") as store:
            with pytest.raises(Misconfigured, match="database"):
                await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())


def test_a_server_without_scripts_is_named(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "server", "--rename-command", "EVALSHA", "").start()

    async def play() -> None:
        async with opened(server.url) as store:
            with pytest.raises(Misconfigured, match="refuses what evenflow needs"):
                await store.heartbeat(GROUP, ME, None)

    try:
        asyncio.run(play())
    finally:
        server.stop()
