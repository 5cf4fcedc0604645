"""A client of a local Event Hubs that does one thing as fast as it can, and tells how fast that was.

    python -m benchmarks._eventhubs send|official|source|direct|profile '{"hub": ..., "events": ..., ...}'

The connection string is in the environment. It says `ready` when everything is loaded, begins when it is sent a line,
and answers with a line of JSON. A rate is that of the middle: what comes before a tenth and after nine tenths of the
events is not counted, so that connecting is in no figure. CPU is counted from the beginning to the last event.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import logging
import os
import pstats
import sys
from collections import Counter
from itertools import cycle
from pathlib import PurePath
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

from benchmarks._served import GROUP, VARIABLE
from evenflow import Processor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow import Event, OwnedPartition

PASSES_S = 2.0
"""For so long the hub is read directly, over and over: once would be too short to tell."""
PASSES = 3
TOP = 8
WAITING = "waiting"


class Progress:
    """How many events there were, and when."""

    def __init__(self, events: int) -> None:
        self.done = asyncio.Event()
        self.count = 0
        self._events = events
        self._marks: list[tuple[float, int]] = []

    def add(self, count: int) -> None:
        self.count += count
        self._marks.append((perf_counter(), self.count))
        if self.count >= self._events:
            self.done.set()

    def rate(self) -> float:
        (from_s, first), (to_s, last) = self._mark_at(0.1), self._mark_at(0.9)
        return (last - first) / (to_s - from_s)

    def _mark_at(self, share: float) -> tuple[float, int]:
        return next(mark for mark in self._marks if mark[1] >= share * self._events)


async def send(options: dict[str, Any]) -> None:
    """Batches as large as the client makes them, one after the other, to one partition after the other."""
    progress = Progress(options["events"])
    partitions = cycle(map(str, range(options["partitions"])))
    body = os.urandom(options["bytes"])
    async with EventHubProducerClient.from_connection_string(os.environ[VARIABLE], eventhub_name=options["hub"]) as it:
        wait_for_go()
        began_s = process_time()
        while not progress.done.is_set():
            batch = await it.create_batch(partition_id=next(partitions))
            while is_added(batch, body):
                pass
            await it.send_batch(batch)
            progress.add(len(batch))
        answer(rate=progress.rate(), cpu_s=process_time() - began_s, events=progress.count)


def is_added(batch: Any, body: bytes) -> bool:
    try:
        batch.add(EventData(body))
    except ValueError:
        return False
    return True


async def official(options: dict[str, Any], tell: Callable[..., None] | None = None) -> None:
    """Azure's own client, with its `receive_batch`."""
    tell = tell or answer
    progress = Progress(options["events"])

    async def handle(context: Any, events: list[Any]) -> None:
        progress.add(len(events))

    client = EventHubConsumerClient.from_connection_string(os.environ[VARIABLE], GROUP, eventhub_name=options["hub"])
    wait_for_go()
    began_s = process_time()
    async with client:
        receiving = asyncio.create_task(
            client.receive_batch(
                handle, starting_position="-1", prefetch=options["prefetch"], max_batch_size=options["prefetch"]
            )
        )
        await progress.done.wait()
        tell(rate=progress.rate(), cpu_s=process_time() - began_s, events=progress.count)
    await receiving


async def source(options: dict[str, Any]) -> None:
    """A processor of this project over Event Hubs."""
    url = f"eventhubs:///{options['hub']}?connection_string_env={VARIABLE}&prefetch={options['prefetch']}"
    wait_for_go()
    began_s = process_time()
    progress = Progress(options["events"])
    async with processor(url, GROUP, progress):
        await progress.done.wait()
        answer(rate=progress.rate(), cpu_s=process_time() - began_s, events=progress.count)


async def direct(options: dict[str, Any]) -> None:
    """A processor of this project on the embedded hub itself, beside the server."""
    wait_for_go()
    began_s, until_s, events = process_time(), perf_counter() + PASSES_S, 0
    rates: list[float] = []
    while len(rates) < PASSES or perf_counter() < until_s:
        progress = Progress(options["events"])
        async with processor(f"hub:{options['folder']}", f"pass{len(rates)}", progress):
            await progress.done.wait()
        rates.append(progress.rate())
        events += progress.count
    answer(rate=median(rates), cpu_s=process_time() - began_s, events=events)


def processor(url: str, group: str, progress: Progress) -> Processor:
    made = Processor(url, "memory:", group)

    @made.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        progress.add(len(events))

    return made


def profile(options: dict[str, Any]) -> None:
    """Where the time of Azure's own client goes, as a profiler sees it, which slows calls down more than loops."""
    profiler = cProfile.Profile()
    with asyncio.Runner() as runner:  # inside uvloop it could not be seen who waits
        profiler.enable()
        runner.run(official(options, lambda **_: profiler.disable()))
    modules, functions = Counter[str](), Counter[str]()
    for (file, _, function), (_, _, own_s, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        module = module_of(file, function)
        modules[module] += own_s
        if module != WAITING:
            functions[f"{module}.{function}"] += own_s
    answer(modules=shares(modules), functions=shares(functions, modules.total()))


def module_of(file: str, function: str) -> str:
    if file == "~":
        return WAITING if "epoll" in function or "select" in function else "built-in functions"
    parts = PurePath(file).with_suffix("").parts
    if "site-packages" in parts:
        return ".".join(parts[parts.index("site-packages") + 1 :])
    return "asyncio" if "asyncio" in parts else "other modules"


def shares(found: Counter[str], total: float | None = None) -> dict[str, float]:
    whole = total or found.total()
    return {name: 100 * own_s / whole for name, own_s in found.most_common(TOP)}


def wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def answer(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def main(work: str, options: dict[str, Any]) -> None:
    if work == "profile":
        profile(options)
        return
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run({"send": send, "official": official, "source": source, "direct": direct}[work](options))


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The same for all: uvloop, when it is installed, is not what is compared."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(sys.argv[1], json.loads(sys.argv[2]))
