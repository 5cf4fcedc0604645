"""What an object store makes of a bucket that lost writes, and of objects that were changed by hand."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.errors import Corrupt, LeaseLost, Misconfigured
from evenflow.model import Action, Member, Steering
from evenflow.stores.objects import group_object as objects_group
from evenflow.stores.objects.store import from_url
from evenflow.testing.store.scene import after, at, first, granted, present
from tests.unit.stores.bucket import NAME, SCHEMES
from tests.unit.stores.scenes import GROUP

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from evenflow.model import Lease
    from evenflow.stores.objects.store import ObjectsStore
    from tests.unit.stores.bucket import Bucket

ME = Member(id="me", nonce="1", ttl_s=8.0)
OTHER = structs.replace(ME, id="other", nonce="2")
ACTION = Action(kind="pause", by="anna", why="", what="")
ON_BOTH = pytest.mark.parametrize("scheme", SCHEMES)
MANY = objects_group.WRITES_KEPT + 5
"""More puts than a group object keeps the names of."""


def opened(bucket: Bucket, scheme: str = "s3") -> AbstractAsyncContextManager[ObjectsStore]:
    return aclosing(from_url(bucket.url(scheme)))


async def claim(store: ObjectsStore) -> Lease:
    me = present(await store.heartbeat(GROUP, ME, None))
    lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
    await store.seal(GROUP, "0", lease.epoch, at(0))
    return lease


# --- a bucket that lost writes
@ON_BOTH
def test_a_bucket_that_is_put_back_is_noticed_by_a_client_that_has_seen_more(bucket: Bucket, scheme: str) -> None:
    async def play() -> None:
        async with opened(bucket, scheme) as store:
            lease = await claim(store)
            cursor = (await store.heartbeat(GROUP, ME, None)).cursor
            backup = bucket.objects()
            for ordinal in (1, 2):
                cursor = (await store.heartbeat(GROUP, ME, cursor)).cursor
                await store.commit(GROUP, [at(ordinal, epoch=lease.epoch)])
            bucket.put_back(backup)
            (outcome,) = await store.swap(GROUP, [after(lease, None)])
            assert outcome.why == "history", "also before its next heartbeat"
            ledger = await store.heartbeat(GROUP, ME, cursor)
            assert (ledger.cursor.history, ledger.whole, ledger.leases) == (1, True, (lease,))
            assert (await store.commit(GROUP, [at(2, epoch=lease.epoch)]))[0].ok, "from memory"
            assert (await store.seal(GROUP, "0", (1 << 32) + 2, at(0))).ordinal == 2

    asyncio.run(play())


@ON_BOTH
@pytest.mark.parametrize("heartbeats", [3, MANY])
def test_a_bucket_that_is_put_back_is_noticed_though_others_have_gone_on(
    bucket: Bucket, scheme: str, heartbeats: int
) -> None:
    """They have written more than was lost; but a mark that went back, or another's name for a put, shows it."""

    async def play() -> None:
        async with opened(bucket, scheme) as store, opened(bucket, scheme) as other:
            await other.heartbeat(GROUP, OTHER, None)
            await store.heartbeat(GROUP, ME, None)
            backup = bucket.objects()
            since = (await store.heartbeat(GROUP, ME, None)).cursor
            bucket.put_back(backup)
            async with opened(bucket, scheme) as forgetful:  # it knows nothing of before
                for _ in range(heartbeats):
                    await forgetful.heartbeat(GROUP, structs.replace(ME, id="forgetful"), None)
            assert (await store.heartbeat(GROUP, ME, since)).cursor.history == 1

    asyncio.run(play())


@pytest.mark.parametrize("heartbeats", [3, MANY])
def test_a_claim_that_is_lost_is_noticed_though_others_have_gone_on(bucket: Bucket, heartbeats: int) -> None:
    """Its owner's mark is not lost with it: it heartbeat before."""

    async def play() -> None:
        async with opened(bucket) as store:
            await store.heartbeat(GROUP, OTHER, None)
            ledger = await store.heartbeat(GROUP, ME, None)
            backup = bucket.objects()
            assert (await store.swap(GROUP, [first("0", present(ledger).owner)]))[0].ok
            bucket.put_back(backup)
            async with opened(bucket) as forgetful:
                for _ in range(heartbeats):
                    await forgetful.heartbeat(GROUP, OTHER, None)
            found = await store.heartbeat(GROUP, ME, ledger.cursor)
            assert (found.cursor.history, found.whole, found.leases) == (1, True, ())

    asyncio.run(play())


