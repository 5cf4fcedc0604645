"""A reader of one partition of a stream: an ordered consumer of its own, which is pulled from.

An ordered consumer is one that the server may forget at any time: it acknowledges nothing and lives in memory. Its
messages are numbered, so that one that went missing is noticed; then another consumer begins after the last one that
was read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.model import Batch, Event, Position
from evenflow.sources.nats.client import Missing
from evenflow.sources.nats.codec import event_of, place_of
from evenflow.sources.waiting import Waiter

if TYPE_CHECKING:
    from evenflow.sources.nats.client import Link, Msg

PULL_EVENTS = 500
WAITING_BYTES = 32 * 1024 * 1024
"""What the partitions of one source may hold together: the server cuts off who is behind by twice as much."""
PULL_S = 30.0
HEARTBEAT_S = 1.0
SILENT_S = 3.5
"""Without a heartbeat for so long, the consumer is looked after."""
FORGOTTEN_S = 60.0
NANOSECONDS = 1_000_000_000


async def consumer_for(link: Link, config: dict[str, Any]) -> dict[str, Any]:
    """A consumer that the server forgets when nobody asks it for a while."""
    whole = {
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "replay_policy": "instant",
        "inactive_threshold": int(FORGOTTEN_S * NANOSECONDS),
        **config,
    }
    return await link.ask(f"CONSUMER.CREATE.{link.stream}", {"stream_name": link.stream, "config": whole})


class NatsReader:
    def __init__(self, link: Link, subject: str, after: int, made: str) -> None:
        self._link = link
        self._subject = subject
        self._after = self._received = after
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._number = 0
        """Of the last message of this consumer."""
        self._pending = 0
        """How many more the consumer had, as it last said."""
        self._has_gap = False
        """Between events that were received there were others: of other partitions, or removed."""
        self._consumer = self._inbox = ""
        self._subscription: Any = None
        self._is_pulled = False
        self._asked = self._pulled = 0
        self._is_large = False
        """The next message is larger than this reader's share: it is asked for alone."""
        self._is_idle = False
        """The server had nothing to send for a while, whatever it said before of messages to come."""
        self._is_broken = False
        self._heard_s = 0.0
        self._waiter = Waiter()
        link.readers.add(self)

    async def begin(self) -> None:
        """Another consumer, after the last message that was received, or that is known to be none of ours."""
        self._is_broken = True  # until it has begun, whatever interrupts that
        await self._end()
        if (await self._link.facts()).made != self._made:
            raise SourceUnavailable(f"{self._link} was deleted, or made again, while it was read. Open it again.")
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._received, self._after) + 1}
        found = await consumer_for(self._link, {**start, "filter_subject": self._subject})
        self._consumer, self._pending = found["name"], found["num_pending"]
        self._number, self._is_pulled, self._is_idle = 0, False, False
        self._subscription = await self._link.subscribe(self._take)
        self._inbox = self._subscription.subject
        self._is_broken = False
        await self._pull()

    def cut(self) -> None:
        """The connection is lost: what was asked for will not come."""
        self._is_broken = True
        self._waiter.wake()

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        until_s = self._loop.time() + max_wait_s
        while not self._events:
            if self._is_broken or self._loop.time() - self._heard_s > SILENT_S:
                self._link.check_allowed(f"$JS.API.{self._next_one}")
                self._link.check_allowed(self._inbox)
                await self.begin()
            if self._loop.time() >= until_s and (not self._pending or self._is_idle):
                return await self._nothing()
            await self._pull()
            await self._wait_until(max(until_s, self._loop.time() + 0.05) if not self._pending else None)
        await self._check_kept()
        after, batch = self._after, self._taken(max_events, max_bytes)
        try:
            if self._link.connection.is_up:
                await self._pull()
        except SourceUnavailable:
            self._is_broken = True  # what was taken is given away all the same
        except asyncio.CancelledError:
            self._give_back(batch, after)
            raise
        return batch

    async def aclose(self) -> None:
        self._link.readers.discard(self)
        try:
            await self._end()
        except SourceUnavailable:
            pass  # the server forgets it by itself

    async def _nothing(self) -> Batch:
        """Beyond other partitions' events, once it is sure that none of ours is among them, nor was and is removed."""
        last = (await self._link.facts()).last
        self._is_idle = False
        if last <= self._after:
            self._pending = 0
        elif await self._has_all():
            self._check_first((await self._link.facts()).first)
            if not self._events:
                self._after = last
        return Batch((), position_at(self._after))

    async def _has_all(self) -> bool:
        """Whether the consumer has no more to give than what was received."""
        try:
            found = await self._link.ask(f"CONSUMER.INFO.{self._link.stream}.{self._consumer}", {})
        except Missing:
            self._is_broken = True
            return False
        if self._events:
            return False
        self._pending = found["num_pending"]
        return not self._pending and bool(found["delivered"]["consumer_seq"] == self._number)

    async def _check_kept(self) -> None:
        """The server passes over what it has removed, and says nothing: so before events after a gap are given away, it
        is made sure that the stream still has all that came after what was read."""
        if not self._has_gap:
            return
        self._check_first((await self._link.facts()).first)
        self._has_gap = False

    def _check_first(self, first: int) -> None:
        if first > self._after + 1:
            raise PositionGone(
                f"Events after {self._after} of {self._link} were removed before they were read: the oldest is {first}."
                ' Begin at "earliest" to go on with what is left.'
            )

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        events: list[Event] = []
        size_bytes = 0
        while self._events and len(events) < max_events:
            size = len(self._events[0].body)
            if events and size_bytes + size > max_bytes:
                break
            events.append(self._events.popleft())
            size_bytes += size
        self._bytes -= size_bytes
        assert events[-1].sequence is not None
        self._after = events[-1].sequence
        return Batch(events, position_at(self._after), size_bytes)

    def _give_back(self, batch: Batch, after: int) -> None:
        """Nobody got it: the next read gives it."""
        self._events.extendleft(reversed(batch.events))
        self._bytes += batch.size_bytes
        self._after = after

    # --- the consumer
    async def _pull(self) -> None:
        """Ask for more, when the last question is answered and there is room."""
        if self._is_pulled or self._is_broken or len(self._events) >= PULL_EVENTS:
            return
        share_bytes = WAITING_BYTES // max(1, len(self._link.readers))
        if self._events and (self._is_large or self._bytes > share_bytes // 2):
            return
        self._is_pulled, self._pulled, self._asked = True, 0, 1 if self._is_large else PULL_EVENTS
        question = {
            "batch": self._asked,
            "expires": int(PULL_S * NANOSECONDS),
            "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS),
        }
        if not self._is_large:
            question["max_bytes"] = share_bytes - self._bytes
        self._heard_s = self._loop.time()  # silence counts from the question on
        await self._link.tell(self._next_one, question, self._inbox)

    @property
    def _next_one(self) -> str:
        return f"CONSUMER.MSG.NEXT.{self._link.stream}.{self._consumer}"

    async def _take(self, message: Msg) -> None:
        if message.subject == self._inbox:
            self._status(message)
        else:
            self._message(message)
        self._waiter.wake()

    def _status(self, message: Msg) -> None:
        """A heartbeat, or the end of a question: all was given, or the consumer is gone."""
        status = (message.headers or {}).get("Status", "")
        self._heard_s = self._loop.time()
        if status == "100":
            self._is_idle = True
            return
        self._is_pulled = False
        if status in ("404", "408"):
            return
        said = (message.headers or {}).get("Description", "").lower()
        if "exceeds maxbytes" in said:
            self._is_large = self._pulled == 0
        else:
            self._is_broken = "batch completed" not in said

    def _message(self, message: Msg) -> None:
        place = place_of(message.reply)
        self._heard_s = self._loop.time()
        if place.number != self._number + 1:
            self._is_broken = True
        if self._is_broken or place.sequence <= self._received:
            return
        self._has_gap = self._has_gap or place.sequence != self._received + 1
        self._number, self._received, self._pending = place.number, place.sequence, place.pending
        self._events.append(event_of(message, place, self._subject))
        self._bytes += len(message.data)
        self._is_idle = self._is_large = False
        self._pulled += 1
        if self._pulled == self._asked:
            self._is_pulled = False

    async def _end(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        await self._link.unsubscribe(subscription)
        if self._link.connection.is_up:
            await self._link.tell(f"CONSUMER.DELETE.{self._link.stream}.{self._consumer}", {})

    async def _wait_until(self, time_s: float | None) -> None:
        """Until something came, or this time; and never longer than silence may last."""
        latest_s = self._heard_s + SILENT_S + 0.05
        await self._waiter.until(latest_s if time_s is None else min(time_s, latest_s))


def position_at(sequence: int) -> Position:
    return Position(str(sequence), sequence)
