"""A reader of one partition of an event hub: a task receives ahead of the reads, within bounds, and reconnects.

Three marks, each ahead of the one before: what reads have returned, what has arrived, and what is owed (there was
something up to there when it was last asked). While something is owed, no read says that there is nothing.

The service passes over what retention has removed, without a word. So sequences are compared: what comes behind a gap
is given to nobody before the partition was looked at. Where its oldest event is beyond the gap's beginning, events were
lost, which is PositionGone. Otherwise nothing was: a hub that is compacted keeps the last event of each key, and has
gaps all over.
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

RECONNECTS = 3
"""So many tries in a row without an event; then whoever reads is told."""
FIRST_REST_S = 0.2
BUSY_REST_S = 4.0
"""What the service asks of clients that it has no time for."""
STAY_S = 1.0
"""How often a reader that has enough gives a sign of life, and hears whether its link was taken."""
SILENCE_S = 60.0
"""After so long without an event, somebody asks whether there is one: links have been seen to fall silent."""
OWED_S = 15.0
"""How long events that are there may take to arrive."""
CANCEL_S = 0.05
GATHER_S = 0.002
"""Between an event's arrival and the read that returns it with those that come right behind it."""
THEFT_REST_S = 0.5
THEFT_REST_MOST_S = 10.0
THEFT_FORGOTTEN_S = 60.0


class PartitionFacts(Struct, frozen=True):
    """What the hub says of a partition."""

    first: int
    """The sequence of the oldest event; of an empty one that of the next."""
    last: int
    last_offset: str
    last_at: Any

    def check(self, where: str, after: Position) -> None:
        if after.sequence is None:
            return
        if after.sequence > self.last:
            raise PositionOutOfRange(
                f"{where}: sequence {after.sequence} is after the newest event, {self.last}. Was it another hub's?"
            )
        if after.sequence + 1 < self.first:
            raise PositionGone(
                f"{where}: events {after.sequence + 1} to {self.first - 1} are no longer kept. Go on with `evenflow"
                " group seek --to-earliest`, or give it a longer retention."
            )


class Thefts:
    """Who was disconnected by another receiver rests before it tries again, longer each time.

    Between instances a theft is the end of it: the other one is the owner. But a receiver from outside, with a higher
    owner level, is no owner in the store; without a rest, taking the lease again and losing it would go round and
    round.
    """

    def __init__(self) -> None:
        self._seen: dict[PartitionId, tuple[int, float]] = {}

    def happened(self, partition: PartitionId, now_s: float) -> int:
        count = self._seen.get(partition, (0, 0.0))[0] + 1
        self._seen[partition] = (count, now_s)
        return count

    def rest_s(self, partition: PartitionId, now_s: float) -> float:
        count, at_s = self._seen.get(partition, (0, 0.0))
        if count == 0:
            return 0.0
        if now_s - at_s > THEFT_FORGOTTEN_S:
            del self._seen[partition]
            return 0.0
        return max(0.0, at_s + min(THEFT_REST_MOST_S, THEFT_REST_S * 2.0 ** (count - 1)) - now_s)


class Desk(Struct, frozen=True):
    """What a reader needs of its source."""

    where: str
    """How messages call this partition."""
    group: str
    partition: PartitionId
    prefetch: int
    link: Callable[[Position, Callable[[Any], None]], Any]
    facts: Callable[[PartitionId], Awaitable[PartitionFacts]]
    made: Callable[[], Awaitable[str]]
    event_of: Callable[[Any], Event]
    thefts: Thefts


