"""Reads a partition's past events from the hub: events can be counted again while the hub still has them.

The state of a partition follows from its events (tallying.py), so a blob that is damaged, removed, or older than the
checkpoint is restored by counting again. Events that the hub no longer has are reported as lost, never made up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from evenflow.sources.hub.reader import position_at
from evenflow.sources.hub.source import HubSource
from examples.home_security.layout import FOREVER
from examples.home_security.reports import MINUTE_MS, NotUnderstood, reports_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from evenflow.model import Event
    from examples.home_security.tallying import Tally

READ_EVENTS, READ_BYTES = 5_000, 4 << 20
READ_WAIT_S = 1.0


class History(Protocol):
    def between(self, partition: str, after: int, upto: int) -> AsyncIterator[Sequence[Event]]:
        """The events after one sequence, up to another, as far as they are still there; in order."""
        ...


class HubHistory:
    def __init__(self, hub: Path) -> None:
        self._hub = hub

    async def between(self, partition: str, after: int, upto: int) -> AsyncIterator[Sequence[Event]]:
        source = HubSource(self._hub)
        try:
            oldest = await source.resolve(partition, "earliest")
            begin = max(after, oldest.sequence if oldest.sequence is not None else -1)
            reader = await source.open(partition, position_at(begin), epoch=0)
            try:
                while begin < upto:
                    found = await reader.read(min(READ_EVENTS, upto - begin), READ_BYTES, READ_WAIT_S)
                    if not found.events:
                        return
                    begin = found.events[-1].sequence or 0
                    yield [event for event in found.events if (event.sequence or 0) <= upto]
                    # Counting occupies the event loop for a while: let heartbeats run first.
                    await asyncio.sleep(0)
            finally:
                await reader.aclose()
        finally:
            await source.aclose()


async def oldest_of(hub: Path, partition: str) -> int:
    """The sequence of the oldest event that the hub still has."""
    source = HubSource(hub)
    try:
        return ((await source.resolve(partition, "earliest")).sequence or 0) + 1
    finally:
        await source.aclose()


async def recount(history: History, tally: Tally, upto: int) -> int:
    """Continue the tally up to this event. Returns the minute from which on it has all reports, 0 if none is missing.

    Invalid reports are skipped: they became dead letters the first time.
    """
    wanted, whole = tally.upto + 1, FOREVER
    async for events in history.between(tally.partition, tally.upto, upto):
        if whole == FOREVER:
            whole = 0 if events[0].sequence == wanted else _first_whole_minute(events)
        _count(tally, events)
    return whole


def _count(tally: Tally, events: Sequence[Event]) -> None:
    try:
        tally.add(events)
    except NotUnderstood:
        for event in events:
            try:
                tally.add([event])
            except NotUnderstood:
                continue


def _first_whole_minute(events: Sequence[Event]) -> int:
    """The minute after the first report: reports of its own minute may be missing."""
    for event in events:
        try:
            return reports_of([event.body])[0].at // MINUTE_MS + 1
        except NotUnderstood:
            continue
    return FOREVER
