"""16 partitions of a Kafka topic, 4 instances, one killed -9; and 2 instances that become 4. Against a Kafka group.

The other side is confluent-kafka with `cooperative-sticky`, with our time-to-live as its session timeout, and otherwise
as it comes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks._fleet import PARTITIONS, PATIENCE_S, Handled, longest_gap_s, wait_for
from benchmarks.harness import Result, at_most, figure, say
from tests.servers.kafka import FAST, Kafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RATE = 4_000
TTL_S, HEARTBEAT_S, CHECKPOINT_S = 8.0, 2.0, 1.0
KILLS = 5
STEADY_S = (8.0, 10.0)
"""Drawn anew before each kill, so that kills meet heartbeats and heartbeats at different moments."""
LOOK_S = 1.0
"""Whoever handled a partition in the last so many seconds has it."""
STILL_S = 0.25
"""How much more than without a kill others may be held up: less is what a busy machine does to anybody."""
KINDS = {"evenflow": "evenflow", "group": "cooperative-sticky"}


class Killed(NamedTuple):
    until_s: float
    others_still_s: float
    """The longest gap between two batches of a partition that the dead instance did not have."""
    before_s: float
    """The same in a time as long in which nobody was killed."""


class KafkaFleet:
    """A topic, a producer, and consumers of one kind, all ended when it is left."""

    def __init__(self, kafka: Kafka, kind: str, folder: Path) -> None:
        self._kafka, self._kind, self._folder = kafka, kind, folder
        self.topic = kafka.make_topic(PARTITIONS)
        self.consumers: dict[str, subprocess.Popen[bytes]] = {}
        self._producer = _start("produce", servers=kafka.servers, topic=self.topic, partitions=PARTITIONS, rate=RATE)

    def close(self) -> None:
        for process in [*self.consumers.values(), self._producer]:
            if process.poll() is None:
                process.kill()
            process.wait()

    def consume(self, name: str) -> None:
        self.consumers[name] = _start(
            self._kind,
            servers=self._kafka.servers,
            topic=self.topic,
            store=f"sqlite:{self._folder / 'store'}",
            name=name,
            account=str(self._folder / f"{name}.account"),
            ttl_s=TTL_S,
            heartbeat_s=HEARTBEAT_S,
            checkpoint_s=CHECKPOINT_S,
        )

    def stop_producing(self) -> None:
        self._producer.terminate()
        self._producer.wait(PATIENCE_S)

    # --- what was, and so what is
    def handled(self) -> dict[str, list[Handled]]:
        batches: dict[str, list[Handled]] = defaultdict(list)
        for path in self._folder.glob("*.account"):
            for line in path.read_text().splitlines():
                partition, epoch, first, last, at_s = line.split()
                batches[partition].append(Handled(path.stem, int(epoch), int(first), int(last), float(at_s)))
        for found in batches.values():
            found.sort(key=lambda one: one.at_s)
        return batches

    def owners(self) -> dict[str, str]:
        """Who handled each partition in the last moment; nobody, if two did."""
        since_s = monotonic() - LOOK_S
        recent = {name: {one.consumer for one in found if one.at_s > since_s} for name, found in self.handled().items()}
        return {name: next(iter(who)) for name, who in recent.items() if len(who) == 1}

    def wait_until_even(self, *names: str) -> None:
        def is_even() -> bool:
            shares = Counter(self.owners().values())
            counts = [shares.get(name, 0) for name in names]
            return sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

        wait_for(is_even, f"even shares of {', '.join(names)}")

    def lost_and_repeated(self) -> tuple[int, int]:
        newest = {str(number): self._kafka.newest(self.topic, number) for number in range(PARTITIONS)}

        def is_done() -> bool:
            handled = self.handled()
            return all(max((b.last for b in handled.get(p, ())), default=-1) >= last for p, last in newest.items())

        wait_for(is_done, "everything to be handled")
        lost = repeated = 0
        for partition, batches in self.handled().items():
            times = Counter[int]()
            for batch in batches:
                times.update(range(batch.first, batch.last + 1))
            lost += newest[partition] + 1 - len(times)
            repeated += sum(times.values()) - len(times)
        return lost, repeated


@contextmanager
def fleet(kafka: Kafka, kind: str) -> Iterator[KafkaFleet]:
    with tempfile.TemporaryDirectory() as folder:
        made = KafkaFleet(kafka, kind, Path(folder))
        try:
            yield made
        finally:
            made.close()


def run() -> Result:
    figures, bars = [], []
    kafka = Kafka(java=FAST)
    try:
        killed = {kind: kill_some(kafka, kind) for kind in KINDS}
        scaled = {kind: scale_out(kafka, kind) for kind in KINDS}
    finally:
        kafka.remove()
    for kind, name in KINDS.items():
        kills, lost, again = killed[kind]
        figures += [
            figure(f"{name}: until all is handled again", [one.until_s for one in kills], "s"),
            figure(f"{name}: others' longest gap", [one.others_still_s for one in kills], "s"),
            figure(f"{name}: their longest gap without a kill", [one.before_s for one in kills], "s"),
            figure(f"{name}: events handled twice, a kill", [again / KILLS], "events"),
            figure(f"{name}: events lost", [lost], "events"),
            figure(f"{name}: handled twice, scale-out 2 -> 4", [scaled[kind][1]], "events"),
            figure(f"{name}: lost, scale-out 2 -> 4", [scaled[kind][0]], "events"),
            figure(f"{name}: longest gap, scale-out 2 -> 4", [scaled[kind][2]], "s"),
        ]
    ours, theirs = killed["evenflow"], killed["group"]
    middle = [median([one.until_s for one in kills]) for kills in (ours[0], theirs[0])]
    bars = [
        at_most("until handled again / cooperative-sticky's", middle[0] / middle[1], 1.0),
        at_most("events lost", ours[1], 0),
        at_most("others stood still, s", median([one.others_still_s - one.before_s for one in ours[0]]), STILL_S),
        at_most("handled twice, scale-out 2 -> 4", scaled["evenflow"][1], 0),
        at_most("lost, scale-out 2 -> 4", scaled["evenflow"][0], 0),
    ]
    return Result(figures, bars)


def kill_some(kafka: Kafka, kind: str) -> tuple[Sequence[Killed], int, int]:
    with fleet(kafka, kind) as found:
        names = [f"c{number}" for number in range(4)]
        for name in names:
            found.consume(name)
        found.wait_until_even(*names)
        kills = []
        for number in range(KILLS):
            sleep(random.uniform(*STEADY_S))
            kills.append(kill(found, names.pop(0)))
            say(f"{KINDS[kind]}: {kills[-1]}")
            names.append(f"n{number}")
            found.consume(names[-1])
            found.wait_until_even(*names)
        found.stop_producing()
        return (kills, *found.lost_and_repeated())


def kill(found: KafkaFleet, victim: str) -> Killed:
    """How long until the last of its partitions is handled again, and the longest gap of any other meanwhile."""
    owners = found.owners()
    orphans = {partition for partition, owner in owners.items() if owner == victim}
    assert orphans, f"{victim} has nothing"
    process = found.consumers[victim]
    process.kill()
    killed_s = monotonic()
    process.wait()

    def heirs() -> dict[str, float]:
        handled = found.handled()
        firsts = {
            partition: next(
                (one.at_s for one in handled[partition] if one.consumer != victim and one.at_s > killed_s), 0.0
            )
            for partition in orphans
        }
        return firsts if all(firsts.values()) else {}

    wait_for(lambda: bool(heirs()), "the takeover")
    again_s = max(heirs().values())
    sleep(LOOK_S)
    others = {partition: batches for partition, batches in found.handled().items() if partition not in orphans}
    taken_s, looked_s = again_s - killed_s, again_s + LOOK_S / 2 - killed_s
    before_s = longest_gap_s(others, killed_s - min(looked_s, STEADY_S[0]), killed_s)
    return Killed(taken_s, longest_gap_s(others, killed_s, killed_s + looked_s), before_s)


def scale_out(kafka: Kafka, kind: str) -> tuple[int, int, float]:
    """What is lost and handled twice when two become four, and the longest gap of a partition."""
    with fleet(kafka, kind) as found:
        for name in ("c0", "c1"):
            found.consume(name)
        found.wait_until_even("c0", "c1")
        sleep(LOOK_S)
        since_s = monotonic()
        for name in ("c2", "c3"):
            found.consume(name)
        found.wait_until_even("c0", "c1", "c2", "c3")
        sleep(2 * LOOK_S)
        gap_s = longest_gap_s(found.handled(), since_s, monotonic() - LOOK_S / 2)
        found.stop_producing()
        lost, repeated = found.lost_and_repeated()
        say(f"{KINDS[kind]}: 2 -> 4, {repeated} handled twice, {lost} lost, longest gap {gap_s:.2f} s")
        return lost, repeated, gap_s


def _start(work: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks._kafka_worker", work, json.dumps(options)])
