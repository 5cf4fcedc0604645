"""One object that is changed by compare-and-set, with the version that this client knows.

This is the store's only loop of read, decide and put. The decision gets the known value, which may be out of date: then
the put is refused. If the decision itself rejects the known value, it is repeated on a fresh read.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from evenflow.errors import EvenflowError, StoreUnavailable
from evenflow.stores.objects.client import ObjectUnchanged, PutConflict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from evenflow.stores.objects.client import BucketClient, ObjectVersion

T = TypeVar("T")
R = TypeVar("R")

BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.01, 0.5
"""Random backoff after a conflicting put: up to the first value, doubled each time up to the second."""
LIMIT_FACTOR = 5
"""The time limit of a change with all its attempts, as a multiple of the request timeout."""


class ObjectFormat(Protocol[T]):
    """Converts between an object's bytes and its value."""

    async def load(self, data: bytes | None, known: T | None) -> T:
        """`data` is None if the object does not exist. `known` is the value that this client knew before."""
        ...

    async def dump(self, before: T, after: T) -> bytes: ...

    def landed(self, wanted: T, found: T) -> bool | None:
        """Whether `found` is the result of our own put of `wanted`; None if that can no longer be determined."""
        ...


class VersionedObject(Generic[T]):
    def __init__(self, client: BucketClient, path: str, format: ObjectFormat[T]) -> None:
        self._client = client
        self._path = path
        self._format = format
        self._known: T | None = None
        self._version: ObjectVersion | None = None
        self._is_current = False
        """No conflict since this client last put or read the object."""
        self.is_quiet = False
        """The last read returned what this client had put: no other client is writing."""
        self._is_mine = False
        self._current_at_s = 0.0
        self._lock = asyncio.Lock()

    @property
    def known(self) -> T | None:
        """The value that this client last saw, or None before its first read. Others may have changed it since."""
        return self._known

    def is_fresh(self, within_s: float) -> bool:
        """Whether it was put or read within this time, by the event loop's clock."""
        return self._is_current and asyncio.get_running_loop().time() - self._current_at_s < within_s

    async def look(self) -> T:
        """Reads the current value."""
        async with _limited(self._client), self._lock:
            return await self._read()

    async def change(self, decide: Callable[[T], tuple[T | None, R]], *, trust: bool = True, again: bool = True) -> R:
        """Puts the value that `decide` returns and returns its answer; if it returns no value, returns the answer at
        once.

        `decide` may be called several times. With `trust` the first call may get the known value without a read. With
        `again` it may also be called again when it is unknown whether an earlier put took effect.
        """
        async with _limited(self._client), self._lock:
            is_fresh = not (trust and self._is_current)
            known = await self._read() if is_fresh or self._known is None else self._known
            for attempt in count():
                try:
                    wanted, answer = decide(known)
                except EvenflowError:
                    if is_fresh:
                        raise
                    wanted = None
                if wanted is None and is_fresh:
                    return answer
                refused = await self._put(known, wanted) if wanted is not None else None
                if wanted is not None and refused is None:
                    return answer
                if refused is not None:
                    await _back_off(attempt)
                known, is_fresh = await self._read(), True
                if wanted is not None and refused is not None and self._landed(refused, wanted, known, again=again):
                    return answer
            raise AssertionError

    # --- private
    def _landed(self, refused: PutConflict, wanted: T, found: T, *, again: bool) -> bool:
        """Whether an earlier attempt of the same put took effect."""
        landed = not refused.is_certain and self._format.landed(wanted, found)
        if landed is None and not again:
            raise StoreUnavailable(
                f"The store {self._client.options}: a response was lost, and there were too many writes since then to"
                " know whether the request took effect."
            )
        return bool(landed)

    async def _read(self) -> T:
        self._is_current = False
        try:
            found = await self._client.get(self._path, self._version)
        except ObjectUnchanged:
            self.is_quiet = self._is_mine
        else:
            self.is_quiet = self._is_mine = False
            self._known = await self._format.load(found.data if found else None, self._known)
            self._version = found.version if found else None
        assert self._known is not None
        self._hold(self._known, self._version)
        return self._known

    async def _put(self, before: T, wanted: T) -> PutConflict | None:
        """Returns the conflict if another client seems to have written first."""
        self._is_current = False
        data = await self._format.dump(before, wanted)
        try:
            version = await self._client.put(self._path, data, self._version)
        except PutConflict as refused:
            self._version = None  # a tag computed from the content cannot detect an identical rewrite
            return refused
        self._hold(wanted, version)
        self._is_mine = True
        return None

    def _hold(self, known: T, version: ObjectVersion | None) -> None:
        self._known, self._version, self._is_current = known, version, True
        self._current_at_s = asyncio.get_running_loop().time()


@asynccontextmanager
async def _limited(client: BucketClient) -> AsyncIterator[None]:
    """Limits the total time of a change when many clients compete for the object."""
    try:
        async with asyncio.timeout(LIMIT_FACTOR * client.options.timeout_s):
            yield
    except TimeoutError:
        raise StoreUnavailable(
            f"The store {client.options}: write contention; gave up after {LIMIT_FACTOR * client.options.timeout_s:g}"
            " s. If this persists, increase heartbeat_s of the instances."
        ) from None


async def _back_off(attempt: int) -> None:
    most_s = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2**attempt)
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s * secrets.randbelow(1000) / 1000):
            await asyncio.Event().wait()
