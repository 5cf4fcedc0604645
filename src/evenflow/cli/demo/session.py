"""One demo from beginning to end: makes the hub, runs the processes, looks at them, and closes the books."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.cli.demo.accounts import Books, Tally
from evenflow.cli.demo.consumer import GROUP, hub_path, store_path
from evenflow.cli.demo.fleet import Consumer, Fleet
from evenflow.cli.demo.generator import sent_so_far
from evenflow.cli.demo.scene import ConsumerSight, PartitionSight, Rates, Scene
from evenflow.cli.profiles import FILE
from evenflow.embedded.hub import Hub
from evenflow.model import Group
from evenflow.operate.inspect.members import MemberContext
from evenflow.operate.inspect.move_groups import group_moves, reason_kind
from evenflow.operate.inspect.ownership import PartitionContext
from evenflow.operate.inspect.survey import HeartbeatTracker, Survey, survey
from evenflow.sources.hub.source import HubSource
from evenflow.stores.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.cli.demo.script import Action
    from evenflow.model import Move, Owner, PartitionId
    from evenflow.ports import Clock

PARTITIONS = 16
RETENTION_S = 300.0
DRAIN_S = 30.0
"""How long the last events may take: a takeover takes ten seconds."""
LOOK_S = 0.1
GONE_S = 6.0
"""How long a consumer that has gone is still shown."""
MOVES = 200
STAFFED_S = 60.0
"""It goes on after so long, also where a consumer has no share yet."""

SENT = "(sent)"


class Summary(Struct, frozen=True, kw_only=True):
    sent: int
    tally: Tally
    moves: Mapping[str, int]
    """How many by kind."""
    died: tuple[str, ...] = ()
    """Consumers that died by themselves, each with its last words."""


class Session:
    def __init__(self, folder: Path, clock: Clock, *, rate: float, seconds: float | None) -> None:
        self._folder = folder
        self._clock = clock
        self._rate = rate
        self._seconds = seconds
        self._fleet = Fleet(folder, clock)
        self._books = Books(folder)
        self._store = SQLiteStore(store_path(folder))
        self._source: HubSource | None = None
        self._heartbeats = HeartbeatTracker()
        self._rates = Rates()
        self._moves: dict[tuple[PartitionId, int], Move] = {}
        self._fresh_moves: list[Move] = []
        self._began_s = clock.now()
        self._started_s: float | None = None
        self._note = f"in another terminal: {self.invitation}"

    @property
    def invitation(self) -> str:
        """The command that shows this demo to `evenflow top`, which finds the profile in its folder."""
        program = "evenflow" if shutil.which("evenflow") else str(Path(sys.executable).with_name("evenflow"))
        return f"cd {self._folder} && {program} top"

    @property
    def elapsed_s(self) -> float:
        """Since every consumer had its share: before that, a script would act on consumers that own nothing."""
        return 0.0 if self._started_s is None else self._clock.now() - self._started_s

    async def start(self, consumers: int) -> None:
        Hub.create(hub_path(self._folder), PARTITIONS, retention_s=RETENTION_S).close()
        write_profile(self._folder)
        self._source = HubSource(str(hub_path(self._folder)))
        await self._fleet.generate(self._rate)
        for _ in range(consumers):
            await self._fleet.add()
        self._began_s = self._clock.now()

    async def act(self, action: Action) -> str:
        """Do it; what was done, in words."""
        running = self._fleet.running
        if action == "add":
            consumer = await self._fleet.add()
            self._note = f"{consumer.name} added"
        elif len(running) < 2:
            self._note = "one consumer must stay: add another first"
        elif action == "kill":
            self._fleet.kill(running[0])
            self._note = f"{running[0].name} killed (SIGKILL)"
        else:
            self._fleet.stop(running[0])
            self._note = f"{running[0].name} asked to stop (SIGTERM)"
        return self._note

    async def look(self) -> Scene:
        assert self._source is not None
        # In this order, so that nothing is handled that was not sent yet, or sent that is not stored yet.
        self._books.read()
        acknowledged = sent_so_far(self._folder)
        identity = await self._source.identity()
        found = await survey(self._store, Group(identity.namespace, identity.hub, GROUP), self._source, MOVES)
        self._remember(found.moves)
        newest = _newest(found)
        stored = sum(last + 1 for last in newest.values())
        sent = max(acknowledged, stored)
        now_s = self._clock.now()
        self._rates.add(now_s, {SENT: sent, **self._books.by_consumer, **self._books.by_partition})
        silences = self._heartbeats.observe(found.ledger.members if found.ledger else (), now_s)
        partitions = self._partition_sights(found, silences, newest)
        consumers = self._consumer_sights(found, silences)
        if self._started_s is None and (_is_staffed(consumers) or now_s - self._began_s > STAFFED_S):
            self._started_s = now_s
        return Scene(
            elapsed_s=self.elapsed_s,
            seconds=self._seconds,
            sent=sent,
            sent_per_s=self._rates.per_s(SENT),
            handled_per_s=sum(partition.per_s for partition in partitions),
            lag=sum(partition.lag for partition in partitions),
            tally=self._books.tally(newest) + Tally(lost=sent - stored),
            partitions=partitions,
            consumers=consumers,
            moves=group_moves(found.moves),
            note=self._note,
        )

    def fresh_moves(self) -> list[Move]:
        """Those that this did not return before, the newest first."""
        fresh, self._fresh_moves = self._fresh_moves, []
        return sorted(fresh, key=lambda move: move.at, reverse=True)

    async def drain(self) -> None:
        """Let the homes fall silent, and wait until everything is handled, though not for ever."""
        await self._fleet.end_generator()
        deadline_s = self._clock.now() + DRAIN_S
        while (await self.look()).tally.lost and self._clock.now() < deadline_s:
            await self._clock.sleep(LOOK_S)

    async def summary(self) -> Summary:
        """After the last consumer has ended. The moves of that end itself do not count."""
        await self.look()
        moves = Counter(reason_kind(move.reason) for move in self._moves.values())
        await self._fleet.end()
        scene = await self.look()
        return Summary(
            sent=scene.sent,
            tally=scene.tally,
            moves=moves,
            died=tuple(
                f"{consumer.name}: {self._fleet.last_words(consumer)}"
                for consumer in self._fleet.consumers
                if consumer.fate == "died"
            ),
        )

    async def close(self) -> None:
        """Leave no process and no open file, however it ended."""
        try:
            await self._fleet.end(within_s=0.0)
        finally:
            await self._store.aclose()
            if self._source is not None:
                await self._source.aclose()

    def _remember(self, moves: Sequence[Move]) -> None:
        """The store keeps only so many."""
        for move in moves:
            if (move.partition, move.epoch) not in self._moves:
                self._moves[move.partition, move.epoch] = move
                self._fresh_moves.append(move)

    def _partition_sights(
        self, found: Survey, silences: Mapping[Owner, float | None], newest: Mapping[PartitionId, int]
    ) -> list[PartitionSight]:
        there = {consumer.name for consumer in self._fleet.consumers if consumer.process.returncode is None}
        return [
            PartitionSight(
                id=row.partition,
                owner=row.owner,
                epoch=row.epoch,
                per_s=self._rates.per_s(row.partition),
                lag=max(0, newest.get(row.partition, -1) - self._books.reached(row.partition)),
                reason=row.reason or "",
                status=row.status,
                astray=row.owner not in there,
            )
            for row in found.partition_rows(PartitionContext(silences=silences))
        ]

    def _consumer_sights(self, found: Survey, silences: Mapping[Owner, float | None]) -> list[ConsumerSight]:
        members = {row.id: row for row in found.member_rows(MemberContext(silences=silences))}
        sights = []
        for consumer in self._fleet.consumers:
            row = members.get(consumer.name)
            owned = row.partitions if row is not None else 0
            if self._is_shown(consumer, owned):
                sights.append(
                    ConsumerSight(
                        name=consumer.name,
                        fate=consumer.fate,
                        partitions=owned,
                        per_s=self._rates.per_s(consumer.name),
                        silent_s=row.silent_s if row is not None else None,
                        ttl_s=row.ttl_s if row is not None else 0.0,
                    )
                )
        return sights

    def _is_shown(self, consumer: Consumer, owned: int) -> bool:
        if consumer.process.returncode is None or owned:
            return True
        consumer.gone_s = consumer.gone_s or self._clock.now()
        return self._clock.now() - consumer.gone_s < GONE_S


def _is_staffed(consumers: Sequence[ConsumerSight]) -> bool:
    running = [one.partitions for one in consumers if one.fate == "running"]
    return sum(map(bool, running)) == min(len(running), PARTITIONS)


def write_profile(folder: Path) -> None:
    (folder / FILE).write_text(
        f'default = "{GROUP}"\n\n[profiles.{GROUP}]\nsource = "hub:{hub_path(folder)}"\n'
        f'store = "sqlite:{store_path(folder)}"\ngroup = "{GROUP}"\n'
    )


def _newest(found: Survey) -> dict[PartitionId, int]:
    """The last sequence of every partition; a partition that cannot be read now keeps its events from the sum."""
    return {
        partition: bounds.newest.sequence
        for partition, bounds in found.bounds.items()
        if bounds.newest is not None and bounds.newest.sequence is not None
    }
