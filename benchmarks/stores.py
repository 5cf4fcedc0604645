"""What a store costs: round trips, bytes and writes a heartbeat, commits a second; how long heartbeats, claims and
commits take.

Four instances, each with a client of its own, as four processes would have them, with 16, 1,000 and 10,000 partitions;
and a hundred members for the bytes of a heartbeat that has nothing to tell.
"""

from __future__ import annotations

import asyncio
import statistics
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks._places import PLACES, TIMES, Place, Tally
from benchmarks.harness import Bar, Figure, Result, at_most, figure, say
from evenflow.model import Change, Checkpoint, Group, Member, Position
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.model import Cursor
    from evenflow.ports import Store

PARTITIONS = 16, 1_000, 10_000
INSTANCES = 4
CROWD = 100
TURNS = 3
HEARTBEATS = 100
HEARTBEATS_PACED = 20
HEARTBEATS_RENEWING = 4
PARTITIONS_RENEWED = PARTITIONS[:2]
"""Where every lease is renewed by every heartbeat, 10,000 partitions are 2,500 writes a heartbeat, which take longer
than a heartbeat may, and 40,000 requests to be claimed: minutes, for figures that grow as the partitions do. Nobody
wants that.
"""
CLAIMS = 50
COMMIT_S = 0.5
COMMITTED = 4
"""Checkpoints in a commit: an instance's share of 16 partitions."""
CHUNK = 500
ROUND_TRIPS_MOST, WRITES_MOST, BYTES_MOST = 2, 1, 4_096


class Instance:
    def __init__(self, store: Store, group: Group, name: str, place: Place) -> None:
        self.store, self.group, self._place = store, group, place
        self.me = Member(id=name, nonce=name, ttl_s=8.0, host="bench", pid=1, version="1")
        self.partitions: list[str] = []
        self.ordinal = 0
        self._since: Cursor | None = None

    async def heartbeat(self) -> None:
        ledger = await self.store.heartbeat(self.group, self.me, self._since)
        assert ledger.me is not None
        self._place.beaten(self.me, ledger)
        self.me, self._since = ledger.me, ledger.cursor

    async def claim(self, *partitions: str) -> None:
        outcomes = await self.store.swap(self.group, [self._change(name) for name in partitions])
        assert all(outcome.ok for outcome in outcomes)
        self.partitions += partitions

    def _change(self, partition: str) -> Change:
        return Change(
            partition=partition,
            revision=0,
            history=0,
            owner=self.me.owner,
            epoch=1,
            ttl_s=self.me.ttl_s,
            reason="claimed: nobody had it",
        )

    async def seal(self) -> None:
        for name in self.partitions[:COMMITTED]:
            await self.store.seal(self.group, name, 1, _checkpoint(name, 0))

    async def commit(self) -> None:
        self.ordinal += 1
        wanted = [_checkpoint(name, self.ordinal) for name in self.partitions[:COMMITTED]]
        outcomes = await self.store.commit(self.group, wanted)
        assert all(outcome.ok for outcome in outcomes)


def _checkpoint(partition: str, ordinal: int) -> Checkpoint:
    return Checkpoint(partition=partition, epoch=1, position=Position(str(ordinal), ordinal), ordinal=ordinal)


def run() -> Result:
    figures: list[Figure] = []
    bars: list[Bar] = []
    for name, open_place in PLACES.items():
        with open_place() as place:
            for partitions in PARTITIONS_RENEWED if place.renews else PARTITIONS:
                say(f"{name}, {partitions:,} partitions ...")
                paced = name in TIMES
                found, held = asyncio.run(measure(f"{name}, {partitions:,} partitions", place, partitions, paced=paced))
                figures += found
                bars += held
    return Result(figures, bars)


