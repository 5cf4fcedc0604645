"""One partition's aggregates while one instance owns it: loads them, counts, writes, and only then checkpoints.

The argument, in short (README.md has it at length):

1.  What a recent part says follows from its partition's events up to `upto` (tallying.py).
2.  A checkpoint is made only after a recent part that covers it was written. So the next owner of a partition finds a
    recent part with `upto` at or after the checkpoint it starts from, continues there, and skips events that it gets
    again up to `upto`: nothing is lost, nothing is counted twice.
3.  A new owner's first write puts its epoch into the recent part, on the condition that it has not changed since it
    was loaded. From then on an older owner's write is rejected, whenever it arrives. The new owner has loaded what an
    older owner wrote before that.
4.  A recent part that is damaged, removed, or behind the checkpoint is no loss while its owner has it in memory, or the
    hub still has its events: it is written, or counted, again. So is a day. What cannot be restored is reported as
    lost: in the day if it belongs to a day; for a recent part, the partition stops until an operator decides.
5.  Minutes move into a bucket's day only when they are final, before they leave the recent part, and the day says up
    to which minute it has them. So repeating a move into the day changes nothing, whichever instance does it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING
from zlib import crc32

from evenflow.errors import Corrupt, LeaseLost, PartitionHalted
from examples.home_security.blobs import Conflict
from examples.home_security.folding import empty_day, folded
from examples.home_security.history import recount
from examples.home_security.layout import (
    FOREVER,
    Day,
    Recent,
    day_name,
    lost_name,
    pack,
    recent_name,
    unpack,
    unpack_hour,
)
from examples.home_security.reports import MINUTE_MS
from examples.home_security.tallying import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event
    from examples.home_security.blobs import Blobs, Found, Version
    from examples.home_security.history import History

log = logging.getLogger(__name__)

FOLD_MS = 5 * MINUTE_MS
"""How much time, by the homes' clocks, passes between two rewrites of a bucket's day."""
FOLDS_AT_ONCE = 4


class Keeper:
    """Of one partition, under one epoch. Its calls must not overlap."""

    def __init__(self, blobs: Blobs, partition: str, epoch: int, history: History | None = None) -> None:
        """Without its history, nothing that is lost can be counted again."""
        self._blobs = blobs
        self._history = history
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

    async def start(self, after: int = -1) -> None:
        """Load the recent part and fence older owners; this owner continues after this sequence.

        PartitionHalted if the recent part lacks events up to there that the hub no longer has.
        """
        while True:
            await self._load()
            if self.tally.upto < after:
                await self._count_again(after)
            try:
                return await self._put()
            except Conflict:
                # An older owner was in the middle of a write. It was its last one, so the next load has all.
                continue

    def add(self, events: Sequence[Event]) -> list[int]:
        return self.tally.add(events)

    async def write(self) -> None:
        """Write all counts to blobs. LeaseLost if there is a newer owner."""
        await self._fold()
        try:
            await self._put()
        except Conflict:
            await self._settle()

    async def _load(self) -> None:
        found = await self._blobs.get(self._name)
        self._version = found.version if found is not None else None
        self.tally = Tally(self.tally.partition)
        if found is not None and (recent := self._readable(found)) is not None:
            self._check(recent)
            self.tally = Tally.loaded(recent)
        self._written_upto = self.tally.upto

    def _readable(self, found: Found) -> Recent | None:
        """None when it is damaged."""
        try:
            recent = unpack(found.data, Recent, self._name)
            for number in recent.homes:
                recent.home(number)
        except Corrupt as error:
            log.warning("%s Creating it again.", error)
            return None
        return recent

    async def _count_again(self, after: int) -> None:
        """Count the events that the recent part lacks up to the checkpoint. They must include all minutes that no day
        has."""
        had, whole = self.tally.upto, await self._recounted(self.tally, after)
        days = {bucket: (await self._day(bucket))[0] for bucket in self.tally.buckets} if whole else {}
        if whole == FOREVER or any(day is None or day.until < whole for day in days.values()):
            raise PartitionHalted(
                f"The blob {self._name} is damaged, removed or too old: it has events up to {had}, the checkpoint is at"
                f" {after}, and the hub no longer has all in between. Put a copy back; or accept the loss:"
                f" python -m examples.home_security.accept_loss FOLDER {self.tally.partition}"
            )
        self.tally.until |= {bucket: day.until for bucket, day in days.items() if day is not None}
        log.warning("%s lacked events %d to %d: counted again from the hub.", self._name, had + 1, after)

    async def _recounted(self, tally: Tally, upto: int) -> int:
        """Continue a tally; returns the minute from which on it has all reports."""
        return await recount(self._history, tally, upto) if self._history is not None else FOREVER

    async def _put(self) -> None:
        # What is counted while this waits is not in it.
        upto, data = self.tally.upto, pack(self.tally.recent(self._epoch))
        self._version = await self._blobs.put(self._name, data, self._version)
        self._written_upto = upto

    async def _settle(self) -> None:
        """After a conflict: another owner has written, or our own put succeeded without a response and was retried."""
        found = await self._blobs.get(self._name)
        if found is None:
            log.warning("The blob %s was removed while it was in use: written again.", self._name)
        elif (recent := self._readable(found)) is not None:
            self._check(recent)
        # The owner of a damaged or missing blob is unknown. If there is a newer owner, it overwrites this blob in turn.
        self._version = found.version if found is not None else None
        await self._put()

    def _check(self, recent: Recent) -> None:
        if recent.epoch > self._epoch:
            raise LeaseLost(f"Partition {recent.partition} has a newer owner, of epoch {recent.epoch}.")

    async def _fold(self) -> None:
        due = [bucket for bucket in self.tally.buckets if self._is_due(bucket)]
        for first in range(0, len(due), FOLDS_AT_ONCE):
            some = due[first : first + FOLDS_AT_ONCE]
            if not all(await asyncio.gather(*[self._fold_bucket(bucket) for bucket in some])):
                await self._restore_days()

    def _is_due(self, bucket: int) -> bool:
        """Each bucket at its own time, so that they do not all come at once."""
        now_ms = self.tally.watermark_ms
        if bucket not in self._fold_at_ms:
            self._fold_at_ms[bucket] = now_ms + crc32(day_name(self.tally.partition, bucket).encode()) % FOLD_MS
        if now_ms < self._fold_at_ms[bucket]:
            return False
        self._fold_at_ms[bucket] = now_ms + FOLD_MS
        return True

    async def _fold_bucket(self, bucket: int) -> bool:
        """False when its day lacks what was moved there before: nothing is added to it then."""
        partition, until = self.tally.partition, self.tally.final
        name, homes = day_name(partition, bucket), self.tally.final_spans(bucket)
        while True:
            before, version = await self._day(bucket)
            if before is None or before.until < self.tally.until.get(bucket, 0):
                return False
            try:
                after = folded(before, homes, until)
                if after is not before:
                    await self._blobs.put(name, pack(after), version)
            except Corrupt:
                return False
            except Conflict:
                continue
            break
        self.tally.forget_before(bucket, until)
        return True

    async def _day(self, bucket: int) -> tuple[Day | None, Version | None]:
        """None when it cannot be read, an empty one when there is none; and the version that a put has to know."""
        partition = self.tally.partition
        found = await self._blobs.get(day_name(partition, bucket))
        if found is None:
            return empty_day(partition, bucket), None
        with suppress(Corrupt):
            return unpack(found.data, Day, day_name(partition, bucket)), found.version
        return None, found.version

    async def _restore_days(self) -> None:
        """Restore all incomplete days at once, as far as the hub still has their events."""
        lost = [bucket for bucket in self.tally.buckets if not await self._is_whole(bucket)]
        tally = Tally(self.tally.partition)
        whole = await self._recounted(tally, self.tally.upto)
        for bucket in lost:
            until = self.tally.until.get(bucket, 0)
            begin = empty_day(tally.partition, bucket, min(whole, until))
            homes = tally.final_spans(bucket) if bucket in tally.buckets else {}
            await self._replace_day(bucket, folded(begin, homes, until) if until > begin.until else begin)

    async def _is_whole(self, bucket: int) -> bool:
        day, _ = await self._day(bucket)
        if day is None or day.until < self.tally.until.get(bucket, 0):
            return False
        with suppress(Corrupt):
            return all(unpack_hour(hour) is not None for hour in day.hours)
        return False

    async def _replace_day(self, bucket: int, day: Day) -> None:
        name = day_name(self.tally.partition, bucket)
        found = await self._blobs.get(name)
        if day.since:
            with suppress(Conflict):  # a blob that was set aside before is older, and has more
                await self._blobs.put(lost_name(name), found.data if found is not None else b"", None)
        log.warning(
            "The blob %s was damaged or removed: restoring it%s.", name, " as far as possible" * (day.since > 0)
        )
        with suppress(Conflict):  # another owner was faster
            await self._blobs.put(name, pack(day), found.version if found is not None else None)
