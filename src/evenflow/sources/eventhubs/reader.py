"""Reads one partition of an event hub: a task receives ahead of the reads, within bounds, and reconnects.

The reader tracks three positions, each at or ahead of the one before: the last event returned, the last event received,
and the last event known to exist (the expected one). Until the expected event has arrived, no read returns empty.

The service silently skips events that retention has removed. So sequences are compared, and events after a gap are held
back until the partition's oldest sequence was queried. If that is beyond the start of the gap, events were lost, and
the reader raises PositionGone. Otherwise the hub is compacted: it keeps the last event of each key and has many gaps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evenflow.errors import (
    EvenflowError,
    LeaseLost,
    PositionGone,
    PositionOutOfRange,
    SourceUnavailable,
    Transient,
)
from evenflow.model import Batch, Event, Position
from evenflow.sources.eventhubs.errors import BUSY, condition_of, meaning
from evenflow.sources.waiting import Waiter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.model import PartitionId

ATTEMPTS_MOST = 3
"""After this many attempts in a row without an event, reads raise the error."""
FIRST_REST_S = 0.2
BUSY_REST_S = 4.0
"""The pause that the service asks for when it is busy."""
FULL_HEARTBEAT_S = 1.0
"""How often a reader with a full buffer sends a heartbeat and checks whether its link was stolen."""
SILENCE_S = 60.0
"""After this long without an event, the partition is queried: links have been seen to stop delivering."""
EXPECTED_S = 15.0
"""How long events that exist may take to arrive."""
CANCEL_S = 0.05
GATHER_S = 0.002
"""The delay between an event's arrival and the read that returns it, to include the events right behind it."""
STOLEN_REST_S = 0.5
STOLEN_REST_MOST_S = 10.0
STOLEN_FORGET_S = 60.0


class PartitionProperties(Struct, frozen=True):
    """The properties of a partition, as the hub reports them."""

    first: int
    """The sequence of the oldest event; in an empty partition that of the next."""
    last: int
    last_offset: str
    last_at: Any

    def check(self, where: str, after: Position) -> None:
        if after.sequence is None:
            return
        if after.sequence > self.last:
            raise PositionOutOfRange(
                f"{where}: sequence {after.sequence} is beyond the newest event, {self.last}. Was it stored for another"
                " hub?"
            )
        if after.sequence + 1 < self.first:
            raise PositionGone(
                f"{where}: events {after.sequence + 1} to {self.first - 1} are no longer kept. Continue with `evenflow"
                " group seek --to-earliest`, and consider a longer retention."
            )


class StolenLinks:
    """Pauses before a partition is opened again after another receiver stole the link, longer each time.

    If the other receiver is an instance of the group, it owns the lease, and this instance stops. But a receiver
    outside of the group may have a higher owner level without owning the lease in the store: without a pause, this
    instance would claim the lease and lose the link in an endless loop.
    """

    def __init__(self) -> None:
        self._seen: dict[PartitionId, tuple[int, float]] = {}

    def add(self, partition: PartitionId, now_s: float) -> int:
        count = self._seen.get(partition, (0, 0.0))[0] + 1
        self._seen[partition] = (count, now_s)
        return count

    def rest_s(self, partition: PartitionId, now_s: float) -> float:
        count, at_s = self._seen.get(partition, (0, 0.0))
        if count == 0:
            return 0.0
        if now_s - at_s > STOLEN_FORGET_S:
            del self._seen[partition]
            return 0.0
        return max(0.0, at_s + min(STOLEN_REST_MOST_S, STOLEN_REST_S * 2.0 ** (count - 1)) - now_s)


class ReaderContext(Struct, frozen=True):
    """What a reader needs from its source."""

    where: str
    """The partition's name in messages."""
    group: str
    partition: PartitionId
    prefetch: int
    link: Callable[[Position, Callable[[Any], None]], Any]
    properties: Callable[[PartitionId], Awaitable[PartitionProperties]]
    made: Callable[[], Awaitable[str]]
    event_of: Callable[[Any], Event]
    stolen_links: StolenLinks


