"""Looks after what stands still: calls that run too long, partitions that do not advance, partitions without an owner.

It only looks and tells; nothing is stopped or moved from here. A look costs nothing while all is well: the source is
asked for its bounds only about a partition that has not advanced for long.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import EvenflowError
from evenflow.observe.happenings import HandlerSlow, Stalled, Unowned
from evenflow.observe.ownership import lag_of
from evenflow.observe.words import count_of
from evenflow.ports import Delaying

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from evenflow.model import PartitionId
    from evenflow.runtime.coordinator import Coordinator
    from evenflow.runtime.hold import Hold
    from evenflow.runtime.parts import Parts

LOOK_MOST_S = 5.0
STACK_FRAMES = 20


class _Standing(NamedTuple):
    """Since when something has been as it is, and whether that was told."""

    what: object
    since_s: float
    told: bool


class Attention:
    def __init__(self, parts: Parts, coordinator: Coordinator) -> None:
        self._parts = parts
        self._coordinator = coordinator
        self._now = parts.clock.now
        self._limit_s = parts.settings.handler_timeout_s
        self._stalled_s = parts.settings.stalled_after_s
        self._progress: dict[PartitionId, _Standing] = {}
        self._unowned: dict[PartitionId, _Standing] = {}
        self._slow: dict[PartitionId, float] = {}

    async def run(self) -> None:
        look_s = min(LOOK_MOST_S, self._stalled_s / 4, self._limit_s / 4 if self._limit_s else LOOK_MOST_S)
        while True:
            await self._parts.clock.sleep(look_s)
            holds = list(self._coordinator.holds.values())
            if self._limit_s is not None:
                self._find_slow(holds, self._limit_s)
            await self._find_stalled(holds)
            self._find_unowned()

    # --- calls
    def _find_slow(self, holds: Iterable[Hold], limit_s: float) -> None:
        now_s = self._now()
        for hold in holds:
            running = hold.aside or hold
            began_s = running.began_s
            if began_s is None or now_s - began_s <= limit_s or self._slow.get(hold.partition) == began_s:
                continue
            self._slow[hold.partition] = began_s
            self._parts.announce(HandlerSlow, partition=hold.partition, seconds=now_s - began_s, stack=_stack(running))

    # --- partitions that are owned
    async def _find_stalled(self, holds: Iterable[Hold]) -> None:
        now_s, before, self._progress = self._now(), self._progress, {}
        for hold in holds:
            standing = _still(before.get(hold.partition), (hold.epoch, hold.done[0]), now_s)
            is_long = now_s - standing.since_s >= self._stalled_s
            if is_long and not standing.told and hold.sealed is not None and not hold.halted:
                lag = await self._lag(hold)
                if lag:
                    self._tell_stalled(hold, now_s - standing.since_s, lag, await self._held_back(hold))
                    standing = standing._replace(told=True)
            self._progress[hold.partition] = standing

    async def _lag(self, hold: Hold) -> int | None:
        try:
            bounds = await self._parts.source.bounds([hold.partition])
        except EvenflowError:
            return None
        return lag_of(hold.position, bounds.get(hold.partition))

    async def _held_back(self, hold: Hold) -> str | None:
        source: object = self._parts.source
        if not isinstance(source, Delaying):
            return None
        try:
            delay = (await source.held_back([hold.partition])).get(hold.partition)
        except EvenflowError:
            return None
        return delay.why if delay is not None else None

    def _tell_stalled(self, hold: Hold, seconds: float, lag: int, held_back: str | None) -> None:
        why = held_back or "the source delivers nothing"
        began_s = (hold.aside or hold).began_s
        if began_s is not None:
            why = f"its handler has been running for {self._now() - began_s:.0f} s"
        elif hold.notes.failing is not None:
            why = (
                f"its next event has failed {count_of(hold.notes.failing.attempts, 'time')}: {hold.notes.failing.error}"
            )
        self._parts.announce(Stalled, partition=hold.partition, seconds=seconds, lag=lag, why=why)

    # --- partitions that nobody owns
    def _find_unowned(self) -> None:
        """One of the instances tells: the first by name of those that take part."""
        view, decision = self._coordinator.view, self._coordinator.decision
        now_s, before, self._unowned = self._now(), self._unowned, {}
        if view is None or decision is None or self._coordinator.me.id != min(decision.plan.shares, default=""):
            return
        for lease in view.leases.values():
            if lease.owner is not None or lease.ended or lease.partition in decision.unborn:
                continue
            if view.state.pause_of(lease.partition) is not None:
                continue
            standing = _still(before.get(lease.partition), None, now_s)
            if now_s - standing.since_s >= self._stalled_s and not standing.told:
                heir = decision.plan.owners.get(lease.partition)
                why = f"{heir} is to take it" if heir is not None else "all instances have as many as they may"
                seconds = now_s - standing.since_s
                self._parts.announce(Unowned, partition=lease.partition, seconds=seconds, why=why)
                standing = standing._replace(told=True)
            self._unowned[lease.partition] = standing


def _still(before: _Standing | None, what: object, now_s: float) -> _Standing:
    return before if before is not None and before.what == what else _Standing(what, now_s, told=False)


def _stack(hold: Hold) -> str:
    """Where the handler is: on its thread, or in what its task awaits."""
    frame = sys._current_frames().get(hold.thread) if hold.thread is not None else None
    if frame is not None:
        return "".join(traceback.format_stack(frame, limit=STACK_FRAMES))
    return "".join(_awaited(hold.task)) or "(it has just returned)"


def _awaited(task: asyncio.Task[Any] | None) -> list[str]:
    """The chain of coroutines from the task to what it waits for, outermost first."""
    lines: list[str] = []
    inner: Any = task.get_coro() if task is not None else None
    while inner is not None and len(lines) < STACK_FRAMES:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None and frame.f_globals.get("__package__") != __package__:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n')
        inner = _next(inner)
    return lines


def _next(awaiting: Any) -> Any:
    names = ("cr_await", "gi_yieldfrom", "ag_await")
    return next((found for name in names if (found := getattr(awaiting, name, None)) is not None), None)
