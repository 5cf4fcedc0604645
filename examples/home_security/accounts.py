"""The books of the demo: each consumer records what it handled, and the sum proves what was lost or repeated.

A consumer appends one line for each handled batch, with one write, to a file of its own. That write is the handler's
whole effect, so what is written was handled, and what is not was not, whenever the process was killed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from evenflow.model import PartitionId
    from evenflow.runtime.partition import OwnedPartition

PLANNED = ("handed over", "leaving", "kept", "paused")
"""Why an epoch may end without an event being handled again in the next."""

SUFFIX = ".account"


class Run(Struct):
    """Events that one consumer handled one after the other in one epoch of a partition."""

    consumer: str
    epoch: int
    first: int
    last: int


class HandledCounts(Struct, frozen=True, kw_only=True):
    """How many events were handled, lost and repeated, according to the books."""

    handled: int = 0
    """Each event once."""
    lost: int = 0
    twice: int = 0
    """Handled again although the move was planned: there must be none."""
    again: int = 0
    """Handled again after a kill, or a stall: what had been handled since the last checkpoint."""
    sought: int = 0
    """Handled again because an operator requested it: a seek went back."""
    passed_over: int = 0
    """Not handled because an operator requested it: a seek went ahead. They are not lost."""

    def __add__(self, other: HandledCounts) -> HandledCounts:
        return HandledCounts(
            handled=self.handled + other.handled,
            lost=self.lost + other.lost,
            twice=self.twice + other.twice,
            again=self.again + other.again,
            sought=self.sought + other.sought,
            passed_over=self.passed_over + other.passed_over,
        )


class ConsumerAccount:
    """The file of one consumer. Lines are `began PARTITION EPOCH ORDINAL SEQUENCE` (after which it goes on), `handled
    PARTITION EPOCH FIRST LAST` and `ended PARTITION EPOCH WHY`."""

    def __init__(self, folder: Path, consumer: str) -> None:
        self._descriptor = os.open(folder / (consumer + SUFFIX), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def began(self, partition: OwnedPartition) -> None:
        """Before its first call. (Before the first event there is, the sequence is -1.)"""
        self._write(f"began {partition.id} {partition.epoch} {partition.ordinal} {partition.position.sequence}\n")

    def handled(self, partition: PartitionId, epoch: int, sequences: Sequence[int]) -> None:
        first, last = sequences[0], sequences[-1]
        if last - first + 1 == len(sequences):
            self._write(f"handled {partition} {epoch} {first} {last}\n")
        else:
            self._write("".join(f"handled {partition} {epoch} {one} {one}\n" for one in sequences))

    def ended(self, partition: PartitionId, epoch: int, why: str) -> None:
        self._write(f"ended {partition} {epoch} {why}\n")

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, lines: str) -> None:
        os.write(self._descriptor, lines.encode())


class Books:
    """All accounts of a folder, read on where the last reading ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}
        self._runs: dict[PartitionId, list[Run]] = {}
        self._unplanned: set[tuple[str, PartitionId, int]] = set()
        self._ended: set[tuple[str, PartitionId, int]] = set()
        self._shifts: dict[PartitionId, dict[int, int]] = {}
        """For each epoch, by how much ordinals are ahead of sequences: only a seek changes that."""
        self.by_consumer: dict[str, int] = {}
        """Events handled, repeated ones too."""
        self.by_partition: dict[PartitionId, int] = {}

    def read(self) -> None:
        for path in sorted(self._folder.glob("*" + SUFFIX)):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                self._take(path.name.removesuffix(SUFFIX), line)

    def reached(self, partition: PartitionId) -> int:
        """The highest sequence that was handled; -1 when none was."""
        return max((run.last for run in self._runs.get(partition, ())), default=-1)

    def tally(self, newest: Mapping[PartitionId, int]) -> HandledCounts:
        """Over all partitions, each of which has events from 0 up to its newest."""
        return sum((self._tally(partition, last) for partition, last in newest.items()), HandledCounts())

    def _take(self, consumer: str, line: str) -> None:
        word, partition, epoch, rest = line.split(" ", 3)
        if word == "handled":
            first, last = map(int, rest.split())
            self._extend(consumer, partition, int(epoch), first, last)
            return
        if word == "began":
            ordinal, sequence = map(int, rest.split())
            self._shifts.setdefault(partition, {})[int(epoch)] = ordinal - sequence
            return
        key = consumer, partition, int(epoch)
        self._ended.add(key)
        if rest not in PLANNED:
            self._unplanned.add(key)

    def _extend(self, consumer: str, partition: PartitionId, epoch: int, first: int, last: int) -> None:
        count = last - first + 1
        self.by_consumer[consumer] = self.by_consumer.get(consumer, 0) + count
        self.by_partition[partition] = self.by_partition.get(partition, 0) + count
        runs = self._runs.setdefault(partition, [])
        mine = next((run for run in reversed(runs) if (run.consumer, run.epoch) == (consumer, epoch)), None)
        if mine is not None and mine.last + 1 == first:
            mine.last = last
        else:
            runs.append(Run(consumer, epoch, first, last))

    def _tally(self, partition: PartitionId, newest: int) -> HandledCounts:
        tally = HandledCounts()
        earlier: list[Run] = []
        skipped: list[tuple[int, int]] = []
        for run in sorted(self._runs.get(partition, ()), key=lambda run: run.epoch):
            tally += self._repeats(partition, run, earlier)
            skipped += self._skipped(partition, run, earlier)
            earlier.append(run)
        for run in earlier:
            skipped = [part for first, last in skipped for part in _without(first, last, run.first, run.last)]
        passed_over = len({one for first, last in skipped for one in range(first, last + 1)})
        return tally + HandledCounts(lost=newest + 1 - tally.handled - passed_over, passed_over=passed_over)

    def _skipped(self, partition: PartitionId, run: Run, earlier: Sequence[Run]) -> list[tuple[int, int]]:
        """What lies between a run and all before it, if a seek is the reason."""
        last = max((other.last for other in earlier), default=-1)
        sought = self._is_sought(partition, max((other.epoch for other in earlier), default=0), run.epoch)
        return [(last + 1, run.first - 1)] if sought and run.first > last + 1 else []

    def _is_sought(self, partition: PartitionId, before: int, after: int) -> bool:
        """Whether there was a seek between these epochs. One that lost its checkpoint goes back in both numbers."""
        shifts = self._shifts.get(partition, {})
        known = [shifts[epoch] for epoch in sorted(shifts) if before <= epoch <= after]
        return len(set(known)) > 1

    def _repeats(self, partition: PartitionId, run: Run, earlier: Sequence[Run]) -> HandledCounts:
        """What of a run was handled before, each event blamed on the last who had handled it."""
        fresh = [(run.first, run.last)]
        twice = again = sought = 0
        for other in reversed(earlier):
            left = [part for first, last in fresh for part in _without(first, last, other.first, other.last)]
            repeated = _count(fresh) - _count(left)
            if self._is_sought(partition, other.epoch, run.epoch):
                sought += repeated
            elif repeated and self._ended_planned(partition, other):
                twice += repeated
            else:
                again += repeated
            fresh = left
        return HandledCounts(handled=_count(fresh), twice=twice, again=again, sought=sought)

    def _ended_planned(self, partition: PartitionId, run: Run) -> bool:
        """Who was killed wrote no end; who was fenced or lost its lease says so. An epoch that goes on is no excuse."""
        key = run.consumer, partition, run.epoch
        return key in self._ended and key not in self._unplanned


def _without(first: int, last: int, cut_first: int, cut_last: int) -> list[tuple[int, int]]:
    """What is left of a range without another: none, one or two ranges."""
    parts = [(first, min(last, cut_first - 1)), (max(first, cut_last + 1), last)]
    return [(low, high) for low, high in parts if low <= high]


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
