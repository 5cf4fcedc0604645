"""One simulated process: an event loop and a clock of its own, and one processor that runs in it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from evenflow.core.failure import Retry
from evenflow.runtime.processor import Processor
from evenflow.testing.simulated.clocks import BootClock
from evenflow.testing.simulated.cuts import Line
from evenflow.testing.simulated.dead_letters import DeadLettersLine
from evenflow.testing.simulated.options import HEARTBEAT_S, LONGEST_TTL_S, MARGIN_S
from evenflow.testing.simulated.source import source_line
from evenflow.testing.simulated.threads import SimulatedThreads
from evenflow.testing.simulated.timeline import ProcessLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.testing.simulated.world import World


class SimulatedClock:
    """An instance's own clock, and its share of the world's chance."""

    def __init__(self, now: Callable[[], float], rng: random.Random, threads: SimulatedThreads, skew_s: float) -> None:
        self.chance = rng.random
        self.sleep = asyncio.sleep
        self.threads = threads
        self.skew_s = skew_s
        self._now, self._rng = now, rng

    def now(self) -> float:
        if self.threads.running is not None:
            self.threads.linger()
        return self._now()

    def wall(self) -> float:
        return 1_000_000_000.0 + self.skew_s + self.now()

    def nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


class Process:
    """One simulated process with one processor."""

    def __init__(self, world: World, name: str, number: int) -> None:
        rng, options = world.rng, world.options
        self.name, self.number = name, number
        rate = 1.0 + rng.uniform(-options.drift, options.drift)
        start_s = rng.uniform(0.0, 1e6)
        self.boot = BootClock(world.timeline, rate=rate, start_s=start_s)
        self.loop = ProcessLoop(  # type: ignore[abstract]
            world.timeline, clock=world.clocks.loop_clock(self.boot, start_s)
        )
        self.ttl_s = rng.choice(options.ttls_s)
        self.retiring = False
        self.line = Line()
        failing = options.failing
        own_rng = random.Random(options.seed * 7919 + 15 + number * 104729)
        self.threads = SimulatedThreads(world.timeline, self.loop, own_rng, calm=options.is_calm or world.healed)
        self.clock = SimulatedClock(self.boot.now, rng, self.threads, skew_s=rng.uniform(-1e5, 1e5))
        self.processor = Processor(
            source_line(world, self),
            world.line_of(self),
            "group",
            instance_id=name,
            start=options.start,
            checkpoint=options.checkpoint,
            # Where no event is bad, a handler fails for ever only where it never succeeds.
            retry=failing.retry if failing is not None else Retry(attempts=None),
            dead_letter=DeadLettersLine(world) if failing is not None else world.dead_letters,
            dead_letter_order=failing.order if failing is not None else None,  # type: ignore[arg-type]
            breaker=failing.breaker if failing is not None else None,
            concurrency=options.concurrency,
            handler_timeout_s=options.limit_s,
            min_partitions=options.least_of(name),
            weight=options.weight_of(name),
            balance=options.balance,
            load_s=options.load_s,
            heartbeat_s=HEARTBEAT_S,
            ttl_s=self.ttl_s,
            margin_s=MARGIN_S,
            longest_ttl_s=LONGEST_TTL_S,
            refresh_s=5.0,
            stop_s=120.0,
            batch_events=7,
            prefetch_events=20,
            clock=self.clock,
        )
        world.give_handler(self)
        self.task = self.loop.start(self.processor.serve())

    def __repr__(self) -> str:
        return f"{self.name}/{self.number}"

    async def pause(self, seconds: float) -> None:
        """Of a handler: on its thread, or on the loop."""
        if self.threads.running is not None:
            self.threads.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    def freeze(self, seconds: float) -> None:
        """It is stopped in the middle of a handler's call."""
        (self.loop if self.threads.running is None else self.threads).freeze(seconds)

    @property
    def is_up(self) -> bool:
        return not self.loop.dead and not self.task.done()

    @property
    def patience_s(self) -> float:
        """In true time."""
        return (self.ttl_s - MARGIN_S) / self.boot.rate
