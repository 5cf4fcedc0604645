"""What the processes of the hub tests do: `python -m tests.integration.hub_worker ROLE PATH ...`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

from evenflow.embedded.hub import Hub
from evenflow.model import BEGINNING
from evenflow.sources.hub.source import HubSource

if TYPE_CHECKING:
    from evenflow.ports import Reader

MUCH = 1 << 30


def say(text: str) -> None:
    """Written at once and whole, so that a killed process has said everything it did."""
    os.write(1, f"{text}\n".encode())


async def write(path: str, name: str, sends: str, batch_events: str) -> None:
    """Send numbered events to partition 0, and say which are acknowledged."""
    async with Hub(path) as hub, hub.producer() as producer:
        say("ready")
        for send in range(int(sends)):
            first = send * int(batch_events)
            texts = [f"{name}:{first + n}" for n in range(int(batch_events))]
            ((_, start, end),) = await producer.send(texts, partition=0)
            say(f"{first} {first + len(texts) - 1} {start} {end}")


async def number(path: str, count: str) -> None:
    """Send numbered batches up to so many, the newest ones again, and say where each is."""
    async with Hub(path) as hub:
        producer = hub.producer("counter")
        last = await producer.last_number(0)
        say("ready")
        for n in range(max(0, (last or 0) - 3), int(count)):
            ((_, start, end),) = await producer.send([f"{n}:{part}" for part in range(3)], partition=0, number=n)
            say(f"{n} {start} {end}")


async def send_when_told(path: str) -> None:
    """For each line of stdin, send one event that holds the time before it was sent."""
    async with Hub(path) as hub:
        await hub.send(b"0", partition=1)
        say("ready")
        while await asyncio.to_thread(sys.stdin.readline):
            await hub.send(str(time.monotonic_ns()), partition=0)


async def read(path: str, count: str) -> None:
    """Read so many events of partition 0, and print them."""
    source = HubSource(path)
    reader = await source.open("0", BEGINNING, epoch=1)
    say("ready")
    found = 0
    while found < int(count):
        batch = await reader.read(1000, MUCH, 10.0)
        found += len(batch.events)
        for event in batch.events:
            say(event.body.decode())
    await source.aclose()


async def read_for_ever(path: str) -> None:
    """Read partition 0 from the beginning again and again, as fast as possible."""
    source = HubSource(path)
    say("ready")
    while True:
        reader = await source.open("0", BEGINNING, epoch=1)
        while (await reader.read(1000, MUCH, 0.0)).events:
            pass
        await reader.aclose()


async def idle(path: str, seconds: str) -> None:
    """Wait for events in all partitions, and print how much of a core that took."""
    source = HubSource(path)
    readers: list[Reader] = [await source.open(one.id, BEGINNING, epoch=1) for one in await source.partitions()]
    for reader in readers:
        await reader.read(10, MUCH, 0.0)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    waits = [reader.read(10, MUCH, float(seconds)) for reader in readers]
    assert not any(batch.events for batch in await asyncio.gather(*waits))
    say(str((time.process_time() - cpu_s) / (time.perf_counter() - wall_s)))
    await source.aclose()


async def hold(path: str) -> None:
    """Stay inside a write transaction."""
    with Hub(path).opened().log(0)._use() as connection:
        connection.execute("BEGIN IMMEDIATE")
        say("ready")
        await asyncio.to_thread(sys.stdin.read)


async def grow(path: str, more: str) -> None:
    with Hub(path) as hub:
        hub.add_partitions(int(more))


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
