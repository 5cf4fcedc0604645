"""The ranges of a container, as last listed, and the successors of ranges that were split or merged.

The service reports a range as gone before it lists the children, and also while it moves a range. So a request is
retried until the list confirms the split or the merge.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from evenflow.drivers.cosmos.client import pause_after
from evenflow.drivers.cosmos.positions import Range
from evenflow.errors import NoSuchPartition, RangeGone, SourceUnavailable
from evenflow.model import Partition
from evenflow.sources.cosmos.client import RETRY_S, read_ranges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.drivers.cosmos.client import Link
    from evenflow.model import PartitionId

T = TypeVar("T")


class ContainerRanges:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._there: dict[PartitionId, Range] = {}
        self._seen: dict[PartitionId, Range] = {}
        """All ranges that were ever listed."""

    async def listed(self) -> Sequence[Range]:
        """Lists the existing ranges."""
        found = await read_ranges(self._link)
        self._there = {one.id: one for one in found}
        self._seen |= self._there
        return found

    async def known(self) -> Sequence[Range]:
        """The ranges as last listed."""
        return list(self._there.values()) or await self.listed()

    def forget(self) -> None:
        """The container was recreated."""
        self._there, self._seen = {}, {}

    async def get(self, id: PartitionId) -> Range:
        """A range that exists as far as known; `RangeGone` if it no longer exists."""
        if id not in self._there:
            await self.listed()
            if id not in self._there:
                raise self._gone(id)
        return self._there[id]

    async def use(self, id: PartitionId, call: Callable[[Range], Awaitable[T]]) -> T:
        """Calls a function with the range. Raises `RangeGone` when the split or merge is certain."""
        loop = asyncio.get_running_loop()
        ends_s, attempt = loop.time() + RETRY_S, 0
        while True:
            try:
                return await call(await self.get(id))
            except RangeGone as error:
                await self.listed()
                if id not in self._there:
                    raise self._gone(id) from error
                attempt += 1
                later = SourceUnavailable(f"{error} But it is still listed.")
                pause_s = pause_after(later, attempt)
                if loop.time() + pause_s > ends_s:
                    raise later from error
            await self._link.rest(pause_s)

    def successors(self, id: PartitionId) -> Sequence[Range]:
        """The ranges that continue a split or merged range, ordered by their keys."""
        return sorted((one for one in self._there.values() if id in one.parents), key=lambda one: one.span)

    def children(self, id: PartitionId) -> tuple[Partition, ...]:
        return tuple(Partition(one.id, one.parents) for one in self.successors(id))

    def seen(self, id: PartitionId) -> Range | None:
        """The range, even if it no longer exists; None if it was never listed here."""
        return self._seen.get(id)

    def span_of_removed(self, id: PartitionId) -> Range:
        """A range that no longer exists: as it was last listed, or with the span of its successors."""
        successors = self.successors(id)
        return self._seen.get(id) or Range(id, (successors[0].span[0], successors[-1].span[1]), successors[0].parents)

    def _gone(self, id: PartitionId) -> RangeGone | NoSuchPartition:
        children = tuple(one.id for one in self.successors(id))
        if not children:
            there = ", ".join(self._there)
            unknown = NoSuchPartition(
                f"The {self._link} has no range {id!r}, and none that came from it. Its ranges are: {there}. If the"
                f" lease store has a lease for {id!r}, it was created by hand or for another container: delete it."
            )
            unknown.partition = id
            return unknown
        error = RangeGone(f"The range {id} was split or merged. Continue with {', '.join(children)}.")
        error.children = children
        return error
