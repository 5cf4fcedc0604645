"""One demo from start to end: creates the hub, runs the processes, counts events, and verifies the result."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evenflow import Corrupt, Hub, Misconfigured, Transient
from evenflow.model import Group
from evenflow.operate.inspect.move_groups import reason_kind
from evenflow.sources.hub.source import HubSource
from evenflow.stores.sqlite.store import SQLiteStore
from examples.home_security.accounts import Books, HandledCounts
from examples.home_security.blobs import Conflict, Folder, open_blobs
from examples.home_security.consuming import percentile_s, read_delays
from examples.home_security.fleet import ConsumerProcess, Fleet, end, ended_how, start
from examples.home_security.generator import Account, nothing_sent, read_account
from examples.home_security.inject import inject
from examples.home_security.layout import ABOUT, LAYOUT, LOST, About, Recent, lost_name, pack, recent_name
from examples.home_security.places import AGGREGATE, ALERTS, GROUPS, PARTITIONS, Pace, Place, Scene, Town, machine_ms
from examples.home_security.reading import read
from examples.home_security.summary import Summary
from examples.home_security.truth import judge
from examples.home_security.waiting import Waiting, cause_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from evenflow.model import PartitionId
    from evenflow.ports import Clock

BEGIN_S = 5.0
"""The homes begin to report after this time, when all consumers have joined."""
STALL_S = 20.0
"""A stalled consumer is woken after this: longer than its time-to-live, so that it has lost everything."""
LOOK_S = 1.0
LIST_LOOKS = 5
"""So many looks for one list of blobs, which costs something in a cloud."""
DRAIN_S = 60.0
"""How long the last events may take: a takeover takes ten seconds."""
STUCK_S = 8.0
"""How long an operator has to fix the cause of events that no instance would handle."""
REPORT_S = 2.0
STOP_S = 40.0
RETENTION_S = 600.0
RETENTION_BYTES = 2 << 30
MOVES = 500


def silently(_: str) -> None:
    """Drops the line."""


class Settings(Struct, frozen=True, kw_only=True):
    homes: int
    speed: float = 1.0
    seed: int = 0
    begin_s: float | None = None
    """The homes' clock at the start, in seconds since 1970; None: the true time."""
    consumers: int = 3
    """Number of consumers of each group at the start."""
    write_s: float = 2.0
    """How often recent parts are rewritten."""
    blobs: str | None = None
    """Where the aggregates go; None: into the demo's own folder."""


