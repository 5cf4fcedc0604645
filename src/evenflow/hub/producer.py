"""Sending: what may be sent, and to which partition each event goes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Set
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from evenflow.errors import Misconfigured
from evenflow.hub.keys import partition_of
from evenflow.hub.records import survives
from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from evenflow.hub.opened import OpenHub
    from evenflow.hub.writer import Sent

    Sendable: TypeAlias = Event | bytes | bytearray | memoryview | str


class Producer:
    """Sends events to a hub. Any number of tasks may send at the same time."""

    def __init__(self, opened: Callable[[], OpenHub]) -> None:
        self._opened = opened
        # Short-lived producers must not all begin with partition 0.
        self._turns = count(int.from_bytes(os.urandom(2), "little"))

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is pending: every send was waited for by whoever called it."""

    async def send(
        self, events: Sendable | Iterable[Sendable], key: str | None = None, partition: int | str | None = None
    ) -> tuple[Sent, ...]:
        """Send one event or many; returns once they are durable, with where they are in each partition.

        To `partition`; else each event by its own key, or `key` when it has none; events without any key go
        together to the next partition in turn. Order is kept within a partition, and what goes to one partition is
        written together or not at all. After an error, some partitions may have got their part.
        """
        opened = self._opened()
        batch = _as_events(events, key)
        if not batch:
            return ()
        facts = opened.facts()
        if partition is not None:
            if key is not None:
                raise Misconfigured("Give a key or a partition, not both.")
            parts = {_partition_number(partition, facts.partitions, facts.name): batch}
        else:
            parts = self._by_partition(batch, facts.partitions)
        return await _all([opened.writer(number).put(part) for number, part in parts.items()])

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


async def _all(futures: list[asyncio.Future[Sent]]) -> tuple[Sent, ...]:
    """All results; or, when all are settled, the first error."""
    if len(futures) == 1:
        return (await futures[0],)
    results = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return tuple([result for result in results if not isinstance(result, BaseException)])


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
