"""The way between an instance and the store: slow, and with faults. The store itself is the real one in memory.

A request is sent, takes effect a little later, and is answered a little after that. It may get lost on the way there
or back, or be held up so that it takes effect long after its sender gave up on it. The store takes each as one step.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from evenflow.model import (
        Action,
        Change,
        Checkpoint,
        Cursor,
        Group,
        GroupState,
        Ledger,
        Member,
        Outcome,
        PartitionId,
        Steering,
    )
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World


class StoreLine:
    """The store as one process reaches it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        sent_s = self._world.timeline.now_s
        ledger: Ledger
        ledger, owned = await self._ask("heartbeat", self._world.heartbeat, group, member, since)
        self._world.heartbeat_answered(self._process, sent_s, owned)
        return ledger

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        self._world.swap_sent(self._process, changes)
        outcomes: Sequence[Outcome] = await self._ask("swap", self._world.swap, group, changes)
        return outcomes

    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        seal = partial(self._world.seal, unplanned=unplanned, who=self._process)
        record: Checkpoint = await self._ask("seal", seal, group, partition, epoch, default)
        return record

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        commit = partial(self._world.commit, who=self._process)
        outcomes: Sequence[Outcome] = await self._ask("commit", commit, group, checkpoints)
        return outcomes

    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        state: GroupState = await self._ask("steer", self._world.store.steer, group, steering, action)
        return state

    async def record(self, group: Group, action: Action) -> None:
        await self._ask("record", self._world.store.record, group, action)

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        actions: Sequence[Action] = await self._ask("actions", self._world.store.actions, group, limit)
        return actions

    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Wake-ups travel too, and some are lost."""

        def forward() -> None:
            if not (self._process.line.back or self._world.chance("lost_wake")):
                delay_s = self._world.latency_s()
                asyncio.get_running_loop().call_later(delay_s, wake)

        return self._world.store.watch(group, instance, forward)

    async def aclose(self) -> None:
        """The world's store stays."""

    async def _ask(self, kind: str, request: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        world, timeline = self._world, self._world.timeline
        world.trips[kind] += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there_s = world.latency_s()
        if world.chance("held_up"):
            there_s += world.held_up_s()
        if self._process.line.there or world.chance("lost_request"):
            return await answer  # until the caller's patience ends

        def arrive() -> None:
            done_s = world.desk.done_s(timeline.now_s, _checkpoints(kind, args))
            if done_s > timeline.now_s:
                timeline.push(done_s, take_effect)
            else:
                take_effect()

        def take_effect() -> None:
            if world.outage:
                self._answer(answer, StoreUnavailable("the simulated store is away"))
                return
            result = run_at_once(request(*args))
            if not (self._process.line.back or world.chance("lost_reply")):
                timeline.push(timeline.now_s + world.latency_s(), lambda: self._answer(answer, result))

        timeline.push(timeline.now_s + there_s, arrive)
        return await answer

    def _answer(self, answer: asyncio.Future[Any], result: Any) -> None:
        def tell() -> None:
            if answer.done():
                return
            if isinstance(result, EvenflowError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        self._process.loop.call_soon(tell)


def _checkpoints(kind: str, args: tuple[Any, ...]) -> int:
    """How many checkpoints a request writes."""
    return len(args[1]) if kind == "commit" else int(kind in ("seal", "transact"))


def run_at_once(request: Coroutine[Any, Any, Any]) -> Any:
    """The memory store never waits, so one push runs it whole."""
    try:
        request.send(None)
    except StopIteration as stop:
        return stop.value
    except EvenflowError as error:
        return error
    raise AssertionError("the memory store waited for something")
