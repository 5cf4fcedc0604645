"""How a supervisor knows that a worker is well."""

from __future__ import annotations

import asyncio
import os

from evenflow.cli.pulse import JOINED, STILL_S, TURNS, Health
from evenflow.runtime.clock import SystemClock


class Hand(SystemClock):
    """A clock that is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 0.0
        self.now = lambda: self.at_s


def state(health: Health) -> str:
    if health.is_stuck:
        return "stuck"
    if health.has_joined:
        return "joined"
    return "starts" if health._turned_s is None else "turns"


async def told(descriptor: int, what: bytes) -> None:
    os.write(descriptor, what)
    await asyncio.sleep(0.05)


def test_a_worker_is_stuck_when_its_loop_stands_still_and_not_while_it_starts() -> None:
    async def main() -> None:
        clock = Hand()
        health = Health(clock)
        sending = health.begin()
        clock.at_s = 10 * STILL_S
        assert state(health) == "starts"
        await told(sending, TURNS)
        assert state(health) == "turns"
        clock.at_s += STILL_S + 1
        assert state(health) == "stuck"
        await told(sending, JOINED + TURNS)
        assert state(health) == "joined"
        os.close(sending)
        await asyncio.sleep(0.05)
        clock.at_s += STILL_S + 1
        assert state(health) == "starts", "it has ended; another one starts"

    asyncio.run(main())
