"""What becomes of 409 ConditionalRequestConflict, which S3 answers when two conditional puts of one object meet.

A server that handles one request after the other, as the one of the integration tests does, never says it. The bucket
in this process says it when a test asks for it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from evenflow.model import Group, Member
from evenflow.stores.objects.client import BucketClient, ObjectVersion, PutConflict
from evenflow.stores.objects.options import options_from_url
from evenflow.stores.objects.store import from_url
from evenflow.testing.store.scene import at, first, granted, present

if TYPE_CHECKING:
    from tests.unit.stores.bucket import Bucket

GROUP = Group("homes.example", "sensors", "alerts")
ME = Member(id="me", nonce="of me", ttl_s=8.0, heartbeat_s=2.0, host="machine-1", pid=4711, version="1.0")
ALWAYS = 1_000


def test_a_put_of_a_new_object_is_a_conflict_that_made_nothing(bucket: Bucket) -> None:
    async def main() -> None:
        link = BucketClient(options_from_url(bucket.url()))
        bucket.conflicts = 1
        with pytest.raises(PutConflict) as found:
            await link.put("x", b"1", None)
        assert found.value.is_certain, "it was sent once, so its outcome is certain"
        assert (await link.get("x"), bucket.puts) == (None, 1)
        await link.put("x", b"1", None)

    asyncio.run(main())


def test_a_put_on_a_version_is_tried_again_and_in_the_end_a_conflict(bucket: Bucket) -> None:
    async def main() -> None:
        link = BucketClient(options_from_url(bucket.url()))
        known = await link.put("x", b"1", None)
        bucket.conflicts = 2
        known = await link.put("x", b"2", known)
        assert isinstance(known, ObjectVersion)
        bucket.conflicts = ALWAYS
        with pytest.raises(PutConflict) as found:
            await link.put("x", b"3", known)
        assert not found.value.is_certain, "it was sent more than once"
        found_now = await link.get("x")
        assert found_now is not None
        assert found_now.data == b"2"

    asyncio.run(main())


def test_whatever_is_disputed_once_is_done_all_the_same_and_once(bucket: Bucket) -> None:
    async def main() -> None:
        async with aclosing(from_url(bucket.url())) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            bucket.conflicts = 1
            assert present(await store.heartbeat(GROUP, me, None)).mark == me.mark + 1
            bucket.conflicts = 1
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            assert lease.epoch == 1
            bucket.conflicts = 1
            await store.seal(GROUP, "0", lease.epoch, at(0))
            bucket.conflicts = 1
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok
            assert bucket.conflicts == 0

    asyncio.run(main())
