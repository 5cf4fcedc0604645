"""How many instances one object bears: all heartbeat on a group object, and who is too late reads and puts again.

The objects are in memory, and each request takes as long as S3's do within a region. So what is measured is how often
they get into each other's way, not a server.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from time import monotonic
from typing import TYPE_CHECKING

from obstore.store import MemoryStore

from benchmarks.harness import Bar, Figure, Result, at_most, figure, say
from evenflow.errors import StoreUnavailable
from evenflow.model import Group, Member
from evenflow.stores.objects.client import BucketClient
from evenflow.stores.objects.store import ObjectsStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Cursor
    from evenflow.stores.objects.client import ObjectVersion, StoredObject

GROUP = Group("bench", "hub", "crowd")
GET_S, PUT_S = 0.020, 0.045
"""At the median; one in fifty takes ten times as long."""
FLEETS = (4, 5.0), (16, 5.0), (32, 5.0), (64, 5.0), (64, 10.0), (128, 10.0)
"""How many instances, and how often each of them heartbeats."""
JOINING, ROUNDS = 2, 4
"""Heartbeats of each: the first ones are not counted."""
BEARABLE = (32, 5.0), (64, 10.0)
"""What the documents promise."""
LATE_MOST_S = 2.0
"""Of a heartbeat, at the 99th percentile: a small part of the time-to-live."""


class SlowBucketClient(BucketClient):
    """Half of the time passes before a request takes effect."""

    def __init__(self, bucket: MemoryStore, crowd: Crowd) -> None:
        super().__init__(bucket)
        self._crowd = crowd

    async def get(self, path: str, known: ObjectVersion | None = None) -> StoredObject | None:
        pause_s = _pause_s(GET_S)
        await asyncio.sleep(pause_s / 2)
        self._crowd.requests += 1
        try:
            return await super().get(path, known)
        finally:
            await asyncio.sleep(pause_s / 2)

    async def put(self, path: str, data: bytes, known: ObjectVersion | None) -> ObjectVersion:
        pause_s = _pause_s(PUT_S)
        await asyncio.sleep(pause_s / 2)
        self._crowd.requests += 1
        try:
            return await super().put(path, data, known)
        finally:
            await asyncio.sleep(pause_s / 2)


def _pause_s(median_s: float) -> float:
    return median_s * random.lognormvariate(0.0, 0.3) * (10 if random.random() < 0.02 else 1)


class Crowd:
    """Instances that heartbeat on one group object, each with a client of its own."""

    def __init__(self, instances: int, heartbeat_s: float) -> None:
        self.name = f"{instances} instances, every {heartbeat_s:g} s"
        self.is_bearable = (instances, heartbeat_s) in BEARABLE
        self._instances, self._heartbeat_s = instances, heartbeat_s
        self._bucket = MemoryStore()
        self.heartbeats_s: list[float] = []
        self.failures = 0
        self.requests = 0
        """Of heartbeats that are counted, and of others."""
        self._others = 0.0

    async def run(self) -> None:
        await asyncio.gather(*map(self._live, range(self._instances)))

    @property
    def requests_a_heartbeat(self) -> float:
        return (self.requests - self._others) / len(self.heartbeats_s)

    async def _live(self, number: int) -> None:
        store = ObjectsStore(self._bucket)
        store._client = SlowBucketClient(self._bucket, self)
        me = Member(
            id=f"instance-{number}", nonce=str(number), ttl_s=4 * self._heartbeat_s, heartbeat_s=self._heartbeat_s
        )
        since: Cursor | None = None
        await asyncio.sleep(random.uniform(0.0, self._heartbeat_s))
        for heartbeat in range(JOINING + ROUNDS):
            started_s = monotonic()
            try:
                since = (await store.heartbeat(GROUP, me, since)).cursor
            except StoreUnavailable:
                self.failures += 1
            if heartbeat >= JOINING:
                self.heartbeats_s.append(monotonic() - started_s)
            elif heartbeat == JOINING - 1:
                self._others += self.requests / self._instances
            await asyncio.sleep(max(0.0, started_s + self._heartbeat_s - monotonic()))
        await store.aclose()


def run() -> Result:
    crowds = [Crowd(instances, heartbeat_s) for instances, heartbeat_s in FLEETS]
    say(f"{', '.join(crowd.name for crowd in crowds)} ...")
    asyncio.run(_all(crowds))
    found = [_told(crowd) for crowd in crowds]
    return Result([one for figures, _ in found for one in figures], [one for _, bars in found for one in bars])


async def _all(crowds: Sequence[Crowd]) -> None:
    """At the same time: they have nothing in common, and mostly wait."""
    await asyncio.gather(*(crowd.run() for crowd in crowds))


def _told(crowd: Crowd) -> tuple[list[Figure], list[Bar]]:
    cuts_s = statistics.quantiles(crowd.heartbeats_s, n=100, method="inclusive")
    figures = [
        figure(f"{crowd.name}: requests a heartbeat", [crowd.requests_a_heartbeat]),
        figure(f"{crowd.name}: heartbeat, 50th percentile", [cuts_s[49] * 1e3], "ms"),
        figure(f"{crowd.name}: heartbeat, 99th percentile", [cuts_s[98] * 1e3], "ms"),
        figure(f"{crowd.name}: heartbeats given up", [crowd.failures]),
    ]
    bars = [
        at_most(f"{crowd.name}: heartbeat, 99th percentile, s", cuts_s[98], LATE_MOST_S),
        at_most(f"{crowd.name}: heartbeats given up", crowd.failures, 0),
    ]
    return figures, bars if crowd.is_bearable else []
