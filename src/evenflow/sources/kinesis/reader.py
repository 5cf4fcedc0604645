"""Reads one shard to its end, within the limits that all consumers of the shard share."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from evenflow.errors import SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.kinesis.client import IteratorExpired, KinesisNotFound, Throttled, back_off_s, time_of
from evenflow.sources.kinesis.codec import event_of, position_at_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event, Partition, PartitionId
    from evenflow.sources.kinesis.client import KinesisClient

READ_EVERY_S = 0.21
"""A shard may be read five times a second, by all its consumers together."""
REFUSED_S = 30.0
"""Throttling for this long is reported as an error: other consumers use up the shard's limit."""
QUIET_S = 3600.0
"""After this long without a record, the position becomes a time: it stays valid when the last record expires."""
QUIET_SINCE = timedelta(seconds=QUIET_S / 6)
"""How far that time lies in the past. Nothing arrived since then, and no clock of the service is wrong by as much."""
RECORDS_MOST = 10_000
RECORD_BYTES = 500
"""An estimate, to decide how many records to request."""


class ShardQueries(Protocol):
    """What a reader needs from its source."""

    async def iterator_after(self, shard: PartitionId, after: Position) -> str | None: ...
    async def children(self, shard: PartitionId) -> tuple[Partition, ...]: ...


class KinesisReader:
    def __init__(
        self,
        client: KinesisClient,
        shards: ShardQueries,
        shard: PartitionId,
        after: Position,
        iterator: str | None,
        poll_s: float,
    ) -> None:
        self._client, self._shards, self._shard = client, shards, shard
        self._iterator = iterator
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._given, self._got = after, after
        """The position after what was returned, and after what was received."""
        self._events: deque[Event] = deque()
        self._children: tuple[Partition, ...] | None = None
        self._request: asyncio.Future[dict[str, Any]] | None = None
        self._is_behind = True
        """True until an answer says otherwise: an empty answer does not mean the end of the shard."""
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
        if self._request is not None and not self._request.cancel() and not self._request.cancelled():
            self._request.exception()  # marks the exception as retrieved

    def _taken(self, max_events: int, max_bytes: int) -> Sequence[Event]:
        events, size_bytes = [self._events.popleft()], 0
        size_bytes = len(events[0].body)
        while self._events and len(events) < max_events and size_bytes + len(self._events[0].body) <= max_bytes:
            events.append(self._events.popleft())
            size_bytes += len(events[-1].body)
        return events

    async def _last(self) -> Batch:
        """The shard was split or merged, and all of it was read."""
        if self._children is None:
            self._children = await self._shards.children(self._shard)
        return Batch([], self._given, 0, self._children)

    async def _receive(self, max_events: int, max_bytes: int, until_s: float) -> None:
        """One request, when it is due. Its answer is kept even if this is cancelled."""
        now_s = self._loop.time()
        if self._request is None and now_s < self._next_s:
            await self._client.rest((self._next_s if self._is_behind else min(self._next_s, until_s)) - now_s)
            return
        if self._request is None:
            limit = min(RECORDS_MOST, max(max_events, max_bytes // RECORD_BYTES, 1))
            request = self._client.ask("get_records", ShardIterator=self._iterator, Limit=limit)
            self._request = asyncio.ensure_future(request)
        try:
            answer = await asyncio.shield(self._request)
        except asyncio.CancelledError:
            raise
        except Throttled as error:
            self._refused(error)
        except IteratorExpired:
            self._request = None
            self._iterator = await self._shards.iterator_after(self._shard, self._got)
        except KinesisNotFound as error:
            self._request = None
            raise SourceUnavailable(f"{error} It was deleted while it was being read, or has expired.") from error
        except BaseException:
            self._request = None
            raise
        else:
            self._answered(answer)

    def _refused(self, error: Throttled) -> None:
        """Schedules the same request again after a pause. The lease is kept meanwhile."""
        now_s = self._loop.time()
        self._request, self._is_behind = None, True
        if not self._refusals:
            self._refused_since_s = now_s
        self._refusals += 1
        self._next_s = now_s + back_off_s(self._refusals)
        refused_s = now_s - self._refused_since_s
        if refused_s >= REFUSED_S:
            raise SourceUnavailable(
                f"Shard {self._shard} has been throttled for {refused_s:.0f} s: {error}. Check which other consumers"
                " read it and give them a longer poll_s, or split the shard."
            ) from error

    def _answered(self, answer: dict[str, Any]) -> None:
        self._request, self._refusals = None, 0
        self._events.extend(map(event_of, answer["Records"]))
        self._iterator = answer.get("NextShardIterator")
        self._is_behind = answer.get("MillisBehindLatest", 0) > 0
        self._next_s = self._loop.time() + (READ_EVERY_S if self._is_behind else self._poll_s)
        if self._events:
            self._got = self._events[-1].position
            self._quiet_until_s = self._loop.time() + QUIET_S
        elif not self._is_behind and self._loop.time() >= self._quiet_until_s:
            self._quiet_until_s = self._loop.time() + QUIET_S
            self._given = self._got = position_at_time(time_of(answer) - QUIET_SINCE)


class ExpiredReader:
    """The reader of an expired shard: it has no events left, only children."""

    def __init__(self, shards: ShardQueries, shard: PartitionId, after: Position) -> None:
        self._shards, self._shard, self._after = shards, shard, after

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        return Batch([], self._after, 0, await self._shards.children(self._shard))

    async def aclose(self) -> None:
        pass
