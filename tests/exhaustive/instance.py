"""One instance of the model: the real Coordinator, with its Memory and its Hold, put together from a record, asked one
thing, and taken apart again.

Real: everything of `runtime/coordinator.py` that runs in one step without an await (taking a ledger in, deciding,
applying, beginning and ending holds, fencing, passing on, what is remembered), and `_swap` and `_send` as a whole, over
a store that answers at once. Modelled: the event loop (it runs nothing; its tasks and timers are steps of the model),
the pump and the committer (`actor.py`), and the chart of partitions, of which there is one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from evenflow.core.decide import decide
from evenflow.errors import StoreUnavailable
from evenflow.model import Change, Checkpoint, Group, Ledger, Member, Outcome, Partition, Position
from evenflow.runtime.coordinator import Coordinator
from evenflow.runtime.hold import Hold
from evenflow.runtime.memory import Memory
from tests.exhaustive.records import PARTITION, Holding, InstanceState, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence

GROUP = Group("", "hub", "group")


class _StillTask:
    """A pump's: the model says when it ends."""

    def add_done_callback(self, callback: Any) -> None: ...
    def set_name(self, name: str) -> None: ...
    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def done(self) -> bool:
        return True


class _StillLoop:
    """Runs nothing."""

    def create_task(self, work: Coroutine[Any, Any, Any] | None, **named: Any) -> _StillTask:
        if work is not None:
            work.close()
        return _StillTask()

    def call_later(self, delay_s: float, callback: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)


@contextmanager
def still_loop() -> Iterator[None]:
    """In which a coordinator's tasks and timers come to nothing."""
    asyncio._set_running_loop(cast("Any", _StillLoop()))
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


class _Pacer:
    most = 1

    @asynccontextmanager
    async def request(self, items: int) -> AsyncIterator[None]:
        yield


class _Answering:
    """The store, as the answer to one swap that was sent before."""

    def __init__(self, outcome: Outcome | None) -> None:
        self._outcome = outcome
        self.body: Body | None = None
        self.heartbeat_sent_s = 0.0

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        if self.body is not None:
            self.body._heartbeat_sent_s = self.heartbeat_sent_s
        if self._outcome is None:
            raise StoreUnavailable("no answer")
        return [self._outcome]


def settings_of(ttl_s: float, longest_ttl_s: float, start: str) -> Any:
    return SimpleNamespace(
        ttl_s=ttl_s,
        heartbeat_s=1.0,
        patience_s=ttl_s - 1.0,
        longest_ttl_s=longest_ttl_s,
        checkpoint=None,
        start_of=lambda partition, late: start,
    )


_PULSE = SimpleNamespace(blocked_s=lambda since_s: 0.0)
_CHART = SimpleNamespace(known={PARTITION: Partition(PARTITION)}, parents={}, look=lambda before, now: None)
_CLOCK = SimpleNamespace(now=lambda: 0.0)


