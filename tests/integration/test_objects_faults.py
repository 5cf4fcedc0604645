"""What an object store makes of faults of its server and of the way there, one client at a time.

Where it matters how versions are named and errors told, in Google's way as well as in S3's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.errors import Corrupt, EvenflowError, Misconfigured, StorageFull, StoreUnavailable
from evenflow.model import Action, Steering
from evenflow.stores import objects_heart
from evenflow.stores.objects import ObjectsStore, from_url
from evenflow.stores.objects_link import Link
from evenflow.testing.store_scene import after, at, first, granted, present
from tests.integration import one_client
from tests.integration.one_client import GROUP, ME, SOON_S, patiently
from tests.servers import azurite, moto
from tests.servers.azure_objects import azure_url
from tests.servers.azurite import Azurite
from tests.servers.moto import KEYS, TOKEN, Moto
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from evenflow.model import Checkpoint, Lease

pytestmark = pytest.mark.process

PARTITIONS = 30
ACTION = Action(kind="pause", by="anna", why="", what="")
BOTH_WAYS = pytest.mark.parametrize("url", ["s3", "gs"], indirect=True)
opened = partial(one_client.opened, from_url)


@pytest.fixture
def server() -> Moto:
    return moto.shared()


@pytest.fixture
def prefix(server: Moto) -> str:
    return server.fresh()


@pytest.fixture
def url(request: pytest.FixtureRequest, server: Moto, prefix: str) -> str:
    return server.google_url(prefix) if getattr(request, "param", "s3") == "gs" else server.url(prefix)


@asynccontextmanager
async def through_a_proxy(
    server: Moto, prefix: str, timeout_s: float = SOON_S
) -> AsyncIterator[tuple[ObjectsStore, Proxy]]:
    with Proxy(server.port) as proxy:
        async with opened(server.url(prefix, port=proxy.port, more=f"&timeout_s={timeout_s}")) as store:
            yield store, proxy


async def claim(store: ObjectsStore, partition: str = "0") -> tuple[Lease, Checkpoint]:
    me = present(await store.beat(GROUP, ME, None))
    lease = granted((await store.swap(GROUP, [first(partition, me.owner)]))[0])
    return lease, await store.seal(GROUP, partition, lease.epoch, at(0, partition=partition))


# --- the server
def test_a_restart_in_the_middle_of_beats_costs_only_the_time_it_takes(tmp_path: Path) -> None:
    server = Azurite(tmp_path / "log", tmp_path).start()

    def restart() -> None:
        server.stop()
        server.start()

    async def play() -> None:
        async with opened(azure_url(server)) as store:
            await one_client.beats_go_on_after(store, restart)

    try:
        asyncio.run(play())
    finally:
        server.kill()


def test_a_server_that_stands_still_is_given_up_in_time_and_found_again(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with opened(server.url(prefix, more="&timeout_s=0.3")) as store:
            me = present(await store.beat(GROUP, ME, None))
            server.pause()
            try:
                began_s = time.monotonic()
                with pytest.raises(StoreUnavailable, match=r"has not answered for 0\.3 s"):
                    await store.beat(GROUP, me, None)
                assert time.monotonic() - began_s < 5
            finally:
                server.resume()
            assert present(await patiently(lambda: store.beat(GROUP, me, None))).incarnation == me.incarnation

    asyncio.run(play())


@BOTH_WAYS
def test_a_server_that_is_too_busy_is_asked_again(server: Moto, url: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            lease, _ = await claim(store)
            with server.faulty("503", "SlowDown", 0.5):
                for ordinal in range(1, 6):
                    assert (await store.commit(GROUP, [at(ordinal, epoch=lease.epoch)]))[0].ok
                    assert (await store.beat(GROUP, ME, None)).me is not None
            with server.faulty("503", "SlowDown"), pytest.raises(StoreUnavailable, match=r"SlowDown|not answered"):
                await store.beat(GROUP, ME, None)
            assert (await store.beat(GROUP, ME, None)).leases == (lease,)

    asyncio.run(play())


@pytest.mark.parametrize(("status", "code"), [("507", "XMinioStorageFull"), ("403", "QuotaExceeded")])
def test_a_server_without_room_is_full_until_there_is_some(server: Moto, url: str, status: str, code: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            lease, _ = await claim(store)
            with server.faulty(status, code), pytest.raises(StorageFull, match=f"no room to write: {code}"):
                await store.commit(GROUP, [at(1, epoch=lease.epoch)])
            assert (await store.commit(GROUP, [at(2, epoch=lease.epoch)]))[0].ok

    asyncio.run(play())


@BOTH_WAYS
def test_a_server_that_obeys_no_conditions_is_refused_before_anything_is_written(
    server: Moto, url: str, prefix: str
) -> None:
    async def play() -> None:
        async with opened(url) as store:
            with server.faulty("careless", "PUT"), pytest.raises(Misconfigured, match="conditional puts"):
                await store.beat(GROUP, ME, None)
            assert server.objects(prefix) == {}

    asyncio.run(play())


# --- the way there
def test_a_connection_that_is_cut_is_made_again(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with through_a_proxy(server, prefix, 2.0) as (store, proxy):
            me = present(await store.beat(GROUP, ME, None))
            for _ in range(3):
                proxy.cut()
                assert present(await store.beat(GROUP, me, None)).incarnation == me.incarnation
            assert proxy.count.connections >= 2

    asyncio.run(play())


def test_a_connection_that_hangs_is_given_up_and_replaced(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with through_a_proxy(server, prefix) as (store, proxy):
            me = present(await patiently(lambda: store.beat(GROUP, ME, None)))
            with proxy.holding():
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match="has not answered"):
                        await store.beat(GROUP, me, None)
            assert present(await patiently(lambda: store.beat(GROUP, me, None))).incarnation == me.incarnation

    asyncio.run(play())


def test_who_gives_up_waiting_leaves_nothing_locked(server: Moto, prefix: str) -> None:
    async def play() -> None:
        async with through_a_proxy(server, prefix, 5.0) as (store, proxy):
            me = present(await store.beat(GROUP, ME, None))
            with proxy.holding():
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await store.beat(GROUP, me, None)
            async with asyncio.timeout(4.0):
                assert present(await store.beat(GROUP, me, None)).incarnation == me.incarnation

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
            me = present(await store.beat(GROUP, ME, None))
            with server.faulty("cut", "PUT"):
                (outcome,) = await store.swap(GROUP, [first("0", me.owner)])
                assert outcome.ok
                sealed = await store.seal(GROUP, "0", 1, at(0))
                assert (await store.commit(GROUP, [at(3)]))[0].ok
                await store.steer(GROUP, Steering(redrive=("0",)), ACTION)
                ledger = await store.beat(GROUP, structs.replace(ME, id="late"), None)
            assert sealed.ordinal == 0
            assert present(ledger).incarnation == me.incarnation + 1
            seen = await other.peek(GROUP)
            assert seen is not None
            assert (seen.leases, seen.state.redrives, seen.cursor) == ((outcome.lease,), {"0": 1}, ledger.cursor)
            assert len(await other.moves(GROUP)) == len(await other.actions(GROUP)) == 1
            assert (await other.seal(GROUP, "0", 1, at(0))).ordinal == 3

    asyncio.run(play())


def test_nobody_is_there(server: Moto) -> None:
    async def play() -> None:
        with Proxy(server.port) as proxy, proxy.refusing():
            async with opened(server.url(port=proxy.port)) as store:
                with pytest.raises(StoreUnavailable, match="s3://leases/evenflow"):
                    await store.beat(GROUP, ME, None)

    asyncio.run(play())


def test_a_store_that_was_closed_says_so(url: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            await store.beat(GROUP, ME, None)
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.beat(GROUP, ME, None)

    asyncio.run(play())


# --- rights
async def refused(url: str, *secrets: str) -> str:
    store = from_url(url)
    with pytest.raises(Misconfigured) as caught:
        await store.beat(GROUP, ME, None)
    told, error = [repr(store)], caught.value.__cause__
    while error is not None:
        told.append(str(error))
        error = error.__cause__
    text = " ".join([str(caught.value), *told])
    assert not [secret for secret in secrets if secret in text]
    return str(caught.value)


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"])
def test_credentials_that_are_refused_are_named_and_never_shown(server: Moto, url: str, code: str) -> None:
    with server.faulty("403", code):
        told = asyncio.run(refused(url, *KEYS.values()))
    assert "credentials" in told
    assert code in told


def test_a_token_that_has_expired_is_a_matter_of_credentials(server: Moto, url: str) -> None:
    with server.faulty("400", "ExpiredToken"):
        assert "credentials" in asyncio.run(refused(url))


@BOTH_WAYS
def test_credentials_that_are_refused_after_they_were_good_are_an_outage(server: Moto, url: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            ledger = await store.beat(GROUP, ME, None)
            for code in ("AccessDenied", "NoSuchBucket"):
                with server.faulty("403", code), pytest.raises(StoreUnavailable, match="goes on by itself"):
                    await store.beat(GROUP, present(ledger), ledger.cursor)
            assert present(await store.beat(GROUP, present(ledger), ledger.cursor))

    asyncio.run(play())


@pytest.mark.parametrize(("status", "code"), [("401", "AuthenticationRequired"), ("403", "AccessDenied")])
def test_a_token_that_google_refuses_is_named_and_never_shown(
    server: Moto, prefix: str, status: str, code: str
) -> None:
    with server.faulty(status, code):
        told = asyncio.run(refused(server.google_url(prefix), TOKEN))
    assert "credentials" in told
    assert code in told


def test_azure_refuses_a_wrong_key_and_a_wrong_signature_and_neither_is_shown() -> None:
    server = azurite.shared_or_skip()
    assert "credentials" in asyncio.run(refused(azure_url(server, account_key="c2VzYW1l"), "c2VzYW1l"))
    assert "credentials" in asyncio.run(refused(azure_url(server, sas_key="sv=2020-01-01&sig=sesame"), "sesame"))


def test_a_bucket_that_is_not_there_is_named(server: Moto) -> None:
    told = asyncio.run(refused(server.url(bucket="nowhere"), *KEYS.values()))
    assert "There is no bucket 'nowhere' for the store s3://nowhere/evenflow?endpoint=" in told
    told = asyncio.run(refused(server.google_url(bucket="nowhere"), TOKEN))
    assert "There is no bucket 'nowhere' for the store gs://nowhere/evenflow?endpoint=" in told
    store = from_url(server.url(bucket="nowhere"))
    for request in (store.groups(), store.peek(GROUP), store.checkpoints(GROUP)):
        with pytest.raises(Misconfigured, match="There is no bucket"):
            asyncio.run(_awaited(request))


async def _awaited(request: object) -> None:
    await request  # type: ignore[misc]


# --- what somebody did to the objects
def test_objects_that_are_damaged_are_named(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            await claim(store)
            await store.record(GROUP, ACTION)
        for path, content in server.objects(prefix).items():
            for damage in (b"", b"not ours", b'{"some": "json"}', content[: len(content) // 2], b"\x1f\x8bzip"):
                server.ask("PUT", f"{moto.BUCKET}/{path}", damage)
                async with opened(url) as store:
                    name = path.rpartition("/")[2]
                    with pytest.raises(Corrupt, match=rf"s3://leases/{path} is damaged") as caught:
                        await _use(store, name)
                    assert "delete it" in str(caught.value)
            server.ask("PUT", f"{moto.BUCKET}/{path}", content)

    asyncio.run(play())


def test_objects_of_a_newer_version_are_left_alone(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            await claim(store)
            await store.record(GROUP, ACTION)
        for path, content in server.objects(prefix).items():
            newer = content.replace(b'"evenflow":1', b'"evenflow":2,"new":{}', 1)
            server.ask("PUT", f"{moto.BUCKET}/{path}", newer)
            async with opened(url) as store:
                with pytest.raises(Misconfigured, match=r"newer evenflow \(layout 2"):
                    await _use(store, path.rpartition("/")[2])
            assert server.ask("GET", f"{moto.BUCKET}/{path}") == newer
            server.ask("PUT", f"{moto.BUCKET}/{path}", content)

    asyncio.run(play())


async def _use(store: ObjectsStore, name: str) -> object:
    if name == "actions":
        return await store.steer(GROUP, Steering(pause=("0",)), ACTION)
    return await (store.beat(GROUP, ME, None) if name == "heart" else store.seal(GROUP, "0", 2, at(0)))


def test_a_snapshot_that_somebody_deleted_is_a_loss_of_leases(
    server: Moto, url: str, prefix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_heart, "ROUNDS_KEPT", 0)

    async def play() -> None:
        async with opened(url) as store:
            lease, _ = await claim(store)
            me, since = ME, (await store.beat(GROUP, ME, None)).cursor
            for _ in range(3):
                since = (await store.beat(GROUP, me, since)).cursor
            snapshots = sorted(path for path in server.objects(prefix) if "/snapshots/" in path)
            assert len(snapshots) <= 2, "old ones are removed"
            async with opened(url) as other:
                assert (await other.beat(GROUP, structs.replace(ME, id="new"), None)).leases == (lease,)
            for snapshot in snapshots:
                server.ask("DELETE", f"{moto.BUCKET}/{snapshot}")
            async with opened(url) as other:
                with caplog.at_level(logging.WARNING):
                    ledger = await other.beat(GROUP, structs.replace(ME, id="newer"), None)
                assert snapshots[-1].rpartition("/")[2] in caplog.text
                assert (ledger.cursor.history, ledger.leases) == (1, ())
            told = await store.beat(GROUP, me, since)
            assert (told.cursor.history, told.whole, told.leases) == (1, True, ())
            assert (await store.seal(GROUP, "0", 1 << 33, at(0))).epoch == 1 << 33, "checkpoints are kept"

    asyncio.run(play())


# --- lost writes
@BOTH_WAYS
def test_a_bucket_that_is_put_back_is_noticed_by_whoever_has_seen_more(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            lease, _ = await claim(store)
            cursor = (await store.beat(GROUP, ME, None)).cursor
            backup = server.objects(prefix)
            for ordinal in (1, 2):
                cursor = (await store.beat(GROUP, ME, cursor)).cursor
                await store.commit(GROUP, [at(ordinal, epoch=lease.epoch)])
            server.put_back(backup, prefix)
            (outcome,) = await store.swap(GROUP, [after(lease, None)])
            assert outcome.why == "history", "also before its next beat"
            ledger = await store.beat(GROUP, ME, cursor)
            assert (ledger.cursor.history, ledger.whole, ledger.leases) == (1, True, (lease,))
            record = await store.seal(GROUP, "0", (1 << 32) + 2, at(2))
            assert record.ordinal == 2, "from memory"

    asyncio.run(play())


@BOTH_WAYS
def test_a_bucket_that_is_put_back_is_noticed_though_others_have_gone_on(server: Moto, url: str, prefix: str) -> None:
    """They have written more than was lost; but a mark that went back, or another's name for a put, gives it away."""

    async def play(beats: int) -> None:
        async with opened(url) as store, opened(url) as other:
            group = structs.replace(GROUP, name=f"after {beats}")
            await other.beat(group, structs.replace(ME, id="other"), None)
            await store.beat(group, ME, None)
            backup = server.objects(prefix)
            since = (await store.beat(group, ME, None)).cursor
            server.put_back(backup, prefix)
            async with opened(url) as forgetful:  # it knows nothing of before
                for _ in range(beats):
                    await forgetful.beat(group, structs.replace(ME, id="forgetful"), None)
            assert (await store.beat(group, ME, since)).cursor.history == 1

    for beats in (3, objects_heart.WRITES_KEPT + 5):
        asyncio.run(play(beats))


