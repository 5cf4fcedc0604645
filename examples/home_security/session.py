"""One demo from beginning to end: makes the hub, runs the processes, counts what happens, and proves it in the end."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow import Corrupt, Hub, Misconfigured, Transient
from evenflow.cli.demo.accounts import Books, Tally
from evenflow.cli.demo.fleet import Consumer, Fleet, end, start
from evenflow.model import Group
from evenflow.observe.telling import kind
from evenflow.sources.hub import HubSource
from evenflow.stores.sqlite import SQLiteStore
from examples.home_security.blobs import Conflict, Folder, open_blobs
from examples.home_security.consuming import percentile_s, read_delays
from examples.home_security.generator import Account, nothing_sent, read_account
from examples.home_security.layout import ABOUT, LAYOUT, LOST, About, Recent, lost_name, pack, recent_name
from examples.home_security.places import ALERTS, GROUPS, PARTITIONS, Pace, Place, Scene, Town
from examples.home_security.reading import read
from examples.home_security.summary import Summary
from examples.home_security.truth import judge

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

    from evenflow.model import PartitionId
    from evenflow.ports import Clock

BEGIN_S = 5.0
"""After so long the homes begin to report: everybody is there by then."""
STALL_S = 20.0
"""A stalled consumer is woken after this: longer than its time-to-live, so that it has lost everything."""
LOOK_S = 1.0
LIST_LOOKS = 5
"""So many looks for one list of blobs, which costs something in a cloud."""
DRAIN_S = 60.0
"""How long the last events may take: a takeover takes ten seconds."""
STOP_S = 40.0
RETENTION_S = 600.0
RETENTION_BYTES = 2 << 30
MOVES = 500


class Settings(Struct, frozen=True, kw_only=True):
    homes: int
    speed: float = 1.0
    seed: int = 0
    begin_s: float | None = None
    """What the homes' clocks say at the beginning, in seconds since 1970; None: the true time."""
    consumers: int = 3
    """Of each group, to begin with."""
    write_s: float = 2.0
    """How often recent parts are rewritten."""
    blobs: str | None = None
    """Where the aggregates go; None: into the demo's own folder."""


class Counts(Struct, frozen=True, kw_only=True):
    """What is known of a group now."""

    tally: Tally = Tally()
    """Of events up to the last that was handled: what is still to be handled is not lost."""
    lag: int = 0


