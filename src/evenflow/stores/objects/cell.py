"""One object that is changed by compare-and-set, and what this client last knew of it.

The one loop of this store that reads, decides and puts. Whoever decides is given what is known, which may be out of
date: a put on it is refused then, and what it would refuse itself is decided again on what was read just now.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from evenflow.errors import EvenflowError, StoreUnavailable
from evenflow.stores.objects.client import Conflict, Unchanged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from evenflow.stores.objects.client import Link, Version

T = TypeVar("T")
R = TypeVar("R")

REST_FIRST_S, REST_MOST_S = 0.01, 0.5
"""Before a put is tried again that somebody else was faster than: up to the first, then twice as long each time."""
LIMIT_FACTOR = 5
"""A change, with all its tries, may take so many times what a request may."""


class Shape(Protocol[T]):
    """How a cell's value is made from an object's bytes, and the bytes from the value."""

    async def load(self, data: bytes | None, known: T | None) -> T:
        """`data` None: there is no object. `known` is what this client knew before."""
        ...

    async def dump(self, before: T, after: T) -> bytes: ...

    def landed(self, wanted: T, found: T) -> bool | None:
        """Whether `found` came about by our own put of `wanted`; None when that cannot be told any more."""
        ...


class Cell(Generic[T]):
    def __init__(self, link: Link, path: str, shape: Shape[T]) -> None:
        self._link = link
        self._path = path
        self._shape = shape
        self._known: T | None = None
        self._version: Version | None = None
        self._is_current = False
        """Nothing was heard to the contrary: it is what this client put or read last."""
        self.is_quiet = False
        """At the last look it was what this client had put: nobody else puts anything."""
        self._is_mine = False
        self._current_at_s = 0.0
        self._lock = asyncio.Lock()

    @property
    def known(self) -> T | None:
        """As this client knew it last; None before its first look. Others may have changed it since."""
        return self._known

    def is_fresh(self, within_s: float) -> bool:
        """It was put or read not longer ago than this, by the event loop's clock."""
        return self._is_current and asyncio.get_running_loop().time() - self._current_at_s < within_s

    async def look(self) -> T:
        """What it is now."""
        async with _limited(self._link), self._lock:
            return await self._read()

    async def change(self, decide: Callable[[T], tuple[T | None, R]], *, trust: bool = True, again: bool = True) -> R:
        """What `decide` says, once the value it wants is there, or at once where it wants none.

        It may be asked several times. With `trust` it may be asked first of what is known without a look; with `again`
        it may be asked again also when it cannot be told whether an earlier put took effect.
        """
        async with _limited(self._link), self._lock:
            is_fresh = not (trust and self._is_current)
            known = await self._read() if is_fresh or self._known is None else self._known
            for tries in count():
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
                    await _rest(tries)
                known, is_fresh = await self._read(), True
                if wanted is not None and refused is not None and self._landed(refused, wanted, known, again=again):
                    return answer
            raise AssertionError

    # --- inside
    def _landed(self, refused: Conflict, wanted: T, found: T, *, again: bool) -> bool:
        """Whether an earlier try of the same put made the object what it is, or what it was since then."""
        landed = not refused.is_certain and self._shape.landed(wanted, found)
        if landed is None and not again:
            raise StoreUnavailable(
                f"The store {self._link.address}: an answer was lost, and so many have written since that it cannot be"
                " told whether the request took effect."
            )
        return bool(landed)

    async def _read(self) -> T:
        self._is_current = False
        try:
            found = await self._link.get(self._path, self._version)
        except Unchanged:
            self.is_quiet = self._is_mine
        else:
            self.is_quiet = self._is_mine = False
            self._known = await self._shape.load(found.data if found else None, self._known)
            self._version = found.version if found else None
        assert self._known is not None
        self._hold(self._known, self._version)
        return self._known

    async def _put(self, before: T, wanted: T) -> Conflict | None:
        """A conflict when somebody else was faster; or so it seems."""
        self._is_current = False
        data = await self._shape.dump(before, wanted)
        try:
            version = await self._link.put(self._path, data, self._version)
        except Conflict as refused:
            self._version = None  # a tag made from the content says "unchanged" of an object that was written again
            return refused
        self._hold(wanted, version)
        self._is_mine = True
        return None

    def _hold(self, known: T, version: Version | None) -> None:
        self._known, self._version, self._is_current = known, version, True
        self._current_at_s = asyncio.get_running_loop().time()


@asynccontextmanager
async def _limited(link: Link) -> AsyncIterator[None]:
    """Around a change: the many who want one at the same time must not wait for ever."""
    try:
        async with asyncio.timeout(LIMIT_FACTOR * link.address.timeout_s):
            yield
    except TimeoutError:
        raise StoreUnavailable(
            f"The store {link.address}: too many want to change the same at once, and this one has not come its way."
            " If this goes on, let instances heartbeat less often."
        ) from None


async def _rest(tries: int) -> None:
    most_s = min(REST_MOST_S, REST_FIRST_S * 2**tries)
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s * secrets.randbelow(1000) / 1000):
            await asyncio.Event().wait()
