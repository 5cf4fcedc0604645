"""The books of a demo: every consumer writes down what it handled, and the sum proves what was lost or repeated.

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

PLANNED = ("handed over", "leaving", "kept", "paused")
"""Why an epoch may end without an event being handled again in the next."""

SUFFIX = ".account"


class Run(Struct):
    """Events that one consumer handled one after the other in one epoch of a partition."""

    consumer: str
    epoch: int
    first: int
    last: int


class Tally(Struct, frozen=True, kw_only=True):
    """What the books say."""

    handled: int = 0
    """Each event once."""
    lost: int = 0
    twice: int = 0
    """Handled again although the move was planned: there must be none."""
    again: int = 0
    """Handled again after a kill, or a stall: what had been handled since the last checkpoint."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            handled=self.handled + other.handled,
            lost=self.lost + other.lost,
            twice=self.twice + other.twice,
            again=self.again + other.again,
        )


class Account:
    """A consumer's own file. Lines are `handled PARTITION EPOCH FIRST LAST` and `ended PARTITION EPOCH WHY`."""

    def __init__(self, folder: Path, consumer: str) -> None:
        self._descriptor = os.open(folder / (consumer + SUFFIX), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

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

    def tally(self, newest: Mapping[PartitionId, int]) -> Tally:
        """Over all partitions, each of which has events from 0 up to its newest."""
        return sum((self._tally(partition, last) for partition, last in newest.items()), Tally())

    def _take(self, consumer: str, line: str) -> None:
        word, partition, epoch, rest = line.split(" ", 3)
        if word == "handled":
            first, last = map(int, rest.split())
            self._extend(consumer, partition, int(epoch), first, last)
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

    def _tally(self, partition: PartitionId, newest: int) -> Tally:
        tally = Tally()
        earlier: list[Run] = []
        for run in sorted(self._runs.get(partition, ()), key=lambda run: run.epoch):
            tally += self._repeats(partition, run, earlier)
            earlier.append(run)
        return tally + Tally(lost=newest + 1 - tally.handled)

    def _repeats(self, partition: PartitionId, run: Run, earlier: Sequence[Run]) -> Tally:
        """What of a run was handled before, each event blamed on the last who had handled it."""
        fresh = [(run.first, run.last)]
        twice = again = 0
        for other in reversed(earlier):
            left = [part for first, last in fresh for part in _without(first, last, other.first, other.last)]
            repeated = _count(fresh) - _count(left)
            if repeated and self._ended_planned(partition, other):
                twice += repeated
            else:
                again += repeated
            fresh = left
        return Tally(handled=_count(fresh), twice=twice, again=again)

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
