"""Sending: validates events, assigns each to a partition, and retries."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Set
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from evenflow.embedded.hub.batch import Batch
from evenflow.embedded.hub.keys import partition_of
from evenflow.embedded.hub.records import is_storable
from evenflow.errors import EvenflowError, Misconfigured, SendFailed, Transient
from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from evenflow.embedded.hub.open_hub import OpenHub
    from evenflow.embedded.hub.writer import Sent

    Sendable: TypeAlias = Event | bytes | bytearray | memoryview | str


RETRY_S = 10.0
"""How long a producer retries transient failures by default."""
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
"""The pause between two attempts, at first and at most."""
NUMBER_END = 1 << 63


class Producer:
    """Sends events to a hub. Any number of tasks may send at the same time.

    Transient failures are retried for about `retry_s` seconds, and no event is stored twice. With an `id`, the
    application numbers the sends, so that each is stored once even if the program is killed and sends it again.
    """

    def __init__(self, opened: Callable[[], OpenHub], id: str = "", retry_s: float = 0.0) -> None:
        self.id = id
        self._opened = opened
        self._retry_s = retry_s
        # Start the round robin at random: short-lived producers must not all begin with partition 0.
        self._turns = count(int.from_bytes(os.urandom(2), "little"))

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is pending: each caller has awaited its send."""

    async def send(
        self,
        events: Batch | Sendable | Iterable[Sendable],
        key: str | None = None,
        partition: int | str | None = None,
        *,
        number: int | None = None,
    ) -> tuple[Sent, ...]:
        """Send one event or many. Returns once they are durable, with their sequence numbers in each partition.

        Events go to `partition`; otherwise each goes to the partition of its own key, or of `key` if it has none.
        Events without any key go together to the next partition, round robin. Order is kept within a partition, and
        the events for one partition are written atomically. `SendFailed` says which partitions stored their part, and
        carries the batch to send again.

        A producer with an id gives each send to a partition an increasing `number`; gaps are allowed. If the number
        is already stored, the result says where its events are.
        """
        if isinstance(events, Batch):
            if (key, partition, number) != (None, None, None):
                raise Misconfigured("A batch already has its partitions and number. Pass no key, partition or number.")
            return await self._deliver(self._hub_of(events), events)
        opened = self._opened()
        return await self._deliver(opened, self._batch(opened, events, key, partition, number))

    def batch(
        self,
        events: Sendable | Iterable[Sendable],
        key: str | None = None,
        partition: int | str | None = None,
        *,
        number: int | None = None,
    ) -> Batch:
        """A batch of these events, which can be sent any number of times and is stored once. Sends nothing yet."""
        return self._batch(self._opened(), events, key, partition, number)

    def _batch(
        self,
        opened: OpenHub,
        events: Sendable | Iterable[Sendable],
        key: str | None,
        partition: int | str | None,
        number: int | None,
    ) -> Batch:
        metadata = opened.metadata()
        if self.id or number is not None:
            self._check_number(number, partition)
        listed = _as_events(events, key)
        if not listed:
            return Batch(metadata.made, {})
        if partition is not None:
            if key is not None:
                raise Misconfigured("Both key and partition are given. Pass one of them.")
            parts = {_partition_number(partition, metadata.partitions, metadata.name): listed}
        else:
            parts = self._by_partition(listed, metadata.partitions)
        return Batch(metadata.made, parts, self.id, number or 0)

    async def last_number(self, partition: int | str) -> int | None:
        """The newest number that this producer has stored in a partition; None if the partition knows none."""
        opened = self._opened()
        metadata = opened.metadata()
        log = opened.log(_partition_number(partition, metadata.partitions, metadata.name))
        return await asyncio.to_thread(log.last_number, self.id)

    def _check_number(self, number: int | None, partition: int | str | None) -> None:
        if not self.id:
            if number is not None:
                raise Misconfigured("A number needs a producer with an id. Create it with hub.producer(id).")
        elif partition is None or type(number) is not int or not 0 <= number < NUMBER_END:
            raise Misconfigured(
                f"A producer with an id must give each send a partition and a number from 0 to 2**63 - 1, not "
                f"partition={partition!r}, number={number!r:.50}."
            )

    async def _deliver(self, opened: OpenHub, batch: Batch) -> tuple[Sent, ...]:
        try:
            return await _send_missing(opened, batch)
        except SendFailed as failure:
            if not self._retry_s or not isinstance(failure, Transient):
                raise
        return await self._retry(batch)

    async def _retry(self, batch: Batch) -> tuple[Sent, ...]:
        loop = asyncio.get_running_loop()
        deadline_s, pause_s = loop.time() + self._retry_s, PAUSE_S
        while True:
            await asyncio.sleep(pause_s)  # noqa: TID251 - between tries; the hub is not part of the simulated world
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            try:
                return await _send_missing(self._hub_of(batch), batch)
            except SendFailed as failure:
                if not isinstance(failure, Transient) or loop.time() + pause_s > deadline_s:
                    raise

    def _hub_of(self, batch: Batch) -> OpenHub:
        try:
            opened = self._opened()
        except EvenflowError as error:
            raise batch.failed(dict.fromkeys(batch.missing(), error)) from error
        if opened.metadata().made != batch.made:
            raise Misconfigured(
                "This batch belongs to another hub, or to an earlier hub at this path. Check which of its events still "
                "have to be sent, and send them as a new batch."
            )
        return opened

    def _by_partition(self, events: list[Event], partitions: int) -> dict[int, list[Event]]:
        turn = next(self._turns) % partitions
        keys = {event.key for event in events}
        numbers = {key: turn if key is None else partition_of(key, partitions) for key in keys}
        if len(keys) == 1:
            return {numbers[keys.pop()]: events}
        parts: dict[int, list[Event]] = {}
        for event in events:
            parts.setdefault(numbers[event.key], []).append(event)
        return parts


