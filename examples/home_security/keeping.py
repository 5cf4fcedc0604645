"""One partition's aggregates while one instance owns it: loads them, counts, writes, and only then checkpoints.

The argument, in short (README.md has it at length):

1.  What a recent part says follows from its partition's events up to `upto` (tallying.py).
2.  A checkpoint is made only after a recent part that covers it was written. So whoever takes a partition over finds a
    recent part with `upto` at or after the checkpoint it starts from, goes on from that, and passes over what comes
    again up to there: nothing is lost, nothing is counted twice.
3.  A new owner's first write puts its epoch into the recent part, on the condition that nobody has changed it since it
    was loaded. From then on an older owner's write is refused, whenever it arrives. What an older owner wrote before
    that, the new one has loaded.
4.  Minutes move into a bucket's day only when they are final, before they leave the recent part, and the day tells up
    to which minute it has them: a move into the day that is repeated, by whomever, changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from zlib import crc32

from evenflow.errors import LeaseLost
from examples.home_security.blobs import Conflict
from examples.home_security.folding import empty_day, folded
from examples.home_security.layout import Day, Recent, day_name, pack, recent_name, unpack
from examples.home_security.reports import MINUTE_MS
from examples.home_security.tallying import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event
    from examples.home_security.blobs import Blobs, Version

FOLD_MS = 5 * MINUTE_MS
"""How much time, by the homes' clocks, passes between two rewrites of a bucket's day."""
FOLDS_AT_ONCE = 4


class Keeper:
    """Of one partition, under one epoch. Its calls must not overlap."""

    def __init__(self, blobs: Blobs, partition: str, epoch: int) -> None:
        self._blobs = blobs
        self._epoch = epoch
        self._name = recent_name(partition)
        self.tally = Tally(partition)
        self._version: Version | None = None
        self._written_upto = -1
        self._fold_at_ms: dict[int, int] = {}

    @property
    def is_dirty(self) -> bool:
        """There is something that no blob has yet."""
        return self.tally.upto > self._written_upto

    async def start(self) -> None:
        """Load what there is, and make it this owner's own."""
        while True:
            await self._load()
            try:
                return await self._put()
            except Conflict:
                # An older owner was in the middle of a write. It has no second one: what is there now is its last.
                continue

    def add(self, events: Sequence[Event]) -> list[int]:
        return self.tally.add(events)

    async def write(self) -> None:
        """All that was counted is in blobs when this returns. LeaseLost when there is a newer owner."""
        await self._fold()
        try:
            await self._put()
        except Conflict:
            await self._settle()

    async def _load(self) -> None:
        found = await self._blobs.get(self._name)
        self._version = found.version if found is not None else None
        if found is not None:
            recent = unpack(found.data, Recent, self._name)
            self._check(recent)
            self.tally = Tally.loaded(recent)
            self._written_upto = recent.upto

    async def _put(self) -> None:
        # What is counted while this waits is not in it.
        upto, data = self.tally.upto, pack(self.tally.recent(self._epoch))
        self._version = await self._blobs.put(self._name, data, self._version)
        self._written_upto = upto

    async def _settle(self) -> None:
        """Somebody else has written; or our own put got there although it seemed not to, and was tried again."""
        found = await self._blobs.get(self._name)
        if found is None:
            raise LeaseLost(f"The blob {self._name} was removed while it was in use.")
        self._check(unpack(found.data, Recent, self._name))
        self._version = found.version
        await self._put()

    def _check(self, recent: Recent) -> None:
        if recent.epoch > self._epoch:
            raise LeaseLost(f"Partition {recent.partition} has a newer owner, of epoch {recent.epoch}.")

    async def _fold(self) -> None:
        due = [bucket for bucket in self.tally.buckets if self._is_due(bucket)]
        for first in range(0, len(due), FOLDS_AT_ONCE):
            await asyncio.gather(*[self._fold_bucket(bucket) for bucket in due[first : first + FOLDS_AT_ONCE]])

    def _is_due(self, bucket: int) -> bool:
        """Each bucket at its own time, so that they do not all come at once."""
        now_ms = self.tally.watermark_ms
        if bucket not in self._fold_at_ms:
            self._fold_at_ms[bucket] = now_ms + crc32(day_name(self.tally.partition, bucket).encode()) % FOLD_MS
        if now_ms < self._fold_at_ms[bucket]:
            return False
        self._fold_at_ms[bucket] = now_ms + FOLD_MS
        return True

    async def _fold_bucket(self, bucket: int) -> None:
        partition, until = self.tally.partition, self.tally.final
        name, homes = day_name(partition, bucket), self.tally.final_spans(bucket)
        while True:
            found = await self._blobs.get(name)
            before = unpack(found.data, Day, name) if found is not None else empty_day(partition, bucket)
            after = folded(before, homes, until)
            if after is before:
                break
            try:
                await self._blobs.put(name, pack(after), found.version if found is not None else None)
            except Conflict:
                continue
            break
        self.tally.forget_before(bucket, until)