class Session:
    def __init__(self, folder: Path, clock: Clock, settings: Settings) -> None:
        self.place = Place(folder)
        self._clock = clock
        self._settings = settings
        self.where = settings.blobs or str(self.place.blobs)
        self.blobs = open_blobs(self.where)
        self.store = SQLiteStore(self.place.leases)
        self._source: HubSource | None = None
        self._generator: Process | None = None
        self.fleets = {
            group: Fleet(
                folder,
                clock,
                consumer=f"examples.home_security.{group}",
                name=group,
                logs=self.place.group(group),
            )
            for group in GROUPS
        }
        self._books = {group: Books(self.place.group(group)) for group in GROUPS}
        self.counts = dict.fromkeys(GROUPS, Counts())
        self.account: Account | None = None
        self.sent_per_s = 0.0
        self.lost_blobs: list[str] = []
        """Days of which something is lost for ever: a blob was damaged or removed, and the hub's events are gone."""
        self._looks = 0
        self._wakes: set[asyncio.Task[None]] = set()

    @property
    def homes(self) -> int:
        return self._settings.homes

    @property
    def speed(self) -> float:
        return self._settings.speed

    @property
    def source(self) -> HubSource:
        assert self._source is not None
        return self._source

    @property
    def generates(self) -> bool:
        return self._generator is not None and self._generator.returncode is None

    async def start(self) -> None:
        hub = Hub.create(self.place.hub, PARTITIONS, retention_s=RETENTION_S, retention_bytes=RETENTION_BYTES)
        hub.close()
        self._source = HubSource(str(self.place.hub))
        await self._begin_blobs()
        wall_s = self._clock.wall() + BEGIN_S
        begin_s = wall_s if self._settings.begin_s is None else self._settings.begin_s
        pace = Pace(begin_ms=int(begin_s * 1000), begin_wall_ms=int(wall_s * 1000), speed=self._settings.speed)
        town = Town(homes=self._settings.homes, seed=self._settings.seed)
        self.place.save(Scene(town=town, pace=pace, blobs=self.where, write_s=self._settings.write_s))
        log = self.place.folder / "generator.log"
        self._generator = await start("examples.home_security.generator", str(self.place.folder), log=log)
        for _ in range(self._settings.consumers):
            for fleet in self.fleets.values():
                await fleet.add()

    async def _begin_blobs(self) -> None:
        try:
            await self.blobs.put(ABOUT, pack(self._about), None)
        except Conflict as error:
            raise Misconfigured(
                f"There are aggregates of another hub at {self.where.partition('?')[0]}: name an empty place."
            ) from error

    @property
    def _about(self) -> About:
        return About(LAYOUT, PARTITIONS, self._settings.homes)

    # --- what an operator may do
    def consumer(self, group: str, name: str) -> Consumer | None:
        return next((one for one in self.fleets[group].running if one.name == name), None)

    def kill(self, group: str, consumer: Consumer) -> str:
        self.fleets[group].kill(consumer)
        return f"{consumer.name} was killed (SIGKILL). Others take its partitions over within ten seconds."

    def stall(self, group: str, consumer: Consumer) -> str:
        self.fleets[group].stall(consumer)
        task = asyncio.create_task(self._wake(group, consumer))
        self._wakes.add(task)
        task.add_done_callback(self._wakes.discard)
        return f"{consumer.name} is stalled (SIGSTOP), and goes on after {STALL_S:g} s."

    def add_detectors(self) -> str:
        if self.place.detectors.exists():
            return "Every home has a carbon-monoxide detector already."
        self.place.detectors.touch()
        return "Every home has a carbon-monoxide detector from now on: a quarter more events."

    async def _wake(self, group: str, consumer: Consumer) -> None:
        await self._clock.sleep(STALL_S)
        self.fleets[group].wake(consumer)

    # --- looking
    async def watch(self) -> None:
        """Counts again and again, for the figures of the console."""
        while True:
            with suppress(Transient):
                await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        before, self.account = self.account, read_account(self.place)
        if before is not None and self.account is not None:
            fresh = (self.account.sent - before.sent) / LOOK_S
            self.sent_per_s += (fresh - self.sent_per_s) * 0.3
        if self._looks % LIST_LOOKS == 0:
            self.lost_blobs = [path.removeprefix(lost_name("")) for path in await self.blobs.paths(LOST)]
        self._looks += 1
        newest = await self.newest()
        for group, books in self._books.items():
            books.read()
            reached = {partition: books.reached(partition) for partition in newest}
            lag = sum(max(0, last - reached[partition]) for partition, last in newest.items())
            self.counts[group] = Counts(tally=books.tally(reached), lag=lag)

    async def newest(self) -> dict[PartitionId, int]:
        """The last sequence of every partition."""
        partitions = [partition.id for partition in await self.source.partitions()]
        return {
            partition: found.newest.sequence
            for partition, found in (await self.source.bounds(partitions)).items()
            if found.newest is not None and found.newest.sequence is not None
        }

    # --- the end
    async def drain(self) -> None:
        """Let the homes fall silent, and wait until everything is handled and written, though not for ever."""
        if self._generator is not None:
            await end([self._generator], STOP_S)
        deadline_s = self._clock.now() + DRAIN_S
        while not await self._is_all_done() and self._clock.now() < deadline_s:
            await self._clock.sleep(LOOK_S / 4)

    async def _is_all_done(self) -> bool:
        newest = await self.newest()
        self._books[ALERTS].read()
        if self._books[ALERTS].tally(newest).lost:
            return False
        return all([await self._is_written(partition, last) for partition, last in newest.items() if last >= 0])

    async def _is_written(self, partition: PartitionId, last: int) -> bool:
        """Also a recent part that is damaged is written again by its owner; until then, it is not."""
        with suppress(Corrupt, Transient):
            recent = await read(self.blobs, recent_name(partition), Recent)
            return recent is not None and recent.upto >= last
        return False

    async def summary(self) -> Summary:
        """After the last consumer has ended. The moves of that end itself do not count."""
        moves = {group: await self._moves(group) for group in GROUPS}
        await asyncio.gather(*[fleet.end() for fleet in self.fleets.values()])
        if isinstance(self.blobs, Folder):
            self.blobs.tidy()
        newest = await self.newest()
        for books in self._books.values():
            books.read()
        account = read_account(self.place) or nothing_sent(self.place.scene().pace)
        delays = {group: read_delays(self.place.group(group)) for group in GROUPS}
        return Summary(
            sent=account.sent,
            verdict=await judge(self.place, self.blobs, self._about, account),
            tallies={group: books.tally(newest) for group, books in self._books.items()},
            moves=moves,
            delays_s={group: (percentile_s(found, 0.5), percentile_s(found, 0.99)) for group, found in delays.items()},
            died=tuple(self._died()),
        )

    def _died(self) -> list[str]:
        dead = [
            f"{consumer.name}: {fleet.last_words(consumer)}"
            for fleet in self.fleets.values()
            for consumer in fleet.consumers
            if consumer.fate == "died"
        ]
        # Who is asked before it has begun has no ear for it yet, and ends by the signal itself.
        if self._generator is not None and self._generator.returncode not in (0, -signal.SIGTERM, None):
            dead.append(f"generator: ended with {self._generator.returncode}, see generator.log")
        return dead

    async def close(self) -> None:
        """Leave no process and no open file, however it ended."""
        for task in self._wakes:
            task.cancel()
        try:
            await asyncio.gather(*[fleet.end(within_s=0.0) for fleet in self.fleets.values()])
            if self._generator is not None:
                await end([self._generator], 0.0)
        finally:
            self.blobs.close()
            await self.store.aclose()
            if self._source is not None:
                await self._source.aclose()

    async def _moves(self, group: str) -> Counter[str]:
        """How many by kind, as far back as the store keeps them."""
        identity = await self.source.identity()
        found = await self.store.moves(Group(identity.namespace, identity.hub, group), MOVES)
        return Counter(kind(move.reason) for move in found)
