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

from evenflow.errors import Corrupt, EvenflowError, Misconfigured, StorageFull, StoreUnavailable
from evenflow.model import Action, Member, Steering
from evenflow.stores import redis_wakes
from evenflow.stores.redis import RedisStore
from evenflow.testing.store_scene import after, at, first, granted, present
from tests.integration import one_client
from tests.integration.one_client import GROUP, ME, PATIENCE_S, SOON_S, patiently
from tests.servers.proxy import Proxy
from tests.servers.redis import KINDS, RedisServer, program_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


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
async def through_a_proxy(server: RedisServer, timeout_s: float = SOON_S) -> AsyncIterator[tuple[RedisStore, Proxy]]:
    with Proxy(server.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}?timeout_s={timeout_s}") as store:
            yield store, proxy


# --- the server
@ON_BOTH
def test_a_restart_in_the_middle_of_beats_costs_only_the_time_it_takes(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            for end in (server.stop, server.kill):
                await one_client.beats_go_on_after(store, partial(_again, server, end))

    asyncio.run(play())


def test_a_server_that_stands_still_is_given_up_in_time_and_found_again(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(f"{server.url}?timeout_s={SOON_S}") as store:
            me = present(await store.beat(GROUP, ME, None))
            server.pause()
            try:
                began_s = time.monotonic()
                with pytest.raises(StoreUnavailable, match=r"has not answered for 1 s"):
                    await store.beat(GROUP, me, None)
                assert time.monotonic() - began_s < PATIENCE_S / 2
            finally:
                server.resume()
            assert present(await patiently(lambda: store.beat(GROUP, me, None))).incarnation == me.incarnation

    asyncio.run(play())


@ON_BOTH
def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.beat(GROUP, ME, None))
            server.ask("SCRIPT", "FLUSH")
            assert present(await store.beat(GROUP, me, None)).incarnation == me.incarnation

    asyncio.run(play())


@ON_BOTH
def test_a_server_without_memory_is_full_and_loses_nothing(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.beat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            before = await store.peek(GROUP), await store.checkpoints(GROUP)
            server.ask("CONFIG", "SET", "maxmemory", "1")
            for request in (
                store.beat(GROUP, me, None),
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
            me = present(await store.beat(GROUP, ME, None))
            (server.folder / "dump.rdb").mkdir()  # what is written beside it cannot take its place
            with suppress(redis.ResponseError):
                server.ask("BGSAVE")
            async with asyncio.timeout(PATIENCE_S):
                while server.ask("INFO", "persistence")["rdb_last_bgsave_status"] != "err":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            with pytest.raises(StorageFull, match=r"MISCONF|disk"):
                await store.beat(GROUP, me, None)
            (server.folder / "dump.rdb").rmdir()
            server.ask("SAVE")
            assert (await store.beat(GROUP, me, None)).me is not None

    try:
        asyncio.run(play())
    finally:
        server.stop()


# --- the way there
def test_a_connection_that_is_cut_is_made_again(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy):
            me = present(await store.beat(GROUP, ME, None))
            proxy.cut()
            with pytest.raises(StoreUnavailable):
                await store.beat(GROUP, me, None)
            assert present(await store.beat(GROUP, me, None)).incarnation == me.incarnation
            assert proxy.count.connections == 2

    asyncio.run(play())


def test_a_connection_that_hangs_is_given_up_and_replaced(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy):
            me = present(await store.beat(GROUP, ME, None))
            with proxy.holding():
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match="has not answered"):
                        await store.beat(GROUP, me, None)
            assert present(await patiently(lambda: store.beat(GROUP, me, None))).incarnation == me.incarnation
            assert proxy.count.connections >= 3

    asyncio.run(play())


def test_who_gives_up_waiting_spoils_no_connection_for_the_next(server: RedisServer) -> None:
    """An answer that comes too late must not be taken for that of another request."""

    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.beat(GROUP, ME, None))
            for _ in range(10):
                server.pause()
                waiting = asyncio.create_task(store.checkpoints(GROUP))
                await asyncio.sleep(0.01)
                waiting.cancel()
                server.resume()
                assert present(await store.beat(GROUP, me, None)).incarnation == me.incarnation

    asyncio.run(play())


def test_a_lost_answer_leaves_one_effect(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy), opened(server.url) as other:
            await one_client.lost_answers_leave_one_effect(store, other, proxy.losing_answers)

    asyncio.run(play())


def test_nobody_is_there(server: RedisServer) -> None:
    async def play() -> None:
        server.stop()
        async with opened(server.url) as store:
            with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{server.port}"):
                await store.beat(GROUP, ME, None)
        async with opened("redis://no-such-host.invalid") as store:
            with pytest.raises(StoreUnavailable, match="no-such-host"):
                await store.beat(GROUP, ME, None)

    asyncio.run(play())


def test_a_store_that_was_closed_says_so(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(server.url) as store:
            await store.beat(GROUP, ME, None)
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.beat(GROUP, ME, None)

    asyncio.run(play())


# --- wake-ups
@ON_BOTH
def test_wake_ups_come_again_after_a_cut_and_after_a_restart(server: RedisServer) -> None:
    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy), opened(server.url) as other:
            woken = asyncio.Event()
            end = store.watch(GROUP, "me", woken.set)
            me, heir = [
                present(await other.beat(GROUP, Member(id=id, nonce="1", ttl_s=8.0), None)) for id in ("other", "me")
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
                        await patiently(lambda: other.beat(GROUP, me, None))
                        await patiently(lambda: other.beat(GROUP, heir, None))
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
    monkeypatch.setattr(redis_wakes, "QUIET_S", 0.2)
    monkeypatch.setattr(redis_wakes, "REST_S", 0.1)

    async def play() -> None:
        async with through_a_proxy(server) as (store, proxy):
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
                await store.beat(GROUP, ME, None)
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
            assert (await store.beat(GROUP, ME, None)).me is not None

    asyncio.run(play())


@ON_BOTH
def test_rights_that_are_taken_away_are_an_outage(server: RedisServer) -> None:
    rights = "~evenflow:*", "&*", "+@all"
    server.ask("ACL", "SETUSER", "writer", "on", ">open sesame", *rights)

    async def play() -> None:
        async with opened(f"redis://writer:{SECRET}@127.0.0.1:{server.port}") as store:
            ledger = await store.beat(GROUP, ME, None)
            for fewer in (("-@write",), ("-@all",), ("resetpass", ">another")):
                server.ask("ACL", "SETUSER", "writer", *fewer)
                server.ask("CLIENT", "KILL", "USER", "writer")
                with suppress(StoreUnavailable):  # that a connection was ended may be found out first
                    await store.beat(GROUP, present(ledger), ledger.cursor)
                with pytest.raises(StoreUnavailable, match=r"or what they may do.*goes on by itself"):
                    await store.beat(GROUP, present(ledger), ledger.cursor)
                server.ask("ACL", "SETUSER", "writer", ">open sesame", *rights)
            assert present(await store.beat(GROUP, present(ledger), ledger.cursor))

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
            me = present(await store.beat(GROUP, ME, None))
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


@ON_BOTH
def test_who_may_not_ask_for_info_is_warned_once_and_served(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("ACL", "SETUSER", "writer", "on", ">open sesame", "~evenflow:*", "&*", "+@all", "-@dangerous", "-@admin")

    async def play() -> None:
        async with opened(f"redis://writer:{SECRET}@127.0.0.1:{server.port}") as store:
            ledger = await store.beat(GROUP, ME, None)
            me = present(ledger)
            for _ in range(3):
                ledger = await store.beat(GROUP, me, ledger.cursor)
            assert not ledger.whole
            assert granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            assert await store.groups() == [GROUP]

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "maxmemory-policy" in caplog.text
    assert "sesame" not in caplog.text


@ON_BOTH
def test_a_database_that_is_not_there_is_named(server: RedisServer) -> None:
    async def play() -> None:
        async with opened(f"redis://127.0.0.1:{server.port}/99") as store:
            with pytest.raises(Misconfigured, match="database"):
                await store.beat(GROUP, ME, None)

    asyncio.run(play())


def test_a_server_without_scripts_is_named(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "server", "--rename-command", "EVALSHA", "").start()

    async def play() -> None:
        async with opened(server.url) as store:
            with pytest.raises(Misconfigured, match="refuses what evenflow needs"):
                await store.beat(GROUP, ME, None)

    try:
        asyncio.run(play())
    finally:
        server.stop()


def test_what_listens_there_is_no_redis() -> None:
    async def play() -> None:
        async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        stranger = await asyncio.start_server(hello, "127.0.0.1", 0)
        async with stranger, opened(f"redis://127.0.0.1:{stranger.sockets[0].getsockname()[1]}") as store:
            with pytest.raises(EvenflowError):
                await store.beat(GROUP, ME, None)

    asyncio.run(play())


@pytest.mark.parametrize(
    "name", ["group", "members", "marks", "beats", "leases", "records", "moves", "actions", "retired"]
)
def test_records_that_are_damaged_are_named(server: RedisServer, name: str) -> None:
    """Whether a script meets it, or whoever reads its answer. Nothing else is raised by any request."""
    key = f"evenflow:{{homes.example/sensors/alerts}}:{name}"
    told: list[str] = []

    async def use(request: Awaitable[object]) -> None:
        try:
            await request
        except Corrupt as error:
            told.append(str(error))

    async def play() -> None:
        async with opened(server.url) as store:
            me = present(await store.beat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            retire = Action(kind="retire", by="", why="", what=str(me.owner))
            await store.steer(GROUP, Steering(retire=(me.owner,)), retire)
        garble(server, name, key)
        async with opened(server.url) as store:
            await use(store.peek(GROUP))
            await use(store.checkpoints(GROUP))
            await use(store.moves(GROUP))
            await use(store.actions(GROUP))
            await use(store.steer(GROUP, Steering(), retire))
            await use(store.beat(GROUP, me, None))
            await use(store.swap(GROUP, [after(lease, me.owner)]))
            await use(store.seal(GROUP, "0", lease.epoch + 1, at(0)))
            await use(store.commit(GROUP, [at(1, epoch=lease.epoch)]))

    asyncio.run(play())
    assert told
    assert not [one for one in told if f"of the key {key!r} cannot be read" not in one or "remove it (`" not in one]


def garble(server: RedisServer, name: str, key: str) -> None:
    if name == "marks":
        server.ask("ZADD", key, "+inf", ME.id)
    elif name in ("moves", "actions"):
        server.ask("LSET", key, 0, "garbage")
    else:
        for field in server.ask("HKEYS", key):
            if field not in (b"layout", b"born"):  # without these it is another version's, or was deleted
                server.ask("HSET", key, field, "garbage")


def test_a_list_of_groups_that_is_damaged_is_named(server: RedisServer) -> None:
    async def play() -> None:
        server.ask("HSET", "evenflow:groups", "layout", "garbage")
        async with opened(server.url) as store:
            with pytest.raises(Corrupt, match=r"'layout' of the key 'evenflow:groups'"):
                await store.beat(GROUP, ME, None)
            server.ask("HSET", "evenflow:groups", "layout", "1", "garbage", "1")
            with pytest.raises(Corrupt, match=r"'garbage' of the key 'evenflow:groups'"):
                await store.groups()

    asyncio.run(play())


def test_somebody_elses_key_in_our_place_is_an_error_with_a_name(server: RedisServer) -> None:
    async def play() -> None:
        server.ask("SET", "evenflow:{homes.example/sensors/alerts}:group", "mine")
        async with opened(server.url) as store:
            with pytest.raises(Misconfigured, match=r"WRONGTYPE|wrong kind"):
                await store.beat(GROUP, ME, None)

    asyncio.run(play())