def test_an_operator_request_that_is_lost_is_noticed_by_the_name_of_its_put(bucket: Bucket) -> None:
    async def play() -> None:
        async with opened(bucket) as store, opened(bucket) as other:
            await other.heartbeat(GROUP, ME, None)
            backup = bucket.objects()
            await store.steer(GROUP, Steering(pause=("0",)), ACTION)
            bucket.put_back(backup)
            async with opened(bucket) as forgetful:
                for _ in range(3):
                    await forgetful.heartbeat(GROUP, ME, None)
            await store.steer(GROUP, Steering(pause=("1",)), ACTION)
            ledger = await other.peek(GROUP)
            assert ledger is not None
            assert (ledger.cursor.history, set(ledger.state.pauses)) == (1, {"1"})

    asyncio.run(play())


def test_a_seal_that_was_on_its_way_when_the_bucket_was_emptied_makes_no_record(bucket: Bucket) -> None:
    """Whichever instance sends it, and even if no other has noticed yet."""

    async def play() -> None:
        async with opened(bucket) as store, opened(bucket) as other:
            me = present(await store.heartbeat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await other.heartbeat(GROUP, OTHER, None)
            bucket.put_back({})
            with pytest.raises(LeaseLost, match="lost writes"):
                await store.seal(GROUP, "0", lease.epoch, at(7))
            ledger = await other.heartbeat(GROUP, OTHER, None)
            assert (ledger.cursor.history, ledger.began) == (1, 0)
            assert (await store.commit(GROUP, [at(5, epoch=lease.epoch)]))[0].ok, "what is remembered is restored"
            assert (await other.seal(GROUP, "0", (1 << 32) + 1, at(0))).ordinal == 5

    asyncio.run(play())


@pytest.mark.parametrize("heartbeats", [3, MANY])
def test_a_late_heartbeat_of_who_has_left_puts_nothing(bucket: Bucket, heartbeats: int) -> None:
    async def play() -> None:
        async with opened(bucket) as store, opened(bucket) as other:
            me = present(await store.heartbeat(GROUP, ME, None))
            await store.heartbeat(GROUP, OTHER, None)
            await other.heartbeat(GROUP, structs.replace(me, leaving=True), None)
            for _ in range(heartbeats):
                await other.heartbeat(GROUP, OTHER, None)
            before = bucket.objects()
            for late in (me, ME):
                assert (await store.heartbeat(GROUP, late, None)).me is None
            assert bucket.objects() == before

    asyncio.run(play())


@pytest.mark.parametrize("order", ["one, two, three", "one, three, two"])
def test_a_bucket_that_is_put_back_is_one_loss_however_many_notice_it(bucket: Bucket, order: str) -> None:
    """What a client had seen before it is no proof of another, also when it looks again in the new history."""

    async def play() -> None:
        async with opened(bucket) as store, opened(bucket) as other:
            one, two, three = (structs.replace(ME, id=name, nonce=name) for name in ("one", "two", "three"))
            heartbeats = {"one": (store, one), "two": (store, two), "three": (other, three)}
            backup: dict[str, bytes] = {}
            for _ in range(3):
                for client, member in heartbeats.values():
                    await client.heartbeat(GROUP, member, None)
                backup = backup or bucket.objects()
            bucket.put_back(backup)
            for client, member in 3 * [heartbeats[name] for name in order.split(", ")]:
                assert (await client.heartbeat(GROUP, member, None)).cursor.history == 1
                await store.peek(GROUP)
                await other.peek(GROUP)

    asyncio.run(play())


@ON_BOTH
def test_a_bucket_that_is_emptied_is_noticed(bucket: Bucket, scheme: str) -> None:
    async def play() -> None:
        async with opened(bucket, scheme) as store:
            lease = await claim(store)
            since = (await store.heartbeat(GROUP, ME, None)).cursor
            bucket.put_back({})
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok, "it is restored"
            ledger = await store.heartbeat(GROUP, ME, since)
            assert (ledger.cursor.history, ledger.whole, ledger.leases) == (1, True, ())
            assert (await store.seal(GROUP, "0", (1 << 32) + 1, at(0))).ordinal == 1

    asyncio.run(play())


@ON_BOTH
def test_objects_that_are_written_again_as_they_were_are_no_loss(bucket: Bucket, scheme: str) -> None:
    """As by a copy of the bucket onto itself. A tag that is made from the content does not show it; a number does."""

    async def play() -> None:
        async with opened(bucket, scheme) as store:
            lease = await claim(store)
            since = (await store.heartbeat(GROUP, ME, None)).cursor
            bucket.put_back(bucket.objects())
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok
            ledger = await store.heartbeat(GROUP, ME, since)
            assert (ledger.cursor.history, ledger.whole) == (0, False)

    asyncio.run(play())


def test_a_snapshot_that_was_deleted_is_a_loss_of_leases(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_group, "ROUNDS_KEPT", 0)

    async def play() -> None:
        async with opened(bucket) as store:
            lease = await claim(store)
            since = (await store.heartbeat(GROUP, ME, None)).cursor
            for _ in range(3):
                since = (await store.heartbeat(GROUP, ME, since)).cursor
            snapshots = sorted(path for path in bucket.objects() if "/snapshots/" in path)
            assert len(snapshots) <= 2, "old ones are removed"
            async with opened(bucket) as other:
                assert (await other.heartbeat(GROUP, structs.replace(ME, id="new"), None)).leases == (lease,)
            for snapshot in snapshots:
                del bucket.kept[snapshot]
            async with opened(bucket) as other:
                with caplog.at_level(logging.WARNING):
                    ledger = await other.heartbeat(GROUP, structs.replace(ME, id="newer"), None)
                assert snapshots[-1].rpartition("/")[2] in caplog.text
                assert (ledger.cursor.history, ledger.leases) == (1, ())
            found = await store.heartbeat(GROUP, ME, since)
            assert (found.cursor.history, found.whole, found.leases) == (1, True, ())
            assert (await store.seal(GROUP, "0", 1 << 33, at(0))).epoch == 1 << 33, "checkpoints are kept"

    asyncio.run(play())


# --- objects that were changed by hand
@pytest.mark.parametrize("damage", [b"", b"not ours", b'{"some": "json"}', b"half of it", b"\x1f\x8bzip"])
def test_objects_that_are_damaged_are_named(bucket: Bucket, damage: bytes) -> None:
    async def play() -> None:
        await _fill(bucket)
        for path, content in bucket.objects().items():
            bucket.write(path, content[: len(content) // 2] if damage == b"half of it" else damage)
            async with opened(bucket) as store:
                with pytest.raises(Corrupt, match=rf"s3://{NAME}/{path} is damaged.*delete it"):
                    await _use(store, path)
            bucket.write(path, content)

    asyncio.run(play())


def test_objects_of_a_newer_version_are_left_alone(bucket: Bucket) -> None:
    async def play() -> None:
        await _fill(bucket)
        for path, content in bucket.objects().items():
            newer = content.replace(b'"evenflow":1', b'"evenflow":2,"new":{}', 1)
            bucket.write(path, newer)
            async with opened(bucket) as store:
                with pytest.raises(Misconfigured, match=r"newer evenflow \(layout 2"):
                    await _use(store, path)
            assert bucket.objects()[path] == newer
            bucket.write(path, content)

    asyncio.run(play())


async def _fill(bucket: Bucket) -> None:
    async with opened(bucket) as store:
        await claim(store)
        await store.record(GROUP, ACTION)
    assert {path.rpartition("/")[2] for path in bucket.objects()} > {"group", "actions"}


async def _use(store: ObjectsStore, path: str) -> object:
    """A request that reads this object."""
    name = path.rpartition("/")[2]
    if name == "actions":
        return await store.steer(GROUP, Steering(pause=("0",)), ACTION)
    return await (store.heartbeat(GROUP, ME, None) if name == "group" else store.seal(GROUP, "0", 2, at(0)))
