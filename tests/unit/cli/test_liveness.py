"""How the supervisor knows that a worker is alive."""

from __future__ import annotations

import asyncio
import os

from evenflow.cli.liveness import JOINED, RUNNING, STUCK_S, WorkerLiveness
from evenflow.runtime.clock import SystemClock


class ManualClock(SystemClock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 0.0
        self.now = lambda: self.at_s


def state(health: WorkerLiveness) -> str:
    if health.is_stuck:
        return "stuck"
    if health.has_joined:
        return "joined"
    return "starting" if health._reported_s is None else "running"


async def send(descriptor: int, reports: bytes) -> None:
    os.write(descriptor, reports)
    await asyncio.sleep(0.05)


def test_a_worker_is_stuck_when_its_loop_is_blocked_but_not_while_it_starts() -> None:
    async def main() -> None:
        clock = ManualClock()
        health = WorkerLiveness(clock)
        sending = health.begin()
        clock.at_s = 10 * STUCK_S
        assert state(health) == "starting"
        await send(sending, RUNNING)
        assert state(health) == "running"
        clock.at_s += STUCK_S + 1
        assert state(health) == "stuck"
        await send(sending, JOINED + RUNNING)
        assert state(health) == "joined"
        os.close(sending)
        await asyncio.sleep(0.05)
        clock.at_s += STUCK_S + 1
        assert state(health) == "starting", "it has ended; another one starts"

    asyncio.run(main())
