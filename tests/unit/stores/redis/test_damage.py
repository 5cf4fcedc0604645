"""Records of a Redis store that were changed by hand are named, and nothing else is raised."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import Action, Member, Steering
from evenflow.stores.redis.store import RedisStore
from evenflow.testing.store.scene import after, at, first, granted, present
from tests.unit.stores.scenes import GROUP

if TYPE_CHECKING:
    from evenflow.model import Lease
    from tests.servers.redis import RedisServer

ME = Member(id="me", nonce="1", ttl_s=8.0)
RECORDS = ("group", "members", "marks", "heartbeats", "leases", "records", "moves", "actions", "retired")


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_are_damaged_are_named(redis_server: RedisServer, redis_url: str, name: str) -> None:
    """Whether a script meets the damage, or the client that reads its answer. No request raises anything else."""
    key = key_of(redis_url, name)

    async def play() -> None:
        async with aclosing(RedisStore(redis_url)) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            await store.steer(GROUP, Steering(retire=(me.owner,)), retired(me))
        garble(redis_server, name, key)
        said = await complaints(redis_url, me, lease)
        assert said
        assert not [
            one for one in said if f"of the key {key!r} cannot be read" not in one or "remove the entry (`" not in one
        ]

    asyncio.run(play())


def key_of(url: str, name: str) -> str:
    prefix = url.partition("prefix=")[2]
    return f"{prefix}:{{homes.example/sensors/alerts}}:{name}"


def retired(member: Member) -> Action:
    return Action(kind="retire", by="", why="", what=str(member.owner))


async def complaints(url: str, me: Member, lease: Lease) -> list[str]:
    """What each kind of request says about damage."""
    said: list[str] = []
    async with aclosing(RedisStore(url)) as store:
        for request in (
            store.peek(GROUP),
            store.checkpoints(GROUP),
            store.moves(GROUP),
            store.actions(GROUP),
            store.steer(GROUP, Steering(), retired(me)),
            store.heartbeat(GROUP, me, None),
            store.swap(GROUP, [after(lease, me.owner)]),
            store.seal(GROUP, "0", lease.epoch + 1, at(0)),
            store.commit(GROUP, [at(1, epoch=lease.epoch)]),
        ):
            try:
                await request
            except Corrupt as error:
                said.append(str(error))
    return said


def garble(server: RedisServer, name: str, key: str) -> None:
    if name == "marks":
        server.ask("ZADD", key, "+inf", ME.id)
    elif name in ("moves", "actions"):
        server.ask("LSET", key, 0, "garbage")
    else:
        for field in server.ask("HKEYS", key):
            if field not in (b"layout", b"born"):  # without these it is another version's, or was deleted
                server.ask("HSET", key, field, "garbage")


def test_a_list_of_groups_that_is_damaged_is_named(redis_server: RedisServer, redis_url: str) -> None:
    key = f"{redis_url.partition('prefix=')[2]}:groups"

    async def play() -> None:
        redis_server.ask("HSET", key, "layout", "garbage")
        async with aclosing(RedisStore(redis_url)) as store:
            with pytest.raises(Corrupt, match=rf"'layout' of the key '{key}'"):
                await store.heartbeat(GROUP, ME, None)
            redis_server.ask("HSET", key, "layout", "1", "garbage", "1")
            with pytest.raises(Corrupt, match=rf"'garbage' of the key '{key}'"):
                await store.groups()

    asyncio.run(play())


def test_a_key_of_another_program_in_our_place_is_an_error_with_a_name(
    redis_server: RedisServer, redis_url: str
) -> None:
    async def play() -> None:
        redis_server.ask("SET", key_of(redis_url, "group"), "mine")
        async with aclosing(RedisStore(redis_url)) as store:
            with pytest.raises(Misconfigured, match=r"WRONGTYPE|wrong kind"):
                await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())