async def measure(name: str, place: Place, partitions: int, *, paced: bool) -> tuple[list[Figure], list[Bar]]:
    """Of a `paced` store, whose heartbeats are seconds apart, instances heartbeat one after the other; of others all at
    once.
    """
    group = Group("bench", "hub", f"of {partitions}")
    instances = [Instance(open_store(place.url), group, f"instance-{number}", place) for number in range(INSTANCES)]
    try:
        claims_s = await settle(instances, partitions)
        times = HEARTBEATS_RENEWING if place.renews else HEARTBEATS_PACED if paced else HEARTBEATS
        heartbeats = [await timed(instances, lambda one: one.heartbeat(), times, paced=paced) for _ in range(TURNS)]
        tallies = [await tally_heartbeats(instances, place, times, paced=paced) for _ in range(TURNS)]
        commits = [await timed(instances, lambda one: one.commit(), HEARTBEATS) for _ in range(TURNS)]
        rates = [await commit_rate(instances) for _ in range(TURNS)]
        quiet = [] if place.renews else await quiet_crowd(instances, place, paced=paced)
        crowd = [tally.size_bytes for tally in quiet]
    finally:
        for instance in instances:
            await instance.store.aclose()
    figures = [
        figure(f"{name}: round trips a heartbeat", [tally.round_trips / times / INSTANCES for tally in tallies]),
        figure(f"{name}: bytes a heartbeat", [tally.size_bytes / times / INSTANCES for tally in tallies], "bytes"),
        *([figure(f"{name}: bytes a quiet heartbeat, {CROWD} members", crowd, "bytes")] if crowd else []),
        figure(f"{name}: commits of {COMMITTED} checkpoints", rates, "commits/s"),
        *percentiles(f"{name}: heartbeat", heartbeats),
        *percentiles(f"{name}: claim", [claims_s]),
        *percentiles(f"{name}: commit", commits),
    ]
    beaten = times * INSTANCES
    renewed = partitions / INSTANCES if place.renews else 0
    writes, round_trips = (
        max(found) / beaten for found in zip(*((t.writes, t.round_trips) for t in tallies), strict=True)
    )
    bars = [
        at_most(f"{name}: writes a heartbeat", writes, WRITES_MOST + renewed),
        at_most(f"{name}: round trips a heartbeat", round_trips, ROUND_TRIPS_MOST + renewed),
        *([] if paced else [at_most(f"{name}: bytes a quiet heartbeat", max(crowd), BYTES_MOST)]),
    ]
    return figures, bars


async def settle(instances: Sequence[Instance], partitions: int) -> list[float]:
    """Everybody has joined, and every partition an owner; how long single claims took."""
    names = [str(number) for number in range(partitions)]
    times_s: list[float] = []
    for instance in instances:
        await instance.heartbeat()
    for number, instance in enumerate(instances):
        mine = names[number::INSTANCES]
        one_by_one = min(CLAIMS, len(mine))
        for name in mine[:one_by_one]:
            started_s = perf_counter()
            await instance.claim(name)
            times_s.append(perf_counter() - started_s)
        for first, last in pairwise([*range(one_by_one, len(mine), CHUNK), len(mine)]):
            await instance.claim(*mine[first:last])
        await instance.seal()
    for _ in range(2):
        for instance in instances:
            await instance.heartbeat()
    return times_s


async def timed(
    instances: Sequence[Instance], work: Callable[[Instance], Awaitable[None]], times: int, *, paced: bool = False
) -> list[float]:
    """All of them at once, or (`paced`) one after the other, again and again; how long each took."""

    async def one(instance: Instance) -> float:
        started_s = perf_counter()
        await work(instance)
        return perf_counter() - started_s

    if paced:
        return [await one(instance) for _ in range(times) for instance in instances]
    return [took_s for _ in range(times) for took_s in await asyncio.gather(*map(one, instances))]


async def tally_heartbeats(instances: Sequence[Instance], place: Place, times: int, *, paced: bool) -> Tally:
    before = place.tally()
    await timed(instances, lambda one: one.heartbeat(), times, paced=paced)
    return place.tally().since(before)


async def commit_rate(instances: Sequence[Instance]) -> float:
    started_s, count = perf_counter(), 0

    async def go_on(instance: Instance) -> None:
        nonlocal count
        while perf_counter() - started_s < COMMIT_S:
            await instance.commit()
            count += 1

    await asyncio.gather(*map(go_on, instances))
    return count / (perf_counter() - started_s)


async def quiet_crowd(instances: Sequence[Instance], place: Place, *, paced: bool) -> list[Tally]:
    """A hundred members who all heartbeat, one after the other, and nothing changes: what each heartbeat of a round
    carries.

    They share a client, where that does not make it easier for them.
    """
    store, group = instances[0].store, instances[0].group
    more = [
        Instance(open_store(place.url) if paced else store, group, f"one-of-many-{number}", place)
        for number in range(CROWD - INSTANCES)
    ]
    crowd = [*instances, *more]
    for member in crowd:
        await member.heartbeat()
    found = []
    for number in range(3 * CROWD):
        member = crowd[number % CROWD]
        before = place.tally()
        await member.heartbeat()
        if number >= 2 * CROWD:
            found.append(place.tally().since(before))
    if paced:
        for member in more:
            await member.store.aclose()
    return found


def percentiles(name: str, turns: Sequence[Sequence[float]]) -> list[Figure]:
    """Inclusive: of few values, a percentile is never beyond the highest."""
    cuts = [statistics.quantiles(turn, n=100, method="inclusive") for turn in turns]
    return [figure(f"{name}, {part}th percentile", [cut[part - 1] * 1e3 for cut in cuts], "ms") for part in (50, 99)]