class Counts(Struct, frozen=True, kw_only=True):
    """What is known of a group now."""

    tally: HandledCounts = HandledCounts()
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
        """Days with permanent loss: a blob was damaged or removed, and the hub no longer has its events."""
        self._looks = 0
        self._wakes: set[asyncio.Task[None]] = set()
        self._waiting: Mapping[str, Waiting] = {}

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
    def generator_ended(self) -> str:
        """How the generator ended."""
        return ended_how(self._generator.returncode) if self._generator is not None else "it never began"

    @property
    def generates(self) -> bool:
        return self._generator is not None and self._generator.returncode is None

    async def start(self) -> None:
        hub = Hub.create(self.place.hub, PARTITIONS, retention_s=RETENTION_S, retention_bytes=RETENTION_BYTES)
        hub.close()
        self._source = HubSource(str(self.place.hub))
        await self._begin_blobs()
        begin_s = self._settings.begin_s
        if begin_s is None:
            begin_s = self._clock.wall() + BEGIN_S
        begin_machine_ms = int(machine_ms() + BEGIN_S * 1000)
        pace = Pace(begin_ms=int(begin_s * 1000), begin_machine_ms=begin_machine_ms, speed=self._settings.speed)
        town = Town(homes=self._settings.homes, seed=self._settings.seed)
        self.place.save(Scene(town=town, pace=pace, blobs=self.where, write_s=self._settings.write_s))
        module, log = "examples.home_security.generator", self.place.generator_log
        self._generator = await start(module, str(self.place.folder), log=log)
        for _ in range(self._settings.consumers):
            for fleet in self.fleets.values():
                await fleet.add()

    async def _begin_blobs(self) -> None:
        try:
            await self.blobs.put(ABOUT, pack(self._about), None)
        except Conflict as error:
            raise Misconfigured(
                f"{self.where.partition('?')[0]} has aggregates of another hub; name an empty location."
            ) from error

    @property
    def _about(self) -> About:
        return About(LAYOUT, PARTITIONS, self._settings.homes)

    # --- what an operator may do
    def consumer(self, group: str, name: str) -> ConsumerProcess | None:
        return next((one for one in self.fleets[group].running if one.name == name), None)

    def kill(self, group: str, consumer: ConsumerProcess) -> str:
        self.fleets[group].kill(consumer)
        return f"{consumer.name} was killed (SIGKILL). Other instances take over its partitions within ten seconds."

    def stall(self, group: str, consumer: ConsumerProcess) -> str:
        self.fleets[group].stall(consumer)
        task = asyncio.create_task(self._wake(group, consumer))
        self._wakes.add(task)
        task.add_done_callback(self._wakes.discard)
        return f"{consumer.name} is stalled (SIGSTOP), and continues after {STALL_S:g} s."

    def add_detectors(self) -> str:
        if self.place.detectors.exists():
            return "Every home already has a carbon-monoxide detector."
        self.place.detectors.touch()
        return "Every home has a carbon-monoxide detector from now on: a quarter more events."

    async def break_in(self) -> int:
        """Inject a break-in at a random home, with its alarm set; returns the home."""
        home = secrets.randbelow(self.homes)
        await inject(self.place, home, [("door", "open"), ("motion", "moving")], "away")
        return home

    async def _wake(self, group: str, consumer: ConsumerProcess) -> None:
        await self._clock.sleep(STALL_S)
        self.fleets[group].wake(consumer)

    # --- looking
    async def is_staffed(self) -> bool:
        """Whether every consumer that runs owns something, so that others have something to take over from it."""
        for name, fleet in self.fleets.items():
            ledger = await self.store.peek(await self._group(name))
            owners = {lease.owner for lease in ledger.leases} if ledger is not None else set()
            pids = {member.pid for member in ledger.members if member.owner in owners} if ledger is not None else set()
            if sum(one.process.pid in pids for one in fleet.running) < min(len(fleet.running), PARTITIONS):
                return False
        return True

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
            await self._keep_about()
            self.lost_blobs = [path.removeprefix(lost_name("")) for path in await self.blobs.paths(LOST)]
        self._looks += 1
        newest = await self.newest()
        for group, books in self._books.items():
            books.read()
            reached = {partition: books.reached(partition) for partition in newest}
            lag = sum(max(0, last - reached[partition]) for partition, last in newest.items())
            self.counts[group] = Counts(tally=books.tally(reached), lag=lag)

    async def _keep_about(self) -> None:
        """Restore the blob `about` if it was removed or damaged: no owner does that."""
        found, wanted = await self.blobs.get(ABOUT), pack(self._about)
        if found is None or found.data != wanted:
            with suppress(Conflict):
                await self.blobs.put(ABOUT, wanted, found.version if found is not None else None)

    async def newest(self) -> dict[PartitionId, int]:
        """The last sequence of every partition."""
        partitions = [partition.id for partition in await self.source.partitions()]
        return {
            partition: found.newest.sequence
            for partition, found in (await self.source.bounds(partitions)).items()
            if found.newest is not None and found.newest.sequence is not None
        }

    # --- the end
    async def drain(self, say: Callable[[str], None] = silently) -> None:
        """Stop the generator, and wait until everything is handled and written, for a limited time.

        Reports the events that are still waited for. If no instance will handle them, it reports what to do, and waits
        less long.
        """
        if self._generator is not None:
            await end([self._generator], STOP_S)
        began_s = said_s = self._clock.now()
        stuck_s: float | None = None
        said = ""
        while any(one.events for one in (await self._look_who_waits()).values()):
            now_s = self._clock.now()
            stuck_s = (stuck_s or now_s) if self._is_stuck else None
            if now_s - began_s > DRAIN_S or (stuck_s is not None and now_s - stuck_s > STUCK_S):
                return
            line = self._waiting_line()
            if line != said and (now_s - said_s >= REPORT_S or now_s == stuck_s):
                said_s, said = now_s, line
                say(line)
            await self._clock.sleep(LOOK_S / 4)

    @property
    def _is_stuck(self) -> bool:
        """Whether none of the waiting events will be handled without an operator."""
        return all(one.cause is not None for one in self._waiting.values() if one.events)

    def _waiting_line(self) -> str:
        parts = [
            f"{one.events:,} events wait for {group}"
            + (f": {one.cause.what}. In the console, {one.cause.todo}, and they are handled" if one.cause else "")
            for group, one in self._waiting.items()
            if one.events
        ]
        return "; ".join(parts) + (f"; or it ends without them in {STUCK_S:g} s." if self._is_stuck else ".")

    async def _look_who_waits(self) -> Mapping[str, Waiting]:
        newest = await self.newest()
        self._waiting = {group: await self._who_waits(group, newest) for group in GROUPS}
        return self._waiting

    async def _who_waits(self, group: str, newest: Mapping[PartitionId, int]) -> Waiting:
        counts = {partition: last - await self._done(group, partition) for partition, last in newest.items()}
        partitions = {partition: count for partition, count in counts.items() if count > 0}
        if not partitions:
            return Waiting()
        of = await self._group(group)
        ledger, records = await self.store.peek(of), await self.store.checkpoints(of)
        cause = cause_of(list(partitions), ledger, records, self.fleets[group].consumers)
        return Waiting(partitions=partitions, cause=cause)

    async def _done(self, group: str, partition: PartitionId) -> int:
        """The last sequence of a partition that is handled for good: `aggregate` has it in a blob by then."""
        if group == ALERTS:
            self._books[group].read()
            return self._books[group].reached(partition)
        # One that is damaged is written again by its owner; until then, it has nothing.
        with suppress(Corrupt, Transient):
            recent = await read(self.blobs, recent_name(partition), Recent)
            return recent.upto if recent is not None else -1
        return -1

    async def summary(self, say: Callable[[str], None] = silently) -> Summary:
        """Stop all consumers and compare. The moves of this stop do not count."""
        moves = {group: await _moves_by_kind(self.store, await self._group(group)) for group in GROUPS}
        causes = {group: one.cause for group, one in (await self._look_who_waits()).items()}
        await asyncio.gather(*[fleet.end() for fleet in self.fleets.values()])
        if isinstance(self.blobs, Folder):
            self.blobs.tidy()
        # The end itself may have written something, and is no cause.
        found = await self._look_who_waits()
        waiting = {group: replace(one, cause=causes[group]) for group, one in found.items()}
        newest = await self.newest()
        for books in self._books.values():
            books.read()
        account = read_account(self.place) or nothing_sent(self.place.scene().pace)
        delays = {group: read_delays(self.place.group(group)) for group in GROUPS}
        say(f"Comparing what {self.homes:,} homes have sent with what is written, minute by minute ...")
        return Summary(
            sent=account.sent,
            verdict=await judge(
                self.place,
                self.blobs,
                self._about,
                account,
                unwritten=waiting[AGGREGATE].partitions,
                unraised=waiting[ALERTS].partitions,
                report=_now_and_then(self._clock, say),
            ),
            tallies={
                group: books.tally({partition: books.reached(partition) for partition in newest})
                for group, books in self._books.items()
            },
            waiting=waiting,
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
        # A generator that is stopped before it handles signals ends by SIGTERM itself.
        if self._generator is not None and self._generator.returncode not in (0, -signal.SIGTERM, None):
            dead.append(f"generator: {self.generator_ended}; see generator.log")
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

    async def _group(self, name: str) -> Group:
        identity = await self.source.identity()
        return Group(identity.namespace, identity.hub, name)


def _now_and_then(clock: Clock, say: Callable[[str], None]) -> Callable[[int], None]:
    """Reports the number of compared homes from time to time."""
    said_s = clock.now()

    def done(homes: int) -> None:
        nonlocal said_s
        if clock.now() - said_s >= REPORT_S:
            said_s = clock.now()
            say(f"{homes:,} homes compared")

    return done


async def _moves_by_kind(store: SQLiteStore, group: Group) -> Counter[str]:
    """How many moves of each kind, as far back as the store keeps them."""
    return Counter(reason_kind(move.reason) for move in await store.moves(group, MOVES))
