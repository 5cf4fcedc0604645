"""Sending: what may be sent, and to which partition each event goes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Set
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from evenflow.embedded.hub.batch import Batch
from evenflow.embedded.hub.keys import partition_of
from evenflow.embedded.hub.records import survives
from evenflow.errors import EvenflowError, Misconfigured, SendFailed, Transient
from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from evenflow.embedded.hub.opened import OpenHub
    from evenflow.embedded.hub.writer import Sent

    Sendable: TypeAlias = Event | bytes | bytearray | memoryview | str


RETRY_S = 10.0
"""So long a producer tries again by default what may work the next time."""
PAUSE_S = 0.05
PAUSE_MOST_S = 1.0
"""How long it waits between two tries: first and at most."""
NUMBER_END = 1 << 63


class Producer:
    """Sends events to a hub. Any number of tasks may send at the same time.

    What failed and may work the next time is sent again for about `retry_s` seconds, and never stored twice. One
    with an `id` has its sends numbered by the application, so that they are stored once even if the program is
    killed and sends them again.
    """

    def __init__(self, opened: Callable[[], OpenHub], id: str = "", retry_s: float = 0.0) -> None:
        self.id = id
        self._opened = opened
        self._retry_s = retry_s
        # Short-lived producers must not all begin with partition 0.
        self._turns = count(int.from_bytes(os.urandom(2), "little"))

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is pending: every send was waited for by whoever called it."""

    async def send(
        self,
        events: Batch | Sendable | Iterable[Sendable],
        key: str | None = None,
        partition: int | str | None = None,
        *,
        number: int | None = None,
    ) -> tuple[Sent, ...]:
        """Send one event or many; returns once they are durable, with where they are in each partition.

        To `partition`; else each event by its own key, or `key` when it has none; events without any key go
        together to the next partition in turn. Order is kept within a partition, and what goes to one partition is
        written together or not at all. `SendFailed` says which partitions stored their part, and has the batch to
        send again.

        A producer with an id gives each send to a partition a `number`, upwards; gaps are allowed. A number that is
        stored already is answered with where its events are.
        """
        if isinstance(events, Batch):
            if (key, partition, number) != (None, None, None):
                raise Misconfigured("A batch has its partitions and its number: give nothing beside it.")
            return await self._delivered(self._hub_of(events), events)
        opened = self._opened()
        return await self._delivered(opened, self._batch(opened, events, key, partition, number))

    def batch(
        self,
        events: Sendable | Iterable[Sendable],
        key: str | None = None,
        partition: int | str | None = None,
        *,
        number: int | None = None,
    ) -> Batch:
        """The same events as a value: nothing is sent yet, and however often it is sent, it is stored once."""
        return self._batch(self._opened(), events, key, partition, number)

    def _batch(
        self,
        opened: OpenHub,
        events: Sendable | Iterable[Sendable],
        key: str | None,
        partition: int | str | None,
        number: int | None,
    ) -> Batch:
        facts = opened.facts()
        if self.id or number is not None:
            self._check_number(number, partition)
        listed = _as_events(events, key)
        if not listed:
            return Batch(facts.made, {})
        if partition is not None:
            if key is not None:
                raise Misconfigured("Give a key or a partition, not both.")
            parts = {_partition_number(partition, facts.partitions, facts.name): listed}
        else:
            parts = self._by_partition(listed, facts.partitions)
        return Batch(facts.made, parts, self.id, number or 0)

    async def last_number(self, partition: int | str) -> int | None:
        """The newest number that this producer has stored in a partition; None when the partition knows none."""
        opened = self._opened()
        facts = opened.facts()
        log = opened.log(_partition_number(partition, facts.partitions, facts.name))
        return await asyncio.to_thread(log.last_number, self.id)

    def _check_number(self, number: int | None, partition: int | str | None) -> None:
        if not self.id:
            if number is not None:
                raise Misconfigured("Only a producer with an id numbers its sends: hub.producer(id).")
        elif partition is None or type(number) is not int or not 0 <= number < NUMBER_END:
            raise Misconfigured(
                f"A producer with an id gives each send a partition and a number from 0 to 2**63 - 1, not "
                f"partition={partition!r}, number={number!r:.50}."
            )

    async def _delivered(self, opened: OpenHub, batch: Batch) -> tuple[Sent, ...]:
        try:
            return await _sent(opened, batch)
        except SendFailed as failure:
            if not self._retry_s or not isinstance(failure, Transient):
                raise
        return await self._tried_again(batch)

    async def _tried_again(self, batch: Batch) -> tuple[Sent, ...]:
        loop = asyncio.get_running_loop()
        deadline_s, pause_s = loop.time() + self._retry_s, PAUSE_S
        while True:
            await asyncio.sleep(pause_s)  # noqa: TID251 - between tries; the hub is not part of the simulated world
            pause_s = min(2 * pause_s, PAUSE_MOST_S)
            try:
                return await _sent(self._hub_of(batch), batch)
            except SendFailed as failure:
                if not isinstance(failure, Transient) or loop.time() + pause_s > deadline_s:
                    raise

    def _hub_of(self, batch: Batch) -> OpenHub:
        try:
            opened = self._opened()
        except EvenflowError as error:
            raise batch.failed(dict.fromkeys(batch.missing(), error)) from error
        if opened.facts().made != batch.made:
            raise Misconfigured(
                "This batch was made for another hub, or this hub was made again since. See which of its events are "
                "to be sent, and send them as a new batch."
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


async def _sent(opened: OpenHub, batch: Batch) -> tuple[Sent, ...]:
    """Send what is missing; when all partitions have answered, raise unless all of it is stored."""
    puts: dict[int, asyncio.Future[Sent]] = {}
    errors: dict[int, BaseException] = {}
    for partition in batch.missing():
        part = batch.parts[partition]
        try:
            puts[partition] = opened.writer(partition).put(part.events, None, part)
        except EvenflowError as error:
            errors[partition] = error
    if len(puts) > 1:
        await asyncio.wait(puts.values())
    for partition, put in puts.items():
        try:
            batch.places[partition] = await put
        except Exception as error:
            errors[partition] = error
    if errors:
        raise batch.failed(errors)
    return tuple(batch.places.values())


def _as_events(events: Sendable | Iterable[Sendable], key: str | None) -> list[Event]:
    if key is not None:
        _check_key(key)
    if isinstance(events, (Event, bytes, bytearray, memoryview, str)):
        return [_as_event(events, key)]
    if isinstance(events, (Mapping, Set)):
        raise Misconfigured(
            f"Cannot send a {type(events).__name__}: encode it into bytes first, or give a list of events."
        )
    try:
        return [Event(event, key) if type(event) is bytes else _as_event(event, key) for event in events]
    except TypeError as error:
        raise Misconfigured(f"Cannot send {type(events).__name__}: {error}.") from error


def _as_event(event: Sendable, key: str | None) -> Event:
    return _checked(event, key) if isinstance(event, Event) else Event(_as_body(event), key)


def _checked(event: Event, key: str | None) -> Event:
    """Records do not look at what they are given; an event of wrong types would make its row unreadable."""
    body = _as_body(event.body)
    if event.key is not None:
        key = event.key
        _check_key(key)
    if event.properties is not None and not survives(event.properties):
        raise Misconfigured(f"An event's properties are plain values under text names, not {event.properties!r:.200}.")
    return event if body is event.body and key is event.key else Event(body, key, event.properties)


def _as_body(body: object) -> bytes:
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise Misconfigured(f"An event's body is bytes or text, not {type(body).__name__}: encode it first.")


def _check_key(key: object) -> None:
    try:
        if isinstance(key, str) and (key.isascii() or key.encode()):
            return
    except UnicodeEncodeError:
        pass
    raise Misconfigured(f"A key is text that can be written as UTF-8, not {key!r:.100}.")


def _partition_number(partition: int | str, partitions: int, name: str) -> int:
    try:
        number = int(partition)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < partitions:
        raise Misconfigured(f"The hub {name} has no partition {partition!r}; it has 0 to {partitions - 1}.")
    return number
