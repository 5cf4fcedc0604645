"""Reads one partition of a stream, through an ordered pull consumer of its own.

An ordered consumer lives in the server's memory, acknowledges nothing, and may disappear at any time. Its messages are
numbered. When a number is missing, the reader creates another consumer after the last message that it received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.model import Batch, Event, Position
from evenflow.sources.nats.client import JetStreamNotFound
from evenflow.sources.nats.codec import event_of, metadata_of
from evenflow.sources.waiting import Waiter

if TYPE_CHECKING:
    from evenflow.sources.nats.client import JetStreamClient, Msg

PULL_EVENTS = 500
PREFETCH_BYTES = 32 * 1024 * 1024
"""The most that all partitions of a source prefetch together. The server disconnects a client that is twice as far
behind."""
PULL_S = 30.0
HEARTBEAT_S = 1.0
SILENT_S = 3.5
"""The reader creates another consumer after this long without a message or a heartbeat."""
INACTIVE_S = 60.0
NANOSECONDS = 1_000_000_000


async def consumer_for(client: JetStreamClient, config: dict[str, Any]) -> dict[str, Any]:
    """Creates a consumer that the server removes when it is idle for a while."""
    whole = {
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "replay_policy": "instant",
        "inactive_threshold": int(INACTIVE_S * NANOSECONDS),
        **config,
    }
    return await client.ask(f"CONSUMER.CREATE.{client.stream}", {"stream_name": client.stream, "config": whole})


class NatsReader:
    def __init__(self, client: JetStreamClient, subject: str, after: int, made: str) -> None:
        self._client = client
        self._subject = subject
        self._after = self._received = after
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._number = 0
        """The number of the last message from this consumer."""
        self._pending = 0
        """How many more messages the consumer has, as last reported."""
        self._has_gap = False
        """The received sequences have a gap: messages of other partitions, or messages that were removed."""
        self._consumer = self._inbox = ""
        self._subscription: Any = None
        self._is_pulled = False
        self._asked = self._pulled = 0
        self._is_large = False
        """The next message is larger than this reader's share of memory, so it is pulled alone."""
        self._is_idle = False
        """The server had nothing to send for a while, even if it reported pending messages before."""
        self._is_broken = False
        self._heard_s = 0.0
        self._waiter = Waiter()
        client.readers.add(self)

    async def begin(self) -> None:
        """Creates another consumer, after the last message received or known to belong to other partitions."""
        self._is_broken = True  # if this is interrupted, the next read tries again
        await self._end()
        if (await self._client.info()).made != self._made:
            raise SourceUnavailable(f"{self._client} was deleted or recreated while it was being read. Open it again.")
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._received, self._after) + 1}
        found = await consumer_for(self._client, {**start, "filter_subject": self._subject})
        self._consumer, self._pending = found["name"], found["num_pending"]
        self._number, self._is_pulled, self._is_idle = 0, False, False
        self._subscription = await self._client.subscribe(self._take)
        self._inbox = self._subscription.subject
        self._is_broken = False
        await self._pull()

    def cut(self) -> None:
        """The connection was lost: the pull that is pending will not be answered."""
        self._is_broken = True
        self._waiter.wake()

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        until_s = self._loop.time() + max_wait_s
        while not self._events:
            if self._is_broken or self._loop.time() - self._heard_s > SILENT_S:
                self._client.check_allowed(f"$JS.API.{self._next_subject}")
                self._client.check_allowed(self._inbox)
                await self.begin()
            if self._loop.time() >= until_s and (not self._pending or self._is_idle):
                return await self._empty_batch()
            await self._pull()
            await self._wait_until(max(until_s, self._loop.time() + 0.05) if not self._pending else None)
        await self._check_kept()
        after, batch = self._after, self._taken(max_events, max_bytes)
        try:
            if self._client.connection.is_up:
                await self._pull()
        except SourceUnavailable:
            self._is_broken = True  # the batch is still returned
        except asyncio.CancelledError:
            self._give_back(batch, after)
            raise
        return batch

    async def aclose(self) -> None:
        self._client.readers.discard(self)
        try:
            await self._end()
        except SourceUnavailable:
            pass  # the server removes the idle consumer by itself

    async def _empty_batch(self) -> Batch:
        """An empty batch. Its position moves past other partitions' messages once it is certain that no message of this
        partition is or was among them."""
        last = (await self._client.info()).last
        self._is_idle = False
        if last <= self._after:
            self._pending = 0
        elif await self._has_all():
            self._check_first((await self._client.info()).first)
            if not self._events:
                self._after = last
        return Batch((), position_at(self._after))

    async def _has_all(self) -> bool:
        """Whether everything that the consumer has was received."""
        try:
            found = await self._client.ask(f"CONSUMER.INFO.{self._client.stream}.{self._consumer}", {})
        except JetStreamNotFound:
            self._is_broken = True
            return False
        if self._events:
            return False
        self._pending = found["num_pending"]
        return not self._pending and bool(found["delivered"]["consumer_seq"] == self._number)

    async def _check_kept(self) -> None:
        """The server silently skips messages that it has removed. So before events after a gap are returned, this
        checks that the stream still has everything after the last event that was read."""
        if not self._has_gap:
            return
        self._check_first((await self._client.info()).first)
        self._has_gap = False

    def _check_first(self, first: int) -> None:
        if first > self._after + 1:
            raise PositionGone(
                f"Events after {self._after} of {self._client} were removed before they were read: the oldest is"
                f' {first}. Start at "earliest" to continue with the events that are left.'
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
        """The read was cancelled: the next one returns this batch."""
        self._events.extendleft(reversed(batch.events))
        self._bytes += batch.size_bytes
        self._after = after

    # --- the consumer
    async def _pull(self) -> None:
        """Requests more messages if no pull is pending and the buffer is not full."""
        if self._is_pulled or self._is_broken or len(self._events) >= PULL_EVENTS:
            return
        share_bytes = PREFETCH_BYTES // max(1, len(self._client.readers))
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
        self._heard_s = self._loop.time()  # silence counts from the request
        await self._client.send_request(self._next_subject, question, self._inbox)

    @property
    def _next_subject(self) -> str:
        return f"CONSUMER.MSG.NEXT.{self._client.stream}.{self._consumer}"

    async def _take(self, message: Msg) -> None:
        if message.subject == self._inbox:
            self._status(message)
        else:
            self._message(message)
        self._waiter.wake()

    def _status(self, message: Msg) -> None:
        """A heartbeat, or the end of a pull: it is complete or expired, or the consumer no longer exists."""
        status = (message.headers or {}).get("Status", "")
        self._heard_s = self._loop.time()
        if status == "100":
            self._is_idle = True
            return
        self._is_pulled = False
        if status in ("404", "408"):
            return
        reason = (message.headers or {}).get("Description", "").lower()
        if "exceeds maxbytes" in reason:
            self._is_large = self._pulled == 0
        else:
            self._is_broken = "batch completed" not in reason

    def _message(self, message: Msg) -> None:
        metadata = metadata_of(message.reply)
        self._heard_s = self._loop.time()
        if metadata.number != self._number + 1:
            self._is_broken = True
        if self._is_broken or metadata.sequence <= self._received:
            return
        self._has_gap = self._has_gap or metadata.sequence != self._received + 1
        self._number, self._received, self._pending = metadata.number, metadata.sequence, metadata.pending
        self._events.append(event_of(message, metadata, self._subject))
        self._bytes += len(message.data)
        self._is_idle = self._is_large = False
        self._pulled += 1
        if self._pulled == self._asked:
            self._is_pulled = False

    async def _end(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        await self._client.unsubscribe(subscription)
        if self._client.connection.is_up:
            await self._client.send_request(f"CONSUMER.DELETE.{self._client.stream}.{self._consumer}", {})

    async def _wait_until(self, time_s: float | None) -> None:
        """Until a message arrives or this time, but never longer than the allowed silence."""
        latest_s = self._heard_s + SILENT_S + 0.05
        await self._waiter.until(latest_s if time_s is None else min(time_s, latest_s))


def position_at(sequence: int) -> Position:
    return Position(str(sequence), sequence)
