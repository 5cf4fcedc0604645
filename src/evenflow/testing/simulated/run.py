"""Runs many worlds, on all cores, and one world step by step."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from evenflow.runtime.calls import check_handler, is_async
from evenflow.testing.simulated.checkers import Violation
from evenflow.testing.simulated.options import draw
from evenflow.testing.simulated.world import Application, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CHUNK = 20


class Found(NamedTuple):
    """A world in which an invariant was broken, and what broke it."""

    seed: int
    violation: str

    @property
    def command(self) -> str:
        return f"evenflow sim --seed {self.seed}"


def run_seed(seed: int, say: Callable[[str], None] | None = None) -> Found | None:
    try:
        World(draw(seed), say).run()
    except Violation as violation:
        return Found(seed, str(violation))
    return None


def simulate(
    handler: Application,
    *,
    seeds: Iterable[int] = range(100),
    body: Callable[[int], bytes] = lambda number: b"%d" % number,
) -> int:
    """Put an on_event handler into simulated worlds: it is crashed, stalled, retried and moved as in the worst
    of lives, in virtual time. A plain one runs on simulated threads, one at a time; a time.sleep() in it takes none of
    that. `body` makes the body of the n-th event.

    In the end every event was handled at least once, in order; what the handler did beside is for the caller to
    look at. Returns how many worlds there were. Raises Violation, which names the seed.
    """
    check_handler("on_event", handler)
    is_plain = not is_async(handler)
    count = 0
    logger = logging.getLogger("evenflow")
    before, logger.disabled = logger.disabled, True  # what goes wrong in a simulated world is meant to
    try:
        for seed in seeds:
            options = draw(seed, batch=False, event_gap_s=1.0, latency_s=0.01, failing=None, plain=is_plain)
            world = World(options, application=handler, body=body)
            try:
                world.run()
            except Violation as violation:
                hint = f"; the handler's last error was {world.last_error!r}" if world.last_error is not None else ""
                raise Violation(f"seed {seed}: {violation}{hint}") from (world.last_error or violation)
            count += 1
    finally:
        logger.disabled = before
    return count


def run_seeds(seeds: Iterable[int], workers: int | None = None) -> Iterator[list[Found | None]]:
    """Chunk by chunk, in no fixed order of time, so that progress can be shown."""
    chunks = list(_chunks(seeds))
    count = min(workers or len(os.sched_getaffinity(0)), len(chunks))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_be_quiet) as pool:
        yield from pool.map(_run_chunk, chunks)


def _run_chunk(seeds: list[int]) -> list[Found | None]:
    return [run_seed(seed) for seed in seeds]


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    remaining = iter(seeds)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def _be_quiet() -> None:
    """What goes wrong in a simulated world is meant to."""
    logging.disable(logging.CRITICAL)