async def _send_missing(opened: OpenHub, batch: Batch) -> tuple[Sent, ...]:
    """Send the missing parts and wait for all partitions. Raises unless everything is stored."""
    writes: dict[int, asyncio.Future[Sent]] = {}
    errors: dict[int, BaseException] = {}
    for partition in batch.missing():
        part = batch.parts[partition]
        try:
            writes[partition] = opened.writer(partition).append(part.events, None, part)
        except EvenflowError as error:
            errors[partition] = error
    if len(writes) > 1:
        await asyncio.wait(writes.values())
    for partition, write in writes.items():
        try:
            batch.stored[partition] = await write
        except Exception as error:
            errors[partition] = error
    if errors:
        raise batch.failed(errors)
    return tuple(batch.stored.values())


def _as_events(events: Sendable | Iterable[Sendable], key: str | None) -> list[Event]:
    if key is not None:
        _check_key(key)
    if isinstance(events, (Event, bytes, bytearray, memoryview, str)):
        return [_as_event(events, key)]
    if isinstance(events, (Mapping, Set)):
        raise Misconfigured(
            f"Cannot send a {type(events).__name__}. Encode it to bytes first, or pass a list of events."
        )
    try:
        return [Event(event, key) if type(event) is bytes else _as_event(event, key) for event in events]
    except TypeError as error:
        raise Misconfigured(f"Cannot send {type(events).__name__}: {error}.") from error


def _as_event(event: Sendable, key: str | None) -> Event:
    return _checked(event, key) if isinstance(event, Event) else Event(_as_body(event), key)


def _checked(event: Event, key: str | None) -> Event:
    """Check the types of an event's fields: `Event` does not, and a wrong type would make its row unreadable."""
    body = _as_body(event.body)
    if event.key is not None:
        key = event.key
        _check_key(key)
    if event.properties is not None and not is_storable(event.properties):
        raise Misconfigured(
            f"An event's properties must map text names to plain values, not {event.properties!r:.200}."
        )
    return event if body is event.body and key is event.key else Event(body, key, event.properties)


def _as_body(body: object) -> bytes:
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise Misconfigured(f"An event's body must be bytes or text, not {type(body).__name__}. Encode it first.")


def _check_key(key: object) -> None:
    try:
        if isinstance(key, str) and (key.isascii() or key.encode()):
            return
    except UnicodeEncodeError:
        pass
    raise Misconfigured(f"A key must be text that UTF-8 can encode, not {key!r:.100}.")


def _partition_number(partition: int | str, partitions: int, name: str) -> int:
    try:
        number = int(partition)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < partitions:
        raise Misconfigured(f"The hub {name} has no partition {partition!r}. It has 0 to {partitions - 1}.")
    return number
