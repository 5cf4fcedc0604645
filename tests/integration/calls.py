"""Every handler call that real instances made, and what that proves: lost, repeated, out of order, two owners at once.

An instance writes two lines for a call, one when it begins and one when it has ended, each with one write to a file
of its own: so what is written happened, whenever the process was killed. All processes share the clock of the machine
since its start, so the times of different processes can be compared, which nothing in evenflow itself does.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from evenflow.model import PartitionId


def boot_s() -> float:
    """Seconds on the one clock that all processes share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Call(Struct):
    """One call of a handler, for one event or some in a row."""

    pid: int
    partition: PartitionId
    epoch: int
    first: int
    last: int
    began_s: float
    """When the clock was looked at before it. A process can be stopped between that look and the call itself; no
    program can help that, and the epoch fences it."""
    ended_s: float | None = None
    """None: it was killed in the middle, or still runs."""

    def __str__(self) -> str:
        ended = "never" if self.ended_s is None else f"{self.ended_s:.3f}"
        return (
            f"partition {self.partition} epoch {self.epoch} events {self.first} to {self.last}"
            f" in process {self.pid} from {self.began_s:.3f} to {ended}"
        )


class Repeat(NamedTuple):
    """An event that was handled before."""

    partition: PartitionId
    sequence: int
    before: Call
    after: Call


class Diary:
    """Where one process writes its calls down. Lines are `began|ended PARTITION EPOCH FIRST LAST TIME`."""

    def __init__(self, path: Path | str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, word: str, partition: PartitionId, epoch: int, events: tuple[int, int], at_s: float) -> None:
        os.write(self._descriptor, f"{word} {partition} {epoch} {events[0]} {events[1]} {at_s!r}\n".encode())

    def close(self) -> None:
        os.close(self._descriptor)


class Diaries:
    """The diaries of all processes, named PID.calls, read on where the last reading ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read_bytes: dict[Path, int] = {}
        self._running: dict[tuple[int, PartitionId, int, int], Call] = {}
        self._calls: list[Call] = []

    def read(self) -> Sequence[Call]:
        """All calls so far, those of one process in the order in which they began."""
        for path in sorted(self.folder.glob("*.calls")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                self._take(int(path.stem), *line.split())
        return list(self._calls)

    def _take(self, pid: int, word: str, partition: str, epoch: str, first: str, last: str, at_s: str) -> None:
        key = pid, partition, int(epoch), int(first)
        if word == "began":
            call = Call(pid, partition, int(epoch), int(first), int(last), float(at_s))
            self._running[key] = call
            self._calls.append(call)
        else:
            self._running.pop(key).ended_s = float(at_s)


def lost(calls: Iterable[Call], newest: Mapping[PartitionId, int]) -> list[tuple[PartitionId, int]]:
    """Events from 0 up to the newest of each partition that no call has handled to its end."""
    handled = {(call.partition, one) for call in calls if call.ended_s is not None for one in _events(call)}
    wanted = ((partition, one) for partition, last in newest.items() for one in range(last + 1))
    return [event for event in wanted if event not in handled]


def repeats(calls: Iterable[Call]) -> list[Repeat]:
    """Events of ended calls that had been handled to their end before, in the order of their handling."""
    last: dict[tuple[PartitionId, int], Call] = {}
    found = []
    for call in sorted(_ended(calls), key=lambda call: call.began_s):
        for one in _events(call):
            if (before := last.get((call.partition, one))) is not None:
                found.append(Repeat(call.partition, one, before, call))
            last[call.partition, one] = call
    return found


def violations(calls: Iterable[Call]) -> list[str]:
    """What must never be, whatever happened to the processes; one line for each, for people."""
    by_partition: dict[PartitionId, list[Call]] = {}
    for call in calls:
        by_partition.setdefault(call.partition, []).append(call)
    return [fault for mine in by_partition.values() for fault in _violations(mine)]


def _violations(calls: Sequence[Call]) -> Iterator[str]:
    by_epoch: dict[int, list[Call]] = {}
    by_pid: dict[int, list[Call]] = {}
    for call in calls:
        by_epoch.setdefault(call.epoch, []).append(call)
        by_pid.setdefault(call.pid, []).append(call)
    for mine in by_epoch.values():
        yield from _disorder(mine)
    for mine in by_pid.values():
        yield from _side_by_side(mine)
    yield from _late(calls)


def _disorder(calls: Sequence[Call]) -> Iterator[str]:
    """In one epoch one process handles one event after the other, without a gap."""
    for one, other in pairwise(calls):
        if one.pid != other.pid:
            yield f"two owners in one epoch: {one}; {other}"
        elif other.first != one.last + 1:
            yield f"out of order: {one}; then {other}"


def _side_by_side(calls: Sequence[Call]) -> Iterator[str]:
    """In one process the calls of a partition never overlap, whatever their epochs."""
    for one, other in pairwise(sorted(calls, key=lambda call: call.began_s)):
        if one.ended_s is None or one.ended_s > other.began_s:
            yield f"side by side in one process: {one}; {other}"


def _late(calls: Sequence[Call]) -> Iterator[str]:
    """Once a call of a newer epoch has begun, none of an older epoch begins."""
    newest: Call | None = None
    for call in sorted(calls, key=lambda call: call.began_s):
        if newest is not None and call.epoch < newest.epoch:
            yield f"began after a newer epoch had: {call}; that was {newest}"
        else:
            newest = call


def _ended(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.ended_s is not None]


def _events(call: Call) -> range:
    return range(call.first, call.last + 1)
