"""Changes of documents, end to end through a change feed processor, against a bare loop over the same feed; and what
leases cost.

Each feed is read from its beginning, in turns: by the bare loop that somebody would write without a processor, and
through `ChangeFeedProcessor` with checkpoints every second, from the first document handled to the last. A feed is one
more line in `FEEDS`.

What leases cost is counted over half a minute, of four hosts and 100 ranges that have settled; what comes more seldom
than that is added. .NET's change feed processor, with its defaults, renews each lease every 17 s, and each host looks
for leases every 13 s: each counts as one request.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import uvloop

from benchmarks import _containerfeed, _cosmosfeed, _leases, _pgfeed
from benchmarks.harness import Bar, Figure, Result, at_least, at_most, figure, say
from evenflow.changefeed import ChangeFeedProcessor
from evenflow.core.checkpointing import Every
from evenflow.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from evenflow.changefeed import ChangeContext

CHANGES = 200_000
COSMOS_CHANGES = 10_000
TURNS = 7
RATIO_LEAST = 0.8

RENEW_S, ACQUIRE_S = 17.0, 13.0
"""The defaults of .NET."""
SHARE_MOST = 0.5


class Feed(Protocol):
    """A feed that holds so many changes, and stays as it is."""

    @property
    def changes(self) -> int: ...

    @property
    def monitored(self) -> str: ...

    def bare(self, max_items: int) -> float:
        """Read all of it without a processor; changes a second."""
        ...


class Entry(NamedTuple):
    name: str
    fed: Callable[[], AbstractContextManager[Feed]]
    max_items: int = 100
    """Of a page: the same for both."""
    has_bar: bool = True


class Table(NamedTuple):
    """A watched table of PostgreSQL."""

    feed: _pgfeed.Feed

    @property
    def changes(self) -> int:
        return self.feed.changes

    @property
    def monitored(self) -> str:
        return self.feed.url

    def bare(self, max_items: int) -> float:
        assert max_items == _pgfeed.AT_ONCE
        return _pgfeed.bare(self.feed, msgspec.json.decode)


@contextmanager
def table() -> Iterator[Feed]:
    with _pgfeed.fed(CHANGES) as feed:
        yield Table(feed)


FEEDS = (
    Entry("embedded container", lambda: _containerfeed.fed(CHANGES)),
    Entry("embedded container, all versions", lambda: _containerfeed.fed(CHANGES, "all"), has_bar=False),
    Entry("Cosmos DB, local endpoint", lambda: _cosmosfeed.fed(COSMOS_CHANGES)),
    Entry("PostgreSQL table", table, _pgfeed.AT_ONCE),
)


def run() -> Result:
    figures, bars = lease_operations()
    for entry in FEEDS:
        say(f"{entry.name} ...")
        more, held = compared(entry)
        figures, bars = [*figures, *more], [*bars, *held]
    return Result(figures, bars)


# --- changes a second
def compared(entry: Entry) -> tuple[list[Figure], list[Bar]]:
    with entry.fed() as feed:
        turns = [(feed.bare(entry.max_items), through(feed, entry.max_items)) for _ in range(TURNS + 1)][1:]
    ratio = median(processor / loop for loop, processor in turns)
    figures = [
        figure(f"{entry.name}, bare loop", [loop for loop, _ in turns], "changes/s"),
        figure(f"{entry.name}, processor", [processor for _, processor in turns], "changes/s"),
    ]
    return figures, [at_least(f"{entry.name}, processor / bare loop", ratio, RATIO_LEAST)] if entry.has_bar else []


def through(feed: Feed, max_items: int) -> float:
    """A processor on all ranges, in this process; changes a second, from the first that is handled to the last."""
    seen, times_s = 0, [0.0, 0.0]

    async def main() -> None:
        ended = asyncio.Event()
        processor = ChangeFeedProcessor(
            feed.monitored,
            MemoryStore(),
            "bench",
            start="beginning",
            max_items=max_items,
            checkpoint=Every(seconds=1.0),
        )

        @processor.on_changes
        async def handle(changes: list[dict[str, Any]], context: ChangeContext) -> None:
            nonlocal seen
            times_s[seen > 0] = perf_counter()
            seen += len(changes)
            times_s[1] = perf_counter()
            if seen >= feed.changes:
                ended.set()

        async with processor:
            await ended.wait()

    uvloop.run(main())
    assert seen == feed.changes
    return feed.changes / (times_s[1] - times_s[0])


# --- what leases cost
def lease_operations() -> tuple[list[Figure], list[Bar]]:
    """A minute of a settled fleet: what it asks of the store for its leases, and what .NET's would."""
    say("leases ...")
    net = _leases.RANGES * 60.0 / RENEW_S + _leases.HOSTS * 60.0 / ACQUIRE_S
    name = f"requests a minute for {_leases.RANGES} leases of {_leases.HOSTS} hosts"
    found = _leases.counted()
    figures = [figure(f"{name}, {store}", [ours], "a minute") for store, ours in found.items()]
    figures.append(figure(f"{name}, .NET by its defaults", [net], "a minute"))
    return figures, [at_most(f"{name}, {store} / .NET", ours / net, SHARE_MOST) for store, ours in found.items()]
