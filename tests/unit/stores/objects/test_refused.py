"""What an object store makes of each answer that a server may give instead of doing what it was asked."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import EvenflowError, Misconfigured, StorageFull, StoreUnavailable
from evenflow.model import Member
from evenflow.stores.objects.store import from_url
from evenflow.testing.store.scene import at, first, granted, present
from tests.servers.processes import free_port
from tests.unit.stores.bucket import KEY, SCHEMES, TOKEN
from tests.unit.stores.scenes import GROUP

if TYPE_CHECKING:
    from evenflow.model import Lease
    from evenflow.stores.objects.store import ObjectsStore
    from tests.unit.stores.bucket import Bucket

ME = Member(id="me", nonce="1", ttl_s=8.0)
MORE = "&timeout_s=30"
ON_BOTH = pytest.mark.parametrize("scheme", SCHEMES)


async def claim(store: ObjectsStore) -> Lease:
    me = present(await store.heartbeat(GROUP, ME, None))
    lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
    await store.seal(GROUP, "0", lease.epoch, at(0))
    return lease


@ON_BOTH
def test_a_server_that_is_too_busy_is_asked_again(bucket: Bucket, scheme: str) -> None:
    async def play() -> None:
        async with aclosing(from_url(bucket.url(scheme) + MORE)) as store:
            lease = await claim(store)
            with bucket.refusing(503, "SlowDown", every=2):
                for ordinal in range(1, 6):
                    assert (await store.commit(GROUP, [at(ordinal, epoch=lease.epoch)]))[0].ok
                    assert (await store.heartbeat(GROUP, ME, None)).me is not None
            with bucket.refusing(503, "SlowDown"), pytest.raises(StoreUnavailable, match="SlowDown"):
                await store.heartbeat(GROUP, ME, None)
            assert (await store.heartbeat(GROUP, ME, None)).leases == (lease,)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("status", "code"), [(507, "XMinioStorageFull"), (403, "QuotaExceeded"), (507, "InsufficientStorage")]
)
def test_a_server_without_space_is_full_until_there_is_some(bucket: Bucket, status: int, code: str) -> None:
    async def play() -> None:
        async with aclosing(from_url(bucket.url())) as store:
            lease = await claim(store)
            with bucket.refusing(status, code), pytest.raises(StorageFull, match=f"no room to write: {code}"):
                await store.commit(GROUP, [at(1, epoch=lease.epoch)])
            assert (await store.commit(GROUP, [at(2, epoch=lease.epoch)]))[0].ok

    asyncio.run(play())


@ON_BOTH
def test_a_server_that_obeys_no_conditions_is_refused_before_anything_is_written(bucket: Bucket, scheme: str) -> None:
    async def play() -> None:
        bucket.obeys_conditions = False
        async with aclosing(from_url(bucket.url(scheme))) as store:
            with pytest.raises(Misconfigured, match="conditional puts"):
                await store.heartbeat(GROUP, ME, None)
            assert bucket.objects() == {}

    asyncio.run(play())


# --- credentials
@pytest.mark.parametrize(
    ("scheme", "status", "code"),
    [
        ("s3", 403, "InvalidAccessKeyId"),
        ("s3", 403, "SignatureDoesNotMatch"),
        ("s3", 403, "AccessDenied"),
        ("s3", 400, "ExpiredToken"),
        ("gs", 401, "AuthenticationRequired"),
        ("gs", 403, "AccessDenied"),
    ],
)
def test_credentials_that_are_refused_are_named_and_never_shown(
    bucket: Bucket, scheme: str, status: int, code: str
) -> None:
    async def play() -> None:
        async with aclosing(from_url(bucket.url(scheme))) as store:
            with bucket.refusing(status, code), pytest.raises(Misconfigured, match=f"credentials.*{code}") as caught:
                await store.heartbeat(GROUP, ME, None)
            shown = [repr(store)]
            error: BaseException | None = caught.value
            while error is not None:
                shown.append(str(error))
                error = error.__cause__
            assert not [text for text in shown if TOKEN in text or KEY in text]

    asyncio.run(play())


@ON_BOTH
def test_credentials_that_are_refused_after_they_were_good_are_an_outage(bucket: Bucket, scheme: str) -> None:
    async def play() -> None:
        async with aclosing(from_url(bucket.url(scheme))) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            for code in ("AccessDenied", "NoSuchBucket"):
                with bucket.refusing(403, code), pytest.raises(StoreUnavailable, match="goes on by itself"):
                    await store.heartbeat(GROUP, present(ledger), ledger.cursor)
            assert present(await store.heartbeat(GROUP, present(ledger), ledger.cursor))

    asyncio.run(play())


# --- any other answer, and none
@ON_BOTH
@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (429, "TooMany"), (501, "Lacks"), (418, "T")])
def test_errors_are_ours(bucket: Bucket, scheme: str, status: int, code: str) -> None:
    async def play() -> None:
        async with aclosing(from_url(bucket.url(scheme))) as store:
            await store.heartbeat(GROUP, ME, None)
            with bucket.refusing(status, code):
                for request in (store.peek(GROUP), store.groups(), store.checkpoints(GROUP), store.delete(GROUP)):
                    with pytest.raises(EvenflowError):
                        await request

    asyncio.run(play())


def test_an_endpoint_where_nothing_listens_is_an_outage_with_its_place() -> None:
    async def play() -> None:
        keys = f"access_key_id={KEY}&secret_access_key={TOKEN}"
        url = f"s3://leases/evenflow?endpoint=http://127.0.0.1:{free_port()}&region=eu-north-1&allow_http=yes&{keys}"
        async with aclosing(from_url(url)) as store:
            with pytest.raises(StoreUnavailable, match="s3://leases/evenflow"):
                await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())


def test_a_store_that_was_closed_says_so(bucket: Bucket) -> None:
    async def play() -> None:
        async with aclosing(from_url(bucket.url())) as store:
            await store.heartbeat(GROUP, ME, None)
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())
