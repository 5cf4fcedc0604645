"""Which ranges a container has, as far as it was listed, and what has become of those that it had.

The service says of a range that it is gone before it lists its children, and while it moves one: so it is looked again
until the list says so, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from evenflow.drivers.cosmos.client import pause_after
from evenflow.drivers.cosmos.positions import Range
from evenflow.errors import NoSuchPartition, RangeGone, SourceUnavailable
from evenflow.model import Partition
from evenflow.sources.cosmos.client import PATIENCE_S, read_ranges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.drivers.cosmos.client import Link
    from evenflow.model import PartitionId

T = TypeVar("T")


class Ranges:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._there: dict[PartitionId, Range] = {}
        self._seen: dict[PartitionId, Range] = {}
        """All that were ever listed."""

    async def listed(self) -> Sequence[Range]:
        """All there are now."""
        found = await read_ranges(self._link)
        self._there = {one.id: one for one in found}
        self._seen |= self._there
        return found

    async def known(self) -> Sequence[Range]:
        """Those that there were when it was last looked."""
        return list(self._there.values()) or await self.listed()

    def forget(self) -> None:
        """They were another container's."""
        self._there, self._seen = {}, {}

    async def get(self, id: PartitionId) -> Range:
        """One that is there, or was when it was last looked; `RangeGone` when it is not, and was."""
        if id not in self._there:
            await self.listed()
            if id not in self._there:
                raise self._gone(id)
        return self._there[id]

    async def use(self, id: PartitionId, call: Callable[[Range], Awaitable[T]]) -> T:
        """What is asked of a range. `RangeGone` when it is certain that it was split or merged."""
        loop = asyncio.get_running_loop()
        ends_s, attempt = loop.time() + PATIENCE_S, 0
        while True:
            try:
                return await call(await self.get(id))
            except RangeGone as error:
                await self.listed()
                if id not in self._there:
                    raise self._gone(id) from error
                attempt += 1
                later = SourceUnavailable(f"{error} But it is still listed as it was.")
                pause_s = pause_after(later, attempt)
                if loop.time() + pause_s > ends_s:
                    raise later from error
            await self._link.rest(pause_s)

    def heirs(self, id: PartitionId) -> Sequence[Range]:
        """Those that go on with a range that is gone, in the order of the space."""
        return sorted((one for one in self._there.values() if id in one.parents), key=lambda one: one.span)

    def children(self, id: PartitionId) -> tuple[Partition, ...]:
        return tuple(Partition(one.id, one.parents) for one in self.heirs(id))

    def seen(self, id: PartitionId) -> Range | None:
        """One that is there, or was; None when it was never seen here."""
        return self._seen.get(id)

    def seen_in_heirs(self, id: PartitionId) -> Range:
        """One that is gone: as it was, or where it was never seen, with all that its heirs have."""
        heirs = self.heirs(id)
        return self._seen.get(id) or Range(id, (heirs[0].span[0], heirs[-1].span[1]), heirs[0].parents)

    def _gone(self, id: PartitionId) -> RangeGone | NoSuchPartition:
        children = tuple(one.id for one in self.heirs(id))
        if not children:
            there = ", ".join(self._there)
            unknown = NoSuchPartition(
                f"The {self._link} has no range {id!r}, and none that came from it. It has: {there}. If the lease store"
                f" has a lease for {id!r}, somebody made it by hand, or for another container: delete that one."
            )
            unknown.partition = id
            return unknown
        error = RangeGone(f"The range {id} is gone: it was split or merged. Go on in {', '.join(children)}.")
        error.children = children
        return error
