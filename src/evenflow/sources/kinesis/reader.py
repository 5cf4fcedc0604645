"""Reads one shard: within the limits that it shares with everybody who reads it, and to its very end."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from evenflow.errors import SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.kinesis.client import IteratorExpired, Missing, Throttled, back_off_s, time_of
from evenflow.sources.kinesis.codec import event_of, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event, Partition, PartitionId
    from evenflow.sources.kinesis.client import Link

READ_EVERY_S = 0.21
"""A shard may be read five times a second, by all its readers together."""
REFUSED_S = 30.0
"""A shard that lets nobody read for so long is told: it is not this reader alone that asks for too much."""
QUIET_S = 3600.0
"""Where nothing has come for so long, a time goes on being a place to begin at, when the last record has expired."""
QUIET_SINCE = timedelta(seconds=QUIET_S / 6)
"""That time is so long ago: no clock of the service is as wrong as that, and nothing came since then."""
RECORDS_MOST = 10_000
RECORD_BYTES = 500
"""A guess, for how many records to ask."""


class Shards(Protocol):
    """What a reader asks its source."""

    async def placed(self, shard: PartitionId, after: Position) -> str | None: ...
    async def children(self, shard: PartitionId) -> tuple[Partition, ...]: ...


class KinesisReader:
    def __init__(
        self, link: Link, shards: Shards, shard: PartitionId, after: Position, iterator: str | None, poll_s: float
    ) -> None:
        self._link, self._shards, self._shard = link, shards, shard
        self._iterator = iterator
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._given, self._got = after, after
        """The position after what was returned, and after what was received."""
        self._events: deque[Event] = deque()
        self._children: tuple[Partition, ...] | None = None
        self._asking: asyncio.Future[dict[str, Any]] | None = None
        self._is_behind = True
        """Until an answer has said otherwise: an empty one is not the end of the log."""
        self._next_s = 0.0
        self._quiet_until_s = self._loop.time() + QUIET_S
        self._refusals = 0
        self._refused_since_s = 0.0

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        until_s = self._loop.time() + max_wait_s
        while not self._events:
            if self._iterator is None:
                return await self._last()
            if not self._is_behind and self._loop.time() >= until_s:
                return Batch([], self._given)
            await self._receive(max_events, max_bytes, until_s)
        events = self._taken(max_events, max_bytes)
        self._given = events[-1].position
        return Batch(events, self._given, sum(len(event.body) for event in events))

    async def aclose(self) -> None:
        if self._asking is not None and not self._asking.cancel() and not self._asking.cancelled():
            self._asking.exception()  # nobody wants to know any more

    def _taken(self, max_events: int, max_bytes: int) -> Sequence[Event]:
        events, size_bytes = [self._events.popleft()], 0
        size_bytes = len(events[0].body)
        while self._events and len(events) < max_events and size_bytes + len(self._events[0].body) <= max_bytes:
            events.append(self._events.popleft())
            size_bytes += len(events[-1].body)
        return events

    async def _last(self) -> Batch:
        """It was split or merged, and all of it is read."""
        if self._children is None:
            self._children = await self._shards.children(self._shard)
        return Batch([], self._given, 0, self._children)

    async def _receive(self, max_events: int, max_bytes: int, until_s: float) -> None:
        """One request, when it is time for one; what it brings is kept, also when this is cancelled."""
        now_s = self._loop.time()
        if self._asking is None and now_s < self._next_s:
            await self._link.rest((self._next_s if self._is_behind else min(self._next_s, until_s)) - now_s)
            return
        if self._asking is None:
            limit = min(RECORDS_MOST, max(max_events, max_bytes // RECORD_BYTES, 1))
            request = self._link.ask("get_records", ShardIterator=self._iterator, Limit=limit)
            self._asking = asyncio.ensure_future(request)
        try:
            answer = await asyncio.shield(self._asking)
        except asyncio.CancelledError:
            raise
        except Throttled as error:
            self._refused(error)
        except IteratorExpired:
            self._asking = None
            self._iterator = await self._shards.placed(self._shard, self._got)
        except Missing as error:
            self._asking = None
            raise SourceUnavailable(f"{error} It was deleted while it was read, or has expired.") from error
        except BaseException:
            self._asking = None
            raise
        else:
            self._answered(answer)

    def _refused(self, error: Throttled) -> None:
        """Too often, or too much at once: the same again later. The lease is kept meanwhile."""
        now_s = self._loop.time()
        self._asking, self._is_behind = None, True
        if not self._refusals:
            self._refused_since_s = now_s
        self._refusals += 1
        self._next_s = now_s + back_off_s(self._refusals)
        refused_s = now_s - self._refused_since_s
        if refused_s >= REFUSED_S:
            raise SourceUnavailable(
                f"Shard {self._shard} has let nothing be read for {refused_s:.0f} s: {error}. See who else reads it,"
                " and give those a longer poll_s; or split it."
            ) from error

    def _answered(self, answer: dict[str, Any]) -> None:
        self._asking, self._refusals = None, 0
        self._events.extend(map(event_of, answer["Records"]))
        self._iterator = answer.get("NextShardIterator")
        self._is_behind = answer.get("MillisBehindLatest", 0) > 0
        self._next_s = self._loop.time() + (READ_EVERY_S if self._is_behind else self._poll_s)
        if self._events:
            self._got = self._events[-1].position
            self._quiet_until_s = self._loop.time() + QUIET_S
        elif not self._is_behind and self._loop.time() >= self._quiet_until_s:
            self._quiet_until_s = self._loop.time() + QUIET_S
            self._given = self._got = moment(time_of(answer) - QUIET_SINCE)


class ExpiredReader:
    """Of a shard that has expired: there is nothing of it, but for its children."""

    def __init__(self, shards: Shards, shard: PartitionId, after: Position) -> None:
        self._shards, self._shard, self._after = shards, shard, after

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        return Batch([], self._after, 0, await self._shards.children(self._shard))

    async def aclose(self) -> None:
        pass
