"""A Redis store whose URL leads to no server, or to one of another kind; and one that was closed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from evenflow.errors import EvenflowError, StoreUnavailable
from evenflow.model import Member
from evenflow.stores.redis.store import RedisStore
from tests.servers.processes import free_port
from tests.unit.stores.scenes import GROUP

ME = Member(id="me", nonce="1", ttl_s=8.0)


def test_an_address_where_nothing_listens_is_an_outage_with_its_place() -> None:
    async def play() -> None:
        for host in (f"127.0.0.1:{free_port()}", "no-such-host.invalid"):
            async with aclosing(RedisStore(f"redis://{host}")) as store:
                with pytest.raises(StoreUnavailable, match=host):
                    await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())


def test_a_server_that_is_no_redis_is_an_error_of_ours() -> None:
    async def hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def play() -> None:
        server = await asyncio.start_server(hello, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, aclosing(RedisStore(url)) as store:
            with pytest.raises(EvenflowError):
                await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())


def test_a_store_that_was_closed_says_so(redis_url: str) -> None:
    async def play() -> None:
        async with aclosing(RedisStore(redis_url)) as store:
            await store.heartbeat(GROUP, ME, None)
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())
