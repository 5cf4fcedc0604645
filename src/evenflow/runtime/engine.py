"""One run of a processor: everything that is made when it starts and gone when it stops."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import nullcontext, suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from evenflow.core.decide import paused_by
from evenflow.core.failure import pause_s
from evenflow.errors import EvenflowError, HubReplaced, LeaseLost, Misconfigured, Transient
from evenflow.model import Group, Member, PartitionId, Position
from evenflow.operate.inspect.survey import conform
from evenflow.ports import Checkable, Grouped, Operable
from evenflow.runtime.alarm import Alarm
from evenflow.runtime.attention import Attention
from evenflow.runtime.calls import caller_for
from evenflow.runtime.charges import charges_of
from evenflow.runtime.committer import Committer
from evenflow.runtime.coordinator import Coordinator, check_source, has_ended
from evenflow.runtime.hold import Hold, Seek
from evenflow.runtime.parts import Handlers, Parts
from evenflow.runtime.pump import Pump
from evenflow.runtime.threads import OwnThreads, Threads
from evenflow.runtime.waits import Waits, given_up
from evenflow.signals import Announcer, Spent, Trouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from evenflow.model import Identity
    from evenflow.ports import Clock, DeadLetters, Source, Start, Store
    from evenflow.runtime.settings import Settings

T = TypeVar("T")

NOBODYS = "left without an owner: every instance has as many as it may have"
CAUGHT_UP_LOOK_S = 0.1
FORCED_END_S = 2.0


class Engine:
    """Made by `open`, which tells the source and the group; ended by `stop`, or by an error that `wait` raises."""

    def __init__(self, parts: Parts, member: Member, alarm: Alarm) -> None:
        self.parts = parts
        self._alarm = alarm
        self.coordinator = Coordinator(parts, member, self._pump)
        self._committer = Committer(parts, self._all_holds, self.coordinator.lost, self.coordinator.may_save)
        handler, batch = parts.handlers.event, parts.handlers.batch
        chosen = handler if handler is not None else batch
        if chosen is None:
            raise Misconfigured("there is no handler: put @processor.on_event or @processor.on_batch above a def.")
        self._caller = caller_for(
            chosen,
            batch=handler is None,
            clock=parts.clock,
            threads=parts.threads,
            limit_s=parts.settings.handler_timeout_s,
        )
        self._attention = Attention(parts, self.coordinator)
        self._main: asyncio.Task[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        source: Source,
        store: Store,
        settings: Settings,
        handlers: Handlers,
        clock: Clock,
        announce: Announcer,
        dead_letters: DeadLetters | None = None,
        give_up_s: float = inf,
    ) -> Engine:
        """Who is away is waited for, but no longer than `give_up_s`."""
        if isinstance(source, Grouped):
            source = source.of_group(settings.group)
        threads = Threads("evenflow-handler", clock.threads if isinstance(clock, OwnThreads) else None)
        cut_off = asyncio.Event()
        limit = settings.concurrency
        gate = asyncio.Semaphore(limit) if limit is not None else nullcontext()
        alarm, waits = Alarm(handlers.trouble, announce, threads, cut_off, gate), Waits()
        patience = _Patience(clock, announce, waits, alarm.ring, give_up_s)
        try:
            identity = await patience.ask(source.identity, "source")
            await _check_dead_letters(dead_letters, announce)
            group, member = Group(identity.namespace, identity.hub, settings.group), _member(settings, clock, identity)
            announce.instance, announce.group, announce.group_name = member.id, str(group), group.name
            parts = Parts(
                group,
                identity.made,
                source,
                store,
                clock,
                settings,
                handlers,
                announce,
                threads,
                cut_off,
                dead_letters,
                waits=waits,
                gate=gate,
                alarm=alarm.ring,
            )
            engine = cls(parts, member, alarm)
            await patience.ask(engine._learn_partitions, "source")
            await patience.ask(engine._look_before_joining, "store")
        except BaseException:
            cut_off.set()
            await alarm.aclose(FORCED_END_S)
            threads.close()
            raise
        return engine

    def start(self) -> None:
        self._main = asyncio.create_task(self.coordinator.run(), name="coordinator")
        self._helpers = [
            asyncio.create_task(self._committer.run(), name="committer"),
            asyncio.create_task(self._refresh(), name="refresh"),
            asyncio.create_task(self._attention.run(), name="attention"),
        ]
        for helper in self._helpers:
            helper.add_done_callback(self._helper_ended)

    async def wait(self) -> None:
        """Until it has ended; raises what ended it."""
        assert self._main is not None
        await asyncio.shield(self._main)

    async def wait_until_caught_up(self, give_up_s: float) -> bool:
        """Whether it has; not when it ends before. Raises what failed again and again for so long."""
        while not self.coordinator.is_caught_up():
            assert self._main is not None
            if self._main.done():
                return False
            if (error := self.parts.waits.given_up(give_up_s, self.parts.clock.now())) is not None:
                raise error
            await self.parts.clock.sleep(CAUGHT_UP_LOOK_S)
        return True

    def halted(self) -> dict[PartitionId, str]:
        """Partitions that stand still, and why: paused ones, those that nobody may have, and of mine those that a
        failure halted."""
        known = sorted(name for name in self.coordinator.chart.known if not self.coordinator.is_ended(name))
        paused = {name: wish for name in known if (wish := self.coordinator.pause_of(name)) is not None}
        planned = self.coordinator.decision.plan.owners if self.coordinator.decision is not None else {}
        nobodys = dict.fromkeys((name for name in known if planned.get(name, "") is None), NOBODYS)
        return (
            nobodys
            | {name: paused_by(wish) for name, wish in paused.items()}
            | {hold.partition: hold.halted for hold in self._all_holds() if hold.halted}
        )

    async def stop(self, *, done: bool = False) -> None:
        """Drain, commit, hand over, leave, inside the deadline; then whatever is left is cut off. `done` says that all
        was handled that it came for."""
        assert self._main is not None
        self.coordinator.retire(done=done)
        ended, _ = await asyncio.wait([self._main], timeout=self.parts.settings.stop_s)
        await self._cut_off()
        if charges := self.charges():
            self.parts.announce(Spent, units=charges)
        if ended:
            self._main.result()

    def charges(self) -> dict[str, float]:
        """What the services of the source and of the store count, of each kind of operation."""
        return charges_of(self.parts.source, self.parts.store)

    async def _cut_off(self) -> None:
        assert self._main is not None
        self.parts.cut_off.set()
        if not self._main.done():
            self._main.cancel()
        await self.coordinator.abandon("leaving", FORCED_END_S)
        for helper in self._helpers:
            helper.cancel()
        await asyncio.wait([self._main, *self._helpers])
        await self._alarm.aclose(FORCED_END_S)
        self.parts.threads.close()

    async def seek(self, to: Start, partitions: Sequence[PartitionId] | None) -> Mapping[PartitionId, Position]:
        if self.coordinator.is_in_a_call():
            raise Misconfigured(
                "a seek waits for the handler calls that run, so a handler must not wait for it: start it in a task."
            )
        holds = self._holds_of(partitions)
        places = {hold.partition: await self.parts.source.resolve(hold.partition, to) for hold in holds}
        seeks = [(hold, Seek(places[hold.partition])) for hold in holds]
        for hold, seek in seeks:
            self.coordinator.seek(hold, seek)
        await asyncio.gather(*(seek.done for _, seek in seeks))
        return places

    def _holds_of(self, partitions: Sequence[PartitionId] | None) -> list[Hold]:
        held = self.coordinator.holds
        named = [partitions] if isinstance(partitions, str) else partitions
        wanted = list(held if named is None else dict.fromkeys(named))
        missing = [partition for partition in wanted if partition not in held]
        for partition in missing:
            if self.coordinator.is_ended(partition):
                raise LeaseLost(has_ended(partition))
        paused = [partition for partition in missing if self.coordinator.pause_of(partition) is not None]
        if paused:
            raise LeaseLost(
                f"partition {', '.join(paused)} is paused, so that nobody owns it, and a seek goes through the owner."
                " Resume it first, or seek from outside with `evenflow group seek`."
            )
        if missing:
            raise LeaseLost(
                f"this instance does not own partition {', '.join(missing)}: a seek goes through the owner."
            )
        return [held[partition] for partition in wanted]

    def _all_holds(self) -> list[Hold]:
        return list(self.coordinator.holds.values())

    async def _pump(self, hold: Hold) -> None:
        pump = Pump(self.parts, hold, self._caller, self._committer, self.coordinator)
        await pump.run()

    def _helper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.coordinator.fail(task.exception())  # type: ignore[arg-type]

    async def _look_before_joining(self) -> None:
        """Who cannot stay must not join: others would pass it partitions, which then wait for its time-to-live."""
        if isinstance(self.parts.store, Operable):
            ledger = await self.parts.store.peek(self.parts.group)
            if ledger is not None:
                check_source(self.parts.group, ledger, self.coordinator.me.source)

    # --- the source's partitions
    async def _refresh(self) -> None:
        failures = 0
        while True:
            await self._until_curious(failures)
            tried_s = self.parts.clock.now()
            try:
                await self._learn_partitions()
                failures = 0
                self.parts.waits.end("partitions")
            except HubReplaced:
                raise
            except EvenflowError as error:
                failures += 1
                self.parts.announce(Trouble, where="source", error=error, attempt=failures)
                if self.parts.waits.begin("partitions", error, tried_s):
                    self.parts.alarm(error)

    async def _learn_partitions(self) -> None:
        await self.parts.check_hub()
        chart = self.coordinator.chart
        asked, questions = chart.strangers(self.coordinator.leases), chart.questions
        chart.curious.clear()
        partitions = await self.parts.source.partitions()
        await conform(self.parts.store, self.parts.group, self.parts.source)
        self.coordinator.learn(partitions, asked, questions)

    async def _until_curious(self, failures: int) -> None:
        """Every now and then; sooner when the ledger tells of partitions that the source was not asked about."""
        clock, wait_s = self.parts.clock, self.parts.settings.refresh_s
        if failures:
            wait_s = min(wait_s, pause_s(failures, clock.chance()))
            await clock.sleep(wait_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.coordinator.chart.curious.wait()


class _Patience(NamedTuple):
    """With the first contact: who is away for a moment is waited for; a wrong setting is an error."""

    clock: Clock
    announce: Announcer
    waits: Waits
    alarm: Callable[[Exception], None]
    give_up_s: float

    async def ask(self, question: Callable[[], Awaitable[T]], where: str) -> T:
        attempt, began_s = 0, self.clock.now()
        while True:
            try:
                found = await question()
            except Transient as error:
                attempt += 1
                if self.waits.begin(where, error, began_s):
                    self.alarm(error)
                waited_s = self.clock.now() - began_s
                if waited_s >= self.give_up_s:
                    raise given_up(error, waited_s) from error
                # The last try is when it gives up, and not the last one that its pauses happen to leave room for.
                again_in_s = min(pause_s(attempt, self.clock.chance()), self.give_up_s - waited_s)
                self.announce(Trouble, where=where, error=error, attempt=attempt, again_in_s=again_in_s)
                await self.clock.sleep(again_in_s)
            else:
                self.waits.end(where)
                return found


def _member(settings: Settings, clock: Clock, identity: Identity) -> Member:
    nonce = clock.nonce()
    return Member(
        id=settings.instance_id or f"{socket.gethostname()}-{os.getpid()}-{nonce[:8]}",
        nonce=nonce,
        ttl_s=settings.ttl_s,
        heartbeat_s=settings.heartbeat_s,
        weight=settings.weight,
        max_partitions=settings.max_partitions,
        min_partitions=settings.min_partitions,
        version=_version(),
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=clock.wall(),
        source=identity.source,
        load={} if settings.balance == "load" else None,
    )


async def _check_dead_letters(dead_letters: object, announce: Announcer) -> None:
    """A target that is not there is told now, and not with the first letter. One that is away may be back by then."""
    if isinstance(dead_letters, Checkable):
        try:
            await dead_letters.check()
        except Transient as error:
            announce(Trouble, where="dead letters", error=error)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("evenflow")
    except PackageNotFoundError:
        return "unknown"
