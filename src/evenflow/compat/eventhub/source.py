"""The event hub as a consumer client is asked to read it: which partitions, from where, with which owner level."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from evenflow.compat.eventhub.terms import INCLUSIVE
from evenflow.errors import LeaseLost, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import Position
from evenflow.sources.eventhubs.source import COUNTED, EventHubsSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.compat.eventhub.terms import Terms
    from evenflow.model import Batch, Partition, PartitionId
    from evenflow.ports import Reader, Start

logger = logging.getLogger("evenflow")


class NotYet(SourceUnavailable):
    """Nothing has this place yet. It is tried again until there is something."""


class ReceivingSource(EventHubsSource):
    """`shares` tells that a store is shared with others: then receivers are exclusive, as the official ones are.

    `on_open` is called when a partition was opened, `on_stolen` when another receiver has disconnected or kept out one.
    """

    def __init__(
        self,
        terms: Terms,
        group: str,
        *,
        shares: bool,
        on_open: Callable[[], None] = lambda: None,
        on_stolen: Callable[[PartitionId, LeaseLost], None] = lambda partition, error: None,
        **access: Any,
    ) -> None:
        super().__init__(consumer_group=group, prefetch=terms.credit, annotated=True, **access)
        self._terms, self._shares = terms, shares
        self._on_open, self._on_stolen = on_open, on_stolen
        self._track = terms.track_last_enqueued_event_properties

    def of_group(self, name: str) -> ReceivingSource:
        joined = object.__new__(ReceivingSource)
        joined.__dict__.update(self.__dict__)
        joined._is_joined = True
        return joined

    def owner_level(self, epoch: int) -> int | None:
        """A level that somebody asks for is the least: epochs count from there, so that the service can tell owners."""
        asked = None if self._terms.owner_level is None else int(self._terms.owner_level)
        if self._terms.partition_id is not None:
            return 0 if asked is None and self._shares else asked
        if asked is None:
            return epoch if self._shares else None
        return asked + epoch

    async def partitions(self) -> Sequence[Partition]:
        found = await super().partitions()
        only = self._terms.partition_id
        if only is None:
            return found
        chosen = [one for one in found if one.id == only]
        if not chosen:
            raise ValueError(f"Wrong partition id: {only}. The event hub has: {', '.join(one.id for one in found)}.")
        return chosen

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        """Where `latest` stands for what was asked for. As with the service, what is too old begins with the oldest,
        and what is not there yet is waited for."""
        wanted = self._terms.start_of(partition) if start == "latest" else start
        try:
            if isinstance(wanted, Position) and wanted.sequence is None:
                return await self._by_offset(partition, wanted.offset)
            return await super().resolve(partition, wanted)
        except PositionGone:
            return await super().resolve(partition, "earliest")
        except PositionOutOfRange as error:
            raise NotYet(f"{error} It is tried again until there is one.") from error

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        """As with the service, what follows a checkpoint but is no longer kept is passed over."""
        try:
            try:
                reader = await super().open(partition, after, epoch=epoch)
            except PositionGone as error:
                logger.warning("%s It goes on with the oldest event that there is.", error)
                oldest = await super().resolve(partition, "earliest")
                reader = await super().open(partition, oldest, epoch=epoch)
        except PositionOutOfRange as error:
            raise NotYet(f"{error} It is tried again until it has one.") from error
        except LeaseLost as error:
            self._on_stolen(partition, error)
            raise
        self._on_open()
        return HeededReader(reader, lambda error: self._on_stolen(partition, error))

    async def _by_offset(self, partition: PartitionId, wanted: str) -> Position:
        """After the event that has this offset, or before it. If none has, then before the next one that there is."""
        inclusive, offset = wanted.startswith(INCLUSIVE), wanted.removeprefix(INCLUSIVE)
        facts = await self._properties(partition)
        newest = Position(facts.last_offset, facts.last)
        if _is_beyond(offset, facts.last_offset):
            raise PositionOutOfRange(f"partition {partition}: the newest event's offset is {newest.offset}: {offset}?")
        if facts.last < facts.first or (offset == newest.offset and not inclusive):
            return newest
        found = (await self._peek(partition, offset)).position
        if not inclusive and _is_same(found.offset, offset):
            return found
        assert found.sequence is not None
        before = found.sequence - 1
        return await super().resolve(partition, Position(f"{COUNTED}{before}", before))


def _is_beyond(offset: str, newest: str) -> bool:
    """Of offsets that are numbers it is known without asking; others only the service can compare."""
    return offset.isdecimal() and newest.removeprefix("-").isdecimal() and int(offset) > int(newest)


def _is_same(one: str, other: str) -> bool:
    return one == other or (one.isdecimal() and other.isdecimal() and int(one) == int(other))


class HeededReader:
    """A reader of which somebody else is told when it was disconnected."""

    def __init__(self, reader: Any, on_stolen: Callable[[LeaseLost], None]) -> None:
        self._reader, self._on_stolen = reader, on_stolen

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        try:
            batch: Batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        except LeaseLost as error:
            self._on_stolen(error)
            raise
        return batch

    async def revoked(self) -> LeaseLost:
        error: LeaseLost = await self._reader.revoked()
        self._on_stolen(error)
        return error

    async def aclose(self) -> None:
        await self._reader.aclose()


class ThreadedCredential:
    """A credential whose `get_token` blocks, for those who must not: it runs on a thread."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        if hasattr(credential, "token_type"):
            self.token_type = credential.token_type

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """Whoever made it closes it."""

    async def __aenter__(self) -> ThreadedCredential:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass
