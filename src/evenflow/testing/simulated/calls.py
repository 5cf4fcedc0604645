"""How the handlers of a simulated world are called: async ones on the loop or plain ones on threads, with or without a
time limit. And what is known of their calls: whether one was ended in time, and whether it counts for what it did.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from evenflow.signals import Trouble
from evenflow.testing.simulated.checkers import Violation

if TYPE_CHECKING:
    from evenflow.model import PartitionId
    from evenflow.signals import Signal
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

PLAIN_SHARE = 0.2
LIMITED_SHARE = 0.3
LIMITS_S = (0.3, 1.0, 4.0)
STUBBORN = 0.2
"""How often an async handler completes although it was cancelled."""
CLEANING_MOST_S = 2.0


def draw_calls(seed: int, drawn: dict[str, Any], *, calm: bool) -> dict[str, Any]:
    """Which kind of handlers the world of this seed has. By dice of its own: other worlds stay.

    Not where shares are judged by the loads: there a call takes the time that its partition's load says.
    """
    if drawn.get("balance") == "load":
        return {}
    rng = random.Random(seed * 7919 + 11)
    plain, limited = rng.random() < PLAIN_SHARE, rng.random() < LIMITED_SHARE
    limit_s = rng.choice(LIMITS_S)
    return {"plain": plain, "limit_s": limit_s if limited and not calm else None}


class InTime:
    """14. A call that completes has succeeded, whatever its limit was, and none is said to have failed that did not. An
    async one is cancelled at its limit; a plain one never. (That none is repeated while it runs, InOrder sees.)"""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._failed: set[tuple[Any, PartitionId]] = set()

    def begins(self, who: Any, partition: PartitionId) -> None:
        self._failed.discard((who, partition))

    def ends(self, who: Any, partition: PartitionId, *, ok: bool) -> None:
        if not ok:
            self._failed.add((who, partition))

    def counted_as_failed(self, who: Any, partition: PartitionId) -> None:
        if (who, partition) not in self._failed:
            raise Violation(f"partition {partition}: a call of {who} is said to have failed, but none has")
        self._failed.remove((who, partition))

    def waited(self, who: Any, partition: PartitionId, seconds: float) -> None:
        """An async call waited for so long, and was not cancelled. (A loop that is blocked may take longer over it.)"""
        if self._limit_s is not None and seconds > self._limit_s:
            raise Violation(f"partition {partition}: a call of {who} waited for {seconds:.3f} s, and was not cancelled")


class Calls:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.options.seed * 7919 + 12)
        self.in_time = InTime(world.options.limit_s)

    def watch(self, process: Process) -> None:
        def listen(signal: Signal) -> None:
            if process.loop.dead or not isinstance(signal, Trouble):
                return  # a process that died in the middle of a step comes to the end of it
            if signal.where == "handler" and signal.partition is not None:
                self._world.checked(self.in_time.counted_as_failed, process, signal.partition)

        process.processor.listen(listen)

    async def pause(self, process: Process, partition: PartitionId, seconds: float) -> None:
        """What takes its time in a call. A part of the handlers complete although they are cancelled."""
        try:
            await process.pause(seconds)
        except asyncio.CancelledError:
            if self._world.options.limit_s is None or self._rng.random() > STUBBORN or not self._world.checking:
                raise
            self._world.tell(f"p{partition} of {process} goes on although it was cancelled")
            await process.pause(self._rng.uniform(0.0, CLEANING_MOST_S))
        else:
            if not self._world.options.plain:
                self._world.checked(self.in_time.waited, process, partition, seconds)
