"""Shared by the consumers of both groups: how one is started, and the accounts that it keeps.

The accounts are for the operator's counters and for measurements; nothing that residents see depends on them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evenflow import Corrupt, Misconfigured, PartitionHalted, Processor, Retry
from evenflow.cli import parent_watch
from evenflow.signals import DeadLettered, Fenced, PartitionStopped
from examples.home_security.accounts import ConsumerAccount
from examples.home_security.blobs import open_blobs
from examples.home_security.places import Place, machine_ms
from examples.home_security.reports import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from evenflow import Event, Every, Manual, OwnedPartition, Signal
    from evenflow.model import PartitionId
    from examples.home_security.blobs import Blobs
    from examples.home_security.places import Pace

STEP_MS = 10
"""The resolution of delays."""
DELAYS = ".delays"


class Delays:
    """How long it took from a sensor's report to what became of it, counted in steps, in a file of its own."""

    def __init__(self, path: Path, pace: Pace) -> None:
        self._path = path
        self._pace = pace
        self._counts: Counter[int] = Counter()

    def note(self, made_ms: Iterable[int]) -> None:
        """These reports have just arrived where they were to."""
        begin_ms, speed = self._pace.begin_ms, self._pace.speed
        since_ms = machine_ms() - self._pace.begin_machine_ms
        self._counts.update([int(since_ms - (made - begin_ms) / speed) // STEP_MS for made in made_ms])
        fresh = self._path.with_suffix(".fresh")
        fresh.write_bytes(msgspec.json.encode(self._counts))
        os.replace(fresh, self._path)


def read_delays(folder: Path) -> Counter[int]:
    """Of all consumers of a group: how many reports took how many steps."""
    found: Counter[int] = Counter()
    for path in folder.glob("*" + DELAYS):
        found.update(msgspec.json.decode(path.read_bytes(), type=dict[int, int]))
    return found


def percentile_s(counts: Counter[int], share: float) -> float:
    """Below which this share of all delays is, in seconds."""
    left = share * counts.total()
    for step in sorted(counts):
        left -= counts[step]
        if left <= 0:
            return (step + 1) * STEP_MS / 1000
    return 0.0


class Consumer:
    """One instance of a group: its processor, its blobs and its account, which is closed when the block ends."""

    def __init__(self, place: Place, group: str, name: str, checkpoint: Every | Manual) -> None:
        scene = place.scene()
        self.place = place
        self.blobs: Blobs = open_blobs(scene.blobs)
        self.write_s = scene.write_s
        self.delays = Delays(place.group(group) / (name + DELAYS), scene.pace)
        self.account = ConsumerAccount(place.group(group), name)
        self._epochs: dict[PartitionId, int] = {}
        self.processor = Processor(
            f"hub:{place.hub}",
            f"sqlite:{place.leases}",
            group,
            instance_id=name,
            checkpoint=checkpoint,
            balance="load",
            # An invalid report is never retried. Any other error is temporary, or stops the partition.
            retry=Retry(attempts=None, never_retry=NotUnderstood),
            dead_letter=f"jsonl:{place.dead_letters}",
        )
        self.processor.listen(self._note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.account.close()

    def began(self, partition: OwnedPartition) -> None:
        self._epochs[partition.id] = partition.epoch
        self.account.began(partition)

    def handled(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        sequences = [event.sequence for event in events if event.sequence is not None]
        self.account.handled(partition.id, partition.epoch, sequences)

    def _note(self, signal: Signal) -> None:
        if isinstance(signal, PartitionStopped):
            self.account.ended(signal.partition, signal.epoch, signal.reason)
        elif isinstance(signal, Fenced):
            self.account.ended(signal.partition, signal.epoch, "fenced")
        elif isinstance(signal, DeadLettered) and signal.position.sequence is not None:
            # A dead letter counts as handled: it is kept with its error, and not lost.
            first = signal.position.sequence
            filed = range(first, first + signal.dead_letters)
            self.account.handled(signal.partition, self._epochs[signal.partition], filed)


@contextmanager
def no_events_fault() -> Iterator[None]:
    """A damaged blob makes no event poison: its partition stops until an operator restores or removes the blob."""
    try:
        yield
    except (Corrupt, Misconfigured) as error:
        raise PartitionHalted(f"{error} Put a copy of it back, or remove it.") from error


def run_consumer(make: Callable[[Place, str], Consumer]) -> None:
    """The main function of a consumer process, with FOLDER NAME on the command line. It ends with its parent."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    parent_watch.stop_with_parent()
    with make(Place(Path(sys.argv[1])), sys.argv[2]) as consumer:
        consumer.processor.run()