class EventHubsReader:
    """Reads one partition, forward. `opened` raises at once if the link cannot be opened."""

    def __init__(self, context: ReaderContext, after: Position) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._returned = after
        self._expected: int | None = None
        self._events: deque[Event] = deque()
        self._link: Any = None
        self._is_attached = False
        self._is_leaving = False
        self._created: str | None = None
        self._arrivals = 0
        self._received_s = 0.0
        self._error: Exception | None = None
        self._waiter = Waiter()
        self._next: int | None = None
        """The next sequence, if none is missing."""
        self._gap: int | None = None
        """The first missing sequence, until its reason is known."""
        self._held_back: list[Event] = []
        self._has_taken = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._task = self._loop.create_task(self._run(), name=f"receive {context.where}")

    async def opened(self) -> EventHubsReader:
        """Returns when the link is attached. If the reader must pause first, returns at once, and reads wait."""
        if not self._context.stolen_links.rest_s(self._context.partition, self._loop.time()):
            try:
                while not self._is_attached and self._error is None:
                    await self._waiter.until(None)
            except BaseException:
                await self.aclose()
                raise
        if self._error is not None:
            await self.aclose()
            raise self._error
        return self

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        deadline_s = self._loop.time() + max_wait_s
        if isinstance(self._error, LeaseLost):
            raise self._error  # even if events were received: the new owner handles them by now
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._is_at_end():
                await self._waiter.until(None)
            elif self._loop.time() >= deadline_s:
                return Batch((), self._returned)
            else:
                await self._waiter.until(deadline_s)
        return self._take(max_events, max_bytes)

    async def revoked(self) -> LeaseLost:
        await asyncio.wait([self._task])
        while not isinstance(self._error, LeaseLost):
            await self._loop.create_future()
        return self._error

    @property
    def task(self) -> asyncio.Task[None]:
        """Done when the reader has no link any more."""
        return self._task

    async def aclose(self) -> None:
        """Completes even if the caller is cancelled: a leaked link would keep other receivers out."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        # One cancellation is not enough: Python 3.11's wait_for, which the client uses for every frame, loses it when a
        # frame arrives at that moment.
        while not self._task.done():
            if not self._is_leaving:
                self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_S)
        if self._error is None:
            self._error = SourceUnavailable("This reader was closed. Open a new one.")

    @property
    def _received_to(self) -> Position:
        return self._events[-1].position if self._events else self._returned

    def _take(self, max_events: int, max_bytes: int) -> Batch:
        events, size_bytes = self._events, 0
        taken: list[Event] = []
        while events and len(taken) < max_events:
            size_bytes += len(events[0].body)
            if taken and size_bytes > max_bytes:
                size_bytes -= len(events[0].body)
                break
            taken.append(events.popleft())
        self._returned = taken[-1].position
        self._has_taken.set()
        return Batch(taken, self._returned, size_bytes)

    def _is_at_end(self) -> bool:
        return self._is_attached and self._gap is None and not self._is_expected()

    def _is_expected(self) -> bool:
        received_to = self._received_to.sequence
        return self._expected is not None and received_to is not None and received_to < self._expected

    # --- the task
    async def _run(self) -> None:
        failures = 0
        try:
            await self._rest(self._context.stolen_links.rest_s(self._context.partition, self._loop.time()))
            while True:
                before = self._arrivals
                error = await self._one_link()
                failures = 1 if self._arrivals > before else failures + 1
                found = await self._meaning(error)
                if isinstance(found, LeaseLost):
                    self._context.stolen_links.add(self._context.partition, self._loop.time())
                if not isinstance(found, Transient) or self._created is None or failures > ATTEMPTS_MOST:
                    raise found from (None if found is error else error)
                busy = condition_of(error) == BUSY
                await self._rest(BUSY_REST_S if busy else 0.0 if failures == 1 else FIRST_REST_S * 2**failures)
        except Exception as error:
            self._error = error
        finally:
            self._waiter.wake()

    async def _meaning(self, error: Exception) -> EvenflowError:
        found = meaning(error, self._context.where, self._context.group)
        if isinstance(found, PositionOutOfRange):
            # If the hub was recreated, its positions mean nothing, and that is the error to report.
            try:
                await self._check_created()
            except SourceUnavailable as other:
                return other
        return found

    async def _one_link(self) -> Exception:
        """Receives as long as this link lasts, and returns the error that ended it."""
        self._link = link = self._context.link(self._received_to, self._arrived)
        received_to = self._received_to.sequence
        self._next, self._gap = None if received_to is None else received_to + 1, None
        self._held_back.clear()
        try:
            await link.attach()
            await self._check_hub()
            self._is_attached = True
            self._waiter.wake()
            await self._receive(link)
        except Exception as error:
            return error
        finally:
            self._is_attached, self._is_leaving = False, True
            await link.close()
            self._is_leaving = False
        raise AssertionError("a link is received from until it fails")

    async def _check_hub(self) -> None:
        """Checks that the hub is the same, and that the next event still exists. This is conclusive only after the link
        was attached."""
        properties = await self._context.properties(self._context.partition)
        properties.check(self._context.where, self._received_to)
        self._created = await self._check_created()
        self._expect(properties)

    async def _check_created(self) -> str:
        made = await self._context.made()
        if self._created is not None and self._created != made:
            raise SourceUnavailable(
                f"{self._context.where}: the hub was deleted and recreated while it was being read. Open it again."
            )
        return made

    def _expect(self, properties: PartitionProperties) -> None:
        self._expected, self._received_s = (
            properties.last if properties.last >= properties.first else None,
            self._loop.time(),
        )

    async def _receive(self, link: Any) -> None:
        while True:
            if len(self._events) >= self._context.prefetch:
                await self._wait_until_taken(link)
                continue
            before = self._arrivals
            await link.work()
            if self._arrivals > before:
                self._received_s = self._loop.time()
                await self._check_gap()
            silent_s = self._loop.time() - self._received_s
            if silent_s > EXPECTED_S and self._is_expected():
                raise SourceUnavailable(
                    f"{self._context.where}: no event arrived for {silent_s:.0f} s although there are more."
                )
            if silent_s > SILENCE_S:
                self._expect(await self._context.properties(self._context.partition))

    async def _wait_until_taken(self, link: Any) -> None:
        """The buffer is full: gives no further credit until reads have taken events."""
        while len(self._events) >= self._context.prefetch:
            self._has_taken.clear()
            try:
                async with asyncio.timeout(FULL_HEARTBEAT_S):
                    await self._has_taken.wait()
            except TimeoutError:
                await link.stay()
                await self._check_gap()
        self._received_s = self._loop.time()

    def _arrived(self, message: Any) -> None:
        """The hot path: messages arrive one by one in bursts, and one wake-up serves a burst."""
        event = self._context.event_of(message)
        sequence = event.sequence
        assert sequence is not None
        if self._gap is None and self._next is not None and sequence > self._next:
            self._gap = self._next
        self._next = sequence + 1
        self._arrivals += 1
        if self._gap is None:
            self._events.append(event)
            self._waiter.wake_in(GATHER_S)
        else:
            self._held_back.append(event)

    async def _check_gap(self) -> None:
        """One query for all gaps of a burst: the first gap is the oldest, and retention removes the oldest first."""
        if self._gap is not None:
            properties = await self._context.properties(self._context.partition)
            properties.check(self._context.where, Position("", self._gap - 1))
            self._events.extend(self._held_back)
            self._held_back.clear()
            self._gap = None
            self._waiter.wake()

    async def _rest(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._loop.create_future()