class Body(Coordinator):
    """Now is 0: what a state keeps of time is relative to it."""

    def __init__(self, state: InstanceState, settings: Any) -> None:
        self._before = state
        self._reached = SimpleNamespace(announce=lambda *what, **facts: None, group=GROUP, store=None)
        self._parts = cast("Any", self._reached)
        self._settings = settings
        self._clock = cast("Any", _CLOCK)
        self._start_pump = cast("Any", lambda hold: None)
        self.me, self.view, self.decision = state.me, state.view, None
        self.chart = cast("Any", _CHART)
        self._charted = (_CHART.known, _CHART.parents)
        self._asking = {PARTITION} if state.asking else set()
        self._ready, self._passing, self._tasks = [], None, set()
        self._sightings = None if state.sightings is None else dict(state.sightings)
        self._last_epochs = {PARTITION: state.last_epoch} if state.last_epoch else {}
        self._uncounted = {}  # how often owners ended is not modelled
        self._memory = self._thawed_memory(state)
        self._restorer = self._swaps = cast("Any", _Pacer())
        self._restoring = None
        self._heartbeat_sent_s, self._history_since_s = state.heartbeat_sent_s, state.history_since_s
        self._meter = None
        self._woken = asyncio.Event()
        if state.woken:
            self._woken.set()
        self._fence_timer, self._unanswered, self._last_error = None, 0, ""
        self._pulse = cast("Any", _PULSE)
        self._is_done = self._has_left = False
        self._placed = set()
        self.hold = _thawed(state.hold) if state.hold is not None else None
        self.holds = {PARTITION: self.hold} if self.hold is not None and not self.hold.over else {}
        pump = cast("Any", _StillTask())
        self._pumps = {PARTITION: pump} if state.hold is not None and state.hold.pumping else {}
        self.calling = state.hold is not None and state.hold.calling

    def _thawed_memory(self, state: InstanceState) -> Memory:
        memory = Memory(lambda: self.me.owner, self._starts_at_end)
        memory._remembered = {} if state.remembered is None else {PARTITION: state.remembered}
        memory._tenures = {} if state.tenure is None else {PARTITION: state.tenure}
        memory._lineage, memory._sent_s = state.lineage, state.memory_sent_s
        memory.reclaims = {PARTITION} if state.reclaims else ()
        return memory

    def frozen(self) -> InstanceState:
        memory = self._memory
        hold = self.current
        sightings = self._sightings
        if sightings is not None:
            watched = sorted(sightings.items(), key=lambda one: str(one[0]))
            seen = tuple(one for one in watched if one[0] != self.me.owner)  # nobody asks whether it is alive itself
        return replace(
            self._before,
            me=self.me,
            view=None
            if self.view is None
            else replace(
                self.view, members={name: replace(one, mark=0) for name, one in sorted(self.view.members.items())}
            ),
            sightings=None if sightings is None else seen,
            last_epoch=self._last_epochs.get(PARTITION, 0),
            heartbeat_sent_s=self._heartbeat_sent_s,
            history_since_s=self._history_since_s,
            remembered=memory._remembered.get(PARTITION),
            tenure=memory._tenures.get(PARTITION),
            lineage=memory._lineage,
            memory_sent_s=memory._sent_s,
            reclaims=PARTITION in memory.reclaims,
            hold=None if hold is None else _frozen(hold, self.calling, self.is_pumping),
            asking=PARTITION in self._asking,
            woken=self._woken.is_set(),
        )

    @property
    def current(self) -> Hold | None:
        """The hold that there is, or the one that is over while its pump has not ended."""
        hold = self.holds.get(PARTITION, self.hold)
        return None if hold is not None and hold.over and not self.is_pumping else hold

    @property
    def is_pumping(self) -> bool:
        return PARTITION in self._pumps

    # --- what happens to it
    def answer_heartbeat(self, ledger: Ledger, sent_s: float) -> Change | None:
        """As `_step` does it. What is to be swapped."""
        self._take_in(ledger, sent_s)
        if self._has_left:
            return None
        self.decision = decide(self._situation())
        self._apply(self.decision)
        for change in self.decision.swaps:
            self._asking.add(PARTITION)
            return replace(change, reason=change.reason.partition(":")[0])
        return None

    def answer_claim(self, request: Request, outcome: Outcome | None) -> None:
        """The whole of `_swap`: it began when the request was sent, and ends now."""
        assert request.change is not None
        store = _Answering(outcome)
        store.body, store.heartbeat_sent_s = self, self._heartbeat_sent_s
        self._reached.store = store
        self._heartbeat_sent_s = request.patience_from_s
        _run(self._swap([request.change]))

    def answer_pass(self, request: Request, outcome: Outcome | None) -> None:
        assert request.change is not None
        self._reached.store = _Answering(outcome)
        (found,) = _run(self._send([request.change]))
        if (hold := self.current) is not None and hold.passing:
            self._passed(hold, found, request.patience_from_s)

    def hand_on(self, hold: Hold) -> Change | None:
        """All is committed, and the pump ends."""
        change = self._handoff(hold)
        self.end_pump(hold)
        return None if change is None else replace(change, reason=change.reason.partition(":")[0])

    def heartbeat(self) -> Member:
        self._woken.clear()
        return replace(self.me, leaving=True) if self.me.retiring and self._has_nothing() else self.me

    def due(self) -> Checkpoint | None:
        """What is remembered, and the store may not have."""
        return next(iter(self._memory.due()), None)

    def written(self, record: Checkpoint) -> None:
        for known in self._memory.due():
            if known == record:
                self._memory.written(known)

    @property
    def is_losing(self) -> bool:
        return self._memory.is_losing

    def end_pump(self, hold: Hold) -> None:
        self._pump_ended(hold, self._pumps[PARTITION])


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited for something")


def position(after: int) -> Position:
    """After so many events of the log."""
    return Position(str(after), after)


def _thawed(state: Holding) -> Hold:
    hold = Hold(PARTITION, state.epoch, state.deadline_s, late=state.late, unplanned=state.unplanned)
    hold.stopping, hold.over, hold.heir, hold.passing = state.stopping, state.over, state.heir, state.passing
    hold.reason = cast("Any", state.reason)
    if state.sealed:
        hold.sealed = Checkpoint(partition=PARTITION, epoch=state.epoch, position=position(0), ordinal=0)
    hold.sealed_s = state.sealed_s
    hold.done = state.ordinal, position(state.done)
    hold.committed, hold.edition = state.committed, state.edition
    hold.committed_to = position(state.done - (state.ordinal - state.committed))
    return hold


def _frozen(hold: Hold, calling: bool, pumping: bool) -> Holding:
    return Holding(
        epoch=hold.epoch,
        deadline_s=max(hold.deadline_s, 0.0),
        late=hold.late,
        unplanned=hold.unplanned,
        stopping=hold.stopping,
        over=hold.over,
        reason=hold.reason if hold.stopping else "lost",
        heir=hold.heir,
        passing=hold.passing,
        sealed=hold.sealed is not None,
        sealed_s=hold.sealed_s,
        done=int(hold.position.offset or 0),
        ordinal=hold.done[0],
        committed=hold.committed,
        edition=hold.edition,
        calling=calling,
        pumping=pumping,
    )
