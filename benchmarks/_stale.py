"""An owner that stands still while its group is deleted and made again: what it still writes afterwards counts for
nothing. The rows of several stores share this."""

from __future__ import annotations

import asyncio
import signal
from time import sleep
from typing import TYPE_CHECKING

from benchmarks._fleet import Fleet, Times, wait_for
from benchmarks.harness import Result, at_least, at_most, figure, say
from evenflow import Hub
from evenflow.ports import Operable
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from evenflow.model import Checkpoint

ROUNDS = 5
PARTITIONS, EVENTS = 4, 4_000
TIMES = Times(heartbeat_s=0.5, ttl_s=2.0)
STALE = {"batch_s": 0.05, "settings": {"batch_events": 20}}
SECOND = {"batch_s": 0.1, "settings": {"batch_events": 5}}
"""Far slower, so that it is far behind the stale one when that goes on."""
STALE_EVENTS, SECOND_EVENTS = 300, 40
"""So many of each partition are handled before it stands still, and before that."""


def measure_stale_owner(row: str, store: str | None, times: Times = TIMES) -> Result:
    """Stop, delete, make again, continue; then both owners die, and a third goes on from the checkpoints."""
    lost, back = [], []
    for number in range(1, ROUNDS + 1):
        missing, before = _round(store, times)
        say(f"round {number} of {ROUNDS}: {missing} events lost; the second owner was {before} events behind")
        lost.append(float(missing))
        back.append(float(before))
    return Result(
        [
            figure(f"{row}: events lost, a round", lost, "events"),
            figure(f"{row}: behind the stale owner when it goes on", back, "events"),
        ],
        [
            at_most(f"{row}: events lost", sum(lost), 0),
            at_least(f"{row}: behind the stale owner, fewest", min(back), 1),
        ],
    )


def _round(store: str | None, times: Times) -> tuple[int, int]:
    with Fleet(store, times, partitions=PARTITIONS) as fleet:
        asyncio.run(_fill(fleet))
        stale = fleet.consume("stale", **STALE)
        wait_for(lambda: _fewest(fleet, "stale") >= STALE_EVENTS, "the first owner to be well under way")
        stale.send_signal(signal.SIGSTOP)
        reached = sum(b.last - b.first + 1 for batches in fleet.handled().values() for b in batches)
        highest = max(lease.epoch for lease in fleet.leases().values())
        asyncio.run(_with_store(fleet, lambda one: one.delete(fleet.group)))
        second = fleet.consume("second", **SECOND)
        wait_for(lambda: _fewest(fleet, "second") >= SECOND_EVENTS and len(_records(fleet)) == PARTITIONS, "the second")
        behind = reached - sum(record.ordinal for record in _records(fleet))
        stale.send_signal(signal.SIGCONT)
        sleep(4 * times.heartbeat_s)
        for process in (stale, second):
            process.kill()
            process.wait()
        fleet.consume("third")
        newest = fleet.newest()
        wait_for(lambda: all(record.position.sequence == newest[record.partition] for record in _records(fleet)), "all")
        return _lost(fleet, highest), behind


def _lost(fleet: Fleet, highest: int) -> int:
    """Events that nobody of the second group has handled. Of the stale one, only what it got there anew counts."""
    lost = 0
    for partition, newest in fleet.newest().items():
        handled = set[int]()
        for batch in fleet.handled().get(partition, ()):
            if batch.consumer != "stale" or batch.epoch > highest:
                handled.update(range(batch.first, batch.last + 1))
        lost += newest + 1 - len(handled)
    return lost


def _fewest(fleet: Fleet, consumer: str) -> int:
    """Of the partition of which it has handled the least."""
    handled = fleet.handled()
    counts = [sum(b.last - b.first + 1 for b in handled[p] if b.consumer == consumer) for p in handled]
    return min(counts) if len(counts) == PARTITIONS else 0


async def _fill(fleet: Fleet) -> None:
    async with Hub(fleet.hub) as hub, hub.producer() as producer:
        for number in range(PARTITIONS):
            await producer.send([b"event"] * (EVENTS // PARTITIONS), partition=str(number))


def _records(fleet: Fleet) -> list[Checkpoint]:
    found: list[Checkpoint] = asyncio.run(_with_store(fleet, lambda one: one.checkpoints(fleet.group)))
    return found


async def _with_store(fleet: Fleet, ask: Callable[[Operable], Awaitable[Any]]) -> Any:
    store = open_store(fleet.store)
    assert isinstance(store, Operable)
    try:
        return await ask(store)
    finally:
        await store.aclose()
