"""Looks after what stands still: calls that run too long, partitions that do not advance, partitions without an owner.

It only looks and tells; nothing is stopped or moved from here. A look costs nothing while events are handled: the
source is asked for its bounds now and then, and only about a partition that does not advance. Most of those are idle,
so a stall counts from when there is lag.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import EvenflowError
from evenflow.operate.inspect.lag import lag_of
from evenflow.ports import Delaying
from evenflow.signals import HandlerSlow, Stalled, Unowned
from evenflow.text import count_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from evenflow.model import PartitionId
    from evenflow.runtime.coordinator import Coordinator
    from evenflow.runtime.hold import Hold
    from evenflow.runtime.parts import Parts

LOOK_MOST_S = 5.0
ASKED_AGAIN = 4
"""So often in the time after which a stall is told, a source is asked about a partition that stands still."""
STACK_FRAMES = 20


class _Standing(NamedTuple):
    """Since when something has been as it is, and whether that was told."""

    since_s: float
    told: bool = False


class _Still(NamedTuple):
    """A partition that does not advance."""

    progress: object
    since_s: float
    asked_s: float
    """When its source was last asked how far behind it is; no earlier than since it stands still."""
    behind_s: float | None = None
    """When that showed lag first; None while it did not."""
    told: bool = False


class Attention:
    def __init__(self, parts: Parts, coordinator: Coordinator) -> None:
        self._parts = parts
        self._coordinator = coordinator
        self._now = parts.clock.now
        self._limit_s = parts.settings.handler_timeout_s
        self._stalled_s = parts.settings.stalled_after_s
        self._still: dict[PartitionId, _Still] = {}
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
        before, self._still = self._still, {}
        for hold in holds:
            if hold.sealed is None or hold.halted:
                continue  # it cannot advance, and why is told elsewhere
            progress, now_s, still = (hold.epoch, hold.done[0]), self._now(), before.get(hold.partition)
            if still is None or still.progress != progress:
                still = _Still(progress, now_s, now_s)
            elif not still.told and now_s - still.asked_s >= self._stalled_s / ASKED_AGAIN:
                still = await self._asked(hold, still._replace(asked_s=now_s))
            self._still[hold.partition] = still

    async def _asked(self, hold: Hold, still: _Still) -> _Still:
        lag = await self._lag(hold)
        if not lag:
            return still if lag is None else still._replace(behind_s=None)
        behind_s = still.asked_s if still.behind_s is None else still.behind_s
        if hold.began_s is not None:
            # What the handler was given was there before its source was asked.
            behind_s = min(behind_s, max(hold.began_s, still.since_s))
        is_long = still.asked_s - behind_s >= self._stalled_s
        if is_long:
            self._tell_stalled(hold, still.asked_s - behind_s, lag, await self._held_back(hold))
        return still._replace(behind_s=behind_s, told=is_long)

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
            standing = before.get(lease.partition) or _Standing(now_s)
            if now_s - standing.since_s >= self._stalled_s and not standing.told:
                heir = decision.plan.owners.get(lease.partition)
                why = f"{heir} is to take it" if heir is not None else "all instances have as many as they may"
                seconds = now_s - standing.since_s
                self._parts.announce(Unowned, partition=lease.partition, seconds=seconds, why=why)
                standing = standing._replace(told=True)
            self._unowned[lease.partition] = standing


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