def test_a_claim_that_is_lost_is_noticed_though_others_have_gone_on(server: Moto, url: str, prefix: str) -> None:
    """Its owner's mark is not lost with it: it beat before."""

    async def play(beats: int) -> None:
        async with opened(url) as store:
            group = structs.replace(GROUP, name=f"after {beats}")
            await store.beat(group, structs.replace(ME, id="other"), None)
            ledger = await store.beat(group, ME, None)
            backup = server.objects(prefix)
            assert (await store.swap(group, [first("0", present(ledger).owner)]))[0].ok
            server.put_back(backup, prefix)
            async with opened(url) as forgetful:
                for _ in range(beats):
                    await forgetful.beat(group, structs.replace(ME, id="other"), None)
            told = await store.beat(group, ME, ledger.cursor)
            assert (told.cursor.history, told.whole, told.leases) == (1, True, ())

    for beats in (3, objects_heart.WRITES_KEPT + 5):
        asyncio.run(play(beats))


def test_a_wish_that_is_lost_is_noticed_by_the_name_of_its_put(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        async with opened(url) as store, opened(url) as other:
            await other.beat(GROUP, ME, None)
            backup = server.objects(prefix)
            await store.steer(GROUP, Steering(pause=("0",)), ACTION)
            server.put_back(backup, prefix)
            async with opened(url) as forgetful:
                for _ in range(3):
                    await forgetful.beat(GROUP, ME, None)
            await store.steer(GROUP, Steering(pause=("1",)), ACTION)
            ledger = await other.peek(GROUP)
            assert ledger is not None
            assert (ledger.cursor.history, set(ledger.state.pauses)) == (1, {"1"})

    asyncio.run(play())


@pytest.mark.parametrize("order", ["one, two, three", "one, three, two"])
def test_a_bucket_that_is_put_back_is_one_loss_however_many_notice_it(
    server: Moto, url: str, prefix: str, order: str
) -> None:
    """What somebody had seen before it is no proof of another, also when it looks again in the new history."""

    async def play() -> None:
        async with opened(url) as store, opened(url) as other:
            one, two, three = (structs.replace(ME, id=name, nonce=name) for name in ("one", "two", "three"))
            beats = {"one": (store, one), "two": (store, two), "three": (other, three)}
            backup: dict[str, bytes] = {}
            for _ in range(3):
                for client, member in beats.values():
                    await client.beat(GROUP, member, None)
                backup = backup or server.objects(prefix)
            server.put_back(backup, prefix)
            for client, member in 3 * [beats[name] for name in order.split(", ")]:
                assert (await client.beat(GROUP, member, None)).cursor.history == 1
                await store.peek(GROUP)
                await other.peek(GROUP)

    asyncio.run(play())


@BOTH_WAYS
def test_a_bucket_that_is_emptied_is_noticed(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            lease, _ = await claim(store)
            since = (await store.beat(GROUP, ME, None)).cursor
            server.put_back({}, prefix)
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].why == "epoch"
            ledger = await store.beat(GROUP, ME, since)
            assert (ledger.cursor.history, ledger.whole, ledger.leases) == (1, True, ())
            assert (await store.seal(GROUP, "0", (1 << 32) + 1, at(7))).ordinal == 7

    asyncio.run(play())


@BOTH_WAYS
def test_objects_that_are_written_again_as_they_were_are_no_loss(server: Moto, url: str, prefix: str) -> None:
    """As by a copy of the bucket onto itself. A tag that is made from the content does not tell; a number does."""

    async def play() -> None:
        async with opened(url) as store:
            lease, _ = await claim(store)
            since = (await store.beat(GROUP, ME, None)).cursor
            server.put_back(server.objects(prefix), prefix)
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok
            ledger = await store.beat(GROUP, ME, since)
            assert (ledger.cursor.history, ledger.whole) == (0, False)

    asyncio.run(play())


@BOTH_WAYS
def test_a_group_of_which_others_delete_objects_is_deleted_whole(
    server: Moto, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is gone between the list and the deletion."""
    listed = Link.paths

    async def paths(link: Link, folder: str) -> list[str]:
        found = await listed(link, folder)
        if len(found) == PARTITIONS:
            server.ask("DELETE", f"{moto.BUCKET}/{prefix}/{found[0]}")
        return found

    async def play() -> None:
        async with opened(url) as store:
            me = present(await store.beat(GROUP, ME, None))
            partitions = [str(number) for number in range(PARTITIONS)]
            await store.swap(GROUP, [first(partition, me.owner) for partition in partitions])
            for partition in partitions:
                await store.seal(GROUP, partition, 1, at(0, partition=partition))
            monkeypatch.setattr(Link, "paths", paths)
            await store.delete(GROUP)
            assert [path.rpartition("/")[2] for path in server.objects(prefix)] == ["heart"]

    asyncio.run(play())


# --- for those who only look
def test_a_place_where_nothing_ever_was_is_an_error_for_those_who_only_look(server: Moto, url: str) -> None:
    async def play() -> None:
        store = from_url(url, create=False)
        for request in (store.groups(), store.peek(GROUP), store.actions(GROUP)):
            with pytest.raises(Misconfigured, match="holds nothing of evenflow"):
                await request
        async with opened(url) as other:
            await other.beat(GROUP, ME, None)
        assert await store.groups() == [GROUP]
        before = server.puts()
        assert await store.peek(GROUP) is not None
        assert server.puts() == before, "looking writes nothing"

    asyncio.run(play())


def test_a_prefix_may_be_shared_with_others(server: Moto, url: str, prefix: str) -> None:
    async def play() -> None:
        for path in ("theirs/checkpoints/0", "theirs.x/heart", "heart", "a.b.0123/heart"):
            server.ask("PUT", f"{moto.BUCKET}/{prefix}/{path}", b"not ours")
        with pytest.raises(Misconfigured, match="holds nothing of evenflow"):
            await from_url(url, create=False).groups()
        async with opened(url) as store:
            await store.beat(GROUP, ME, None)
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
            await store.beat(GROUP, ME, None)
            assert repr(store) == f"ObjectsStore('s3://{moto.BUCKET}/{prefix}')"
        finally:
            await store.aclose()
        async with opened(server.url(prefix)) as other:
            assert await other.groups() == [GROUP]

    asyncio.run(play())


@BOTH_WAYS
def test_errors_are_ours(server: Moto, url: str) -> None:
    async def play() -> None:
        async with opened(url) as store:
            await store.beat(GROUP, ME, None)
            for status, code in (("500", "InternalError"), ("429", "TooMany"), ("501", "NotImplemented"), ("418", "T")):
                with server.faulty(status, code):
                    for request in (store.peek(GROUP), store.groups(), store.checkpoints(GROUP), store.delete(GROUP)):
                        with pytest.raises(EvenflowError):
                            await request

    asyncio.run(play())
