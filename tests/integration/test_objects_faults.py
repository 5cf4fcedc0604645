"""What an object store makes of faults of its server and of the way there, one client at a time.

Where it matters how versions are named and errors described, in Google's way as well as in S3's. What it makes of each
answer that a server may give, and of a bucket that lost writes, is in `tests/unit/stores/objects/test_refused.py` and
`tests/unit/stores/objects/test_lost.py`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.errors import Misconfigured, StoreUnavailable
from evenflow.model import Action, Steering
from evenflow.stores.objects.client import BucketClient
from evenflow.stores.objects.store import ObjectsStore, from_url
from evenflow.testing.store.scene import at, first, present
from tests.integration import one_client
from tests.integration.one_client import GROUP, ME, PATIENCE_S, SOON_S, patiently
from tests.servers import azurite, moto
from tests.servers.azure_objects import azure_url
from tests.servers.azurite import Azurite
from tests.servers.moto import KEYS, Moto
from tests.servers.processes import standing_still
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.process

PARTITIONS = 30
ACTION = Action(kind="pause", by="anna", why="", what="")
BOTH_WAYS = pytest.mark.parametrize("url", ["s3", "gs"], indirect=True)
SOON = f"&timeout_s={SOON_S}"
PATIENT = "&timeout_s=30"
"""For requests that must be answered: no test depends on how long a busy server takes."""
opened = partial(one_client.opened, from_url)


@pytest.fixture
def server() -> Moto:
    return moto.shared()


@pytest.fixture
def prefix(server: Moto) -> str:
    return server.fresh()


@pytest.fixture
def url(request: pytest.FixtureRequest, server: Moto, prefix: str) -> str:
    make = server.google_url if getattr(request, "param", "s3") == "gs" else server.url
    return make(prefix, more=PATIENT)


@asynccontextmanager
async def through_a_proxy(server: Moto, prefix: str, more: str = PATIENT) -> AsyncIterator[tuple[ObjectsStore, Proxy]]:
    with Proxy(server.port) as proxy:
        async with opened(server.url(prefix, port=proxy.port, more=more)) as store:
            yield store, proxy


# --- the server
def test_a_restart_in_the_middle_of_heartbeats_costs_only_the_time_it_takes(tmp_path: Path) -> None:
    server = Azurite(tmp_path / "log", tmp_path).start()

    async def play() -> None:
        async with opened(azure_url(server)) as store:
            await one_client.heartbeats_go_on_after(store, server.stop, server.start)

    try:
        asyncio.run(play())
    finally:
        server.kill()


def test_a_server_that_stands_still_is_given_up_in_time_and_found_again(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with opened(server.url(prefix, more=SOON)) as store:
            me = present(await patiently(lambda: store.heartbeat(GROUP, ME, None)))
            with standing_still(server):
                began_s = time.monotonic()
                with pytest.raises(StoreUnavailable, match="has not answered for 1 s"):
                    await store.heartbeat(GROUP, me, None)
                assert time.monotonic() - began_s < PATIENCE_S / 2
            assert present(await patiently(lambda: store.heartbeat(GROUP, me, None))).incarnation == me.incarnation

    asyncio.run(play())


# --- the way there
def test_a_connection_that_is_cut_is_made_again(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with through_a_proxy(server, prefix) as (store, proxy):
            me = present(await store.heartbeat(GROUP, ME, None))
            for _ in range(3):
                proxy.cut()
                assert present(await store.heartbeat(GROUP, me, None)).incarnation == me.incarnation
            assert proxy.count.connections >= 2

    asyncio.run(play())


def test_a_connection_that_hangs_is_given_up_and_replaced(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with through_a_proxy(server, prefix, SOON) as (store, proxy):
            me = present(await patiently(lambda: store.heartbeat(GROUP, ME, None)))
            with proxy.holding():
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match="has not answered"):
                        await store.heartbeat(GROUP, me, None)
            assert present(await patiently(lambda: store.heartbeat(GROUP, me, None))).incarnation == me.incarnation

    asyncio.run(play())


def test_a_client_that_gives_up_waiting_leaves_nothing_locked(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with through_a_proxy(server, prefix) as (store, proxy):
            me = present(await store.heartbeat(GROUP, ME, None))
            with proxy.holding():
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await store.heartbeat(GROUP, me, None)
            async with asyncio.timeout(PATIENCE_S):  # what was given up would have had longer
                assert present(await store.heartbeat(GROUP, me, None)).incarnation == me.incarnation

    asyncio.run(play())


@BOTH_WAYS
def test_an_answer_that_is_lost_after_the_write_took_effect(server: Moto, url: str) -> None:
    async def play() -> None:
        async with opened(url) as store, opened(url) as other:
            silent = partial(server.faulty, "silent", "PUT")
            await one_client.lost_answers_leave_one_effect(store, other, silent)

    asyncio.run(play())


@BOTH_WAYS
def test_what_the_driver_sends_twice_because_its_answer_was_lost_happens_once(server: Moto, url: str) -> None:
    """The second one finds the object changed, by the first: the put knows its own name in it."""

    async def play() -> None:
        async with opened(url) as store, opened(url) as other:
            me = present(await store.heartbeat(GROUP, ME, None))
            with server.faulty("cut", "PUT"):
                (outcome,) = await store.swap(GROUP, [first("0", me.owner)])
                assert outcome.ok
                sealed = await store.seal(GROUP, "0", 1, at(0))
                assert (await store.commit(GROUP, [at(3)]))[0].ok
                await store.steer(GROUP, Steering(redrive=("0",)), ACTION)
                ledger = await store.heartbeat(GROUP, structs.replace(ME, id="late"), None)
            assert sealed.ordinal == 0
            assert present(ledger).incarnation == me.incarnation + 1
            seen = await other.peek(GROUP)
            assert seen is not None
            assert (seen.leases, seen.state.redrives, seen.cursor) == ((outcome.lease,), {"0": 1}, ledger.cursor)
            assert len(await other.moves(GROUP)) == len(await other.actions(GROUP)) == 1
            assert (await other.seal(GROUP, "0", 1, at(0))).ordinal == 3

    asyncio.run(play())


# --- rights
async def refused(url: str, *secrets: str) -> str:
    store = from_url(url)
    with pytest.raises(Misconfigured) as caught:
        await store.heartbeat(GROUP, ME, None)
    shown, error = [repr(store)], caught.value.__cause__
    while error is not None:
        shown.append(str(error))
        error = error.__cause__
    text = " ".join([str(caught.value), *shown])
    assert not [secret for secret in secrets if secret in text]
    return str(caught.value)


def test_azure_refuses_a_wrong_key_and_a_wrong_signature_and_neither_is_shown() -> None:
    server = azurite.shared_or_skip()
    assert "credentials" in asyncio.run(refused(azure_url(server, account_key="c2VzYW1l"), "c2VzYW1l"))
    assert "credentials" in asyncio.run(refused(azure_url(server, sas_key="sv=2020-01-01&sig=sesame"), "sesame"))


def test_a_bucket_that_is_not_there_is_named(server: Moto) -> None:
    for scheme, url in (("s3", server.url(bucket="nowhere")), ("gs", server.google_url(bucket="nowhere"))):
        said = asyncio.run(refused(url, *KEYS.values()))
        assert f"Bucket 'nowhere' of the store {scheme}://nowhere/evenflow?endpoint=" in said
    store = from_url(server.url(bucket="nowhere", more=PATIENT))
    for request in (store.groups(), store.peek(GROUP), store.checkpoints(GROUP)):
        with pytest.raises(Misconfigured, match=r"Bucket .* does not exist"):
            asyncio.run(_awaited(request))


async def _awaited(request: object) -> None:
    await request  # type: ignore[misc]


# --- a group that is deleted
@BOTH_WAYS
def test_a_group_of_which_others_delete_objects_is_deleted_whole(
    server: Moto, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is gone between the list and the deletion."""
    listed = BucketClient.paths

    async def paths(link: BucketClient, folder: str) -> list[str]:
        found = await listed(link, folder)
        if len(found) == PARTITIONS:
            server.ask("DELETE", f"{moto.BUCKET}/{prefix}/{found[0]}")
        return found

    async def play() -> None:
        async with opened(url) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            partitions = [str(number) for number in range(PARTITIONS)]
            await store.swap(GROUP, [first(partition, me.owner) for partition in partitions])
            for partition in partitions:
                await store.seal(GROUP, partition, 1, at(0, partition=partition))
            monkeypatch.setattr(BucketClient, "paths", paths)
            await store.delete(GROUP)
            assert [path.rpartition("/")[2] for path in server.objects(prefix)] == ["group"]

    asyncio.run(play())


