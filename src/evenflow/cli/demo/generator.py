"""The process that plays the homes: sends reports at an even rate until it is asked to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.cli import parent_watch
from evenflow.cli.demo.consumer import hub_path
from evenflow.cli.demo.homes import report
from evenflow.embedded.hub import Hub
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.ports import Clock

TICK_S = 0.1
SENT = "sent"
"""The file with how many events were acknowledged, written anew after each sending."""


async def generate(folder: Path, rate: float, clock: Clock) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sent = 0
    account = os.open(folder / SENT, os.O_WRONLY | os.O_CREAT, 0o600)
    async with Hub(hub_path(folder)) as hub, hub.producer() as producer:
        due, before_s = 0.0, clock.now()
        while not await _is_set_within(stop, TICK_S):
            now_s = clock.now()
            # After a stall, what was missed is not made up for: homes do not report faster then either.
            due = min(due + (now_s - before_s) * rate, rate)
            before_s = now_s
            events = [report(clock.chance) for _ in range(int(due))]
            due -= len(events)
            await producer.send(events)
            sent += len(events)
            os.pwrite(account, b"%20d" % sent, 0)


def sent_so_far(folder: Path) -> int:
    try:
        return int((folder / SENT).read_bytes() or 0)
    except FileNotFoundError:
        return 0


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


if __name__ == "__main__":
    parent_watch.stop_with_parent()
    asyncio.run(generate(Path(sys.argv[1]), float(sys.argv[2]), system_clock()))