class EventHubsReader:
    """Reads one partition, forward. Made by `opened`, which tells at once what is wrong."""

    def __init__(self, desk: Desk, after: Position) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._returned = after
        self._owed: int | None = None
        self._events: deque[Event] = deque()
        self._link: Any = None
        self._is_attached = False
        self._is_leaving = False
        self._made: str | None = None
        self._arrivals = 0
        self._heard_s = 0.0
        self._error: Exception | None = None
        self._waiter = Waiter()
        self._next: int | None = None
        """The sequence that comes next, if none is missing."""
        self._gap: int | None = None
        """The first one that is missing, until it is known why."""
        self._behind: list[Event] = []
        self._room = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._task = self._loop.create_task(self._run(), name=f"receive {desk.where}")

    async def opened(self) -> EventHubsReader:
        """Once the link is there; but one that has to rest before is not waited for: its reads wait."""
        if not self._desk.thefts.rest_s(self._desk.partition, self._loop.time()):
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
            raise self._error  # also of what has come: somebody else handles it by now
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
        """Done when it has no link any more."""
        return self._task

    async def aclose(self) -> None:
        """It ends also where whoever waits for that is cancelled: a link that nobody knows would keep others out."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        # Once is not enough: Python 3.11's wait_for, which the client uses for every frame, forgets that it was
        # cancelled when a frame arrives at that moment.
        while not self._task.done():
            if not self._is_leaving:
                self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_S)
        if self._error is None:
            self._error = SourceUnavailable("This reader was closed. Open another.")

    @property
    def _came_to(self) -> Position:
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
        self._room.set()
        return Batch(taken, self._returned, size_bytes)

    def _is_at_end(self) -> bool:
        return self._is_attached and self._gap is None and not self._is_owed()

    def _is_owed(self) -> bool:
        came_to = self._came_to.sequence
        return self._owed is not None and came_to is not None and came_to < self._owed

    # --- the task
    async def _run(self) -> None:
        failures = 0
        try:
            await self._rest(self._desk.thefts.rest_s(self._desk.partition, self._loop.time()))
            while True:
                before = self._arrivals
                error = await self._one_link()
                failures = 1 if self._arrivals > before else failures + 1
                found = await self._meaning(error)
                if isinstance(found, LeaseLost):
                    self._desk.thefts.happened(self._desk.partition, self._loop.time())
                if not isinstance(found, Transient) or self._made is None or failures > RECONNECTS:
                    raise found from (None if found is error else error)
                busy = condition_of(error) == BUSY
                await self._rest(BUSY_REST_S if busy else 0.0 if failures == 1 else FIRST_REST_S * 2**failures)
        except Exception as error:
            self._error = error
        finally:
            self._waiter.wake()

    async def _meaning(self, error: Exception) -> EvenflowError:
        found = meaning(error, self._desk.where, self._desk.group)
        if isinstance(found, PositionOutOfRange):
            # In another hub of the same name positions mean nothing: that is what has to be told.
            try:
                await self._check_made()
            except SourceUnavailable as other:
                return other
        return found

    async def _one_link(self) -> Exception:
        """Receive as long as this link lasts; what ended it."""
        self._link = link = self._desk.link(self._came_to, self._arrived)
        came_to = self._came_to.sequence
        self._next, self._gap = None if came_to is None else came_to + 1, None
        self._behind.clear()
        try:
            await link.attach()
            await self._look_around()
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

    async def _look_around(self) -> None:
        """Is it the hub that it was, and is all there that comes next? Only a look after the opening can tell."""
        facts = await self._desk.facts(self._desk.partition)
        facts.check(self._desk.where, self._came_to)
        self._made = await self._check_made()
        self._owe(facts)

    async def _check_made(self) -> str:
        made = await self._desk.made()
        if self._made is not None and self._made != made:
            raise SourceUnavailable(f"{self._desk.where}: the hub was deleted and made again while it was read.")
        return made

    def _owe(self, facts: PartitionFacts) -> None:
        self._owed, self._heard_s = facts.last if facts.last >= facts.first else None, self._loop.time()

    async def _receive(self, link: Any) -> None:
        while True:
            if len(self._events) >= self._desk.prefetch:
                await self._stay(link)
                continue
            before = self._arrivals
            await link.work()
            if self._arrivals > before:
                self._heard_s = self._loop.time()
                await self._mind_the_gap()
            silent_s = self._loop.time() - self._heard_s
            if silent_s > OWED_S and self._is_owed():
                raise SourceUnavailable(
                    f"{self._desk.where}: nothing came for {silent_s:.0f} s although there are events."
                )
            if silent_s > SILENCE_S:
                self._owe(await self._desk.facts(self._desk.partition))

    async def _stay(self, link: Any) -> None:
        """Enough for now: no further credit until reads have made room."""
        while len(self._events) >= self._desk.prefetch:
            self._room.clear()
            try:
                async with asyncio.timeout(STAY_S):
                    await self._room.wait()
            except TimeoutError:
                await link.stay()
                await self._mind_the_gap()
        self._heard_s = self._loop.time()

    def _arrived(self, message: Any) -> None:
        """The hottest lines: messages come one by one, in handfuls, and one wake-up is enough for a handful."""
        event = self._desk.event_of(message)
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
            self._behind.append(event)

    async def _mind_the_gap(self) -> None:
        """One look for all gaps of a handful: the first is the oldest, and retention removes the oldest first."""
        if self._gap is not None:
            facts = await self._desk.facts(self._desk.partition)
            facts.check(self._desk.where, Position("", self._gap - 1))
            self._events.extend(self._behind)
            self._behind.clear()
            self._gap = None
            self._waiter.wake()

    async def _rest(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._loop.create_future()