# --- for tools that only look
def test_a_place_where_nothing_ever_was_is_an_error_for_those_who_only_look(server: Moto, url: str) -> None:
    async def play() -> None:
        store = from_url(url, create=False)
        for request in (store.groups(), store.peek(GROUP), store.actions(GROUP)):
            with pytest.raises(Misconfigured, match="contains no evenflow data"):
                await request
        async with opened(url) as other:
            await other.heartbeat(GROUP, ME, None)
        assert await store.groups() == [GROUP]
        before = server.puts()
        assert await store.peek(GROUP) is not None
        assert server.puts() == before, "looking writes nothing"

    asyncio.run(play())


def test_a_prefix_may_be_shared_with_others(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        for path in ("theirs/checkpoints/0", "theirs.x/group", "group", "a.b.0123/group"):
            server.ask("PUT", f"{moto.BUCKET}/{prefix}/{path}", b"not ours")
        with pytest.raises(Misconfigured, match="contains no evenflow data"):
            await from_url(url, create=False).groups()
        async with opened(url) as store:
            await store.heartbeat(GROUP, ME, None)
            assert await store.groups() == [GROUP]

    asyncio.run(play())


def test_a_store_of_the_drivers_own_may_be_given(server: Moto, prefix: str) -> None:
    from obstore.store import S3Store

    async def play() -> None:
        client = {"allow_http": True}
        endpoint = f"http://127.0.0.1:{server.port}"
        given = S3Store(moto.BUCKET, endpoint=endpoint, client_options=client, **KEYS)  # type: ignore[arg-type]
        store = ObjectsStore(given, prefix=prefix)
        try:
            await store.heartbeat(GROUP, ME, None)
            assert repr(store) == f"ObjectsStore('s3://{moto.BUCKET}/{prefix}')"
        finally:
            await store.aclose()
        async with opened(server.url(prefix)) as other:
            assert await other.groups() == [GROUP]

    asyncio.run(play())
