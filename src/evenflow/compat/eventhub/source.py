"""The source of a consumer client: an event hub, read with the partitions, positions and owner level of `receive`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from evenflow.compat.eventhub.options import INCLUSIVE
from evenflow.errors import LeaseLost, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import Position
from evenflow.sources.eventhubs.source import COUNTED, EventHubsSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.compat.eventhub.options import ReceiveOptions
    from evenflow.model import Batch, Partition, PartitionId
    from evenflow.ports import Reader, Start

logger = logging.getLogger("evenflow")


class NotYet(SourceUnavailable):
    """No event has this position yet. The runtime retries until one has."""


class ReceivingSource(EventHubsSource):
    """`shares` is true if the client has a checkpoint store: receivers are exclusive then, as in the official client.

    `on_open` is called when a partition was opened, `on_stolen` when another receiver took the partition or blocked it.
    """

    def __init__(
        self,
        options: ReceiveOptions,
        group: str,
        *,
        shares: bool,
        on_open: Callable[[], None] = lambda: None,
        on_stolen: Callable[[PartitionId, LeaseLost], None] = lambda partition, error: None,
        **access: Any,
    ) -> None:
        super().__init__(consumer_group=group, prefetch=options.credit, annotated=True, **access)
        self._options, self._shares = options, shares
        self._on_open, self._on_stolen = on_open, on_stolen
        self._track = options.track_last_enqueued_event_properties

    def of_group(self, name: str) -> ReceivingSource:
        joined = object.__new__(ReceivingSource)
        joined.__dict__.update(self.__dict__)
        joined._is_joined = True
        return joined

    def owner_level(self, epoch: int) -> int | None:
        """The owner level for an epoch. The level of `receive` is added, so that a newer owner has a higher level."""
        requested = None if self._options.owner_level is None else int(self._options.owner_level)
        if self._options.partition_id is not None:
            return 0 if requested is None and self._shares else requested
        if requested is None:
            return epoch if self._shares else None
        return requested + epoch

    async def partitions(self) -> Sequence[Partition]:
        found = await super().partitions()
        only = self._options.partition_id
        if only is None:
            return found
        chosen = [one for one in found if one.id == only]
        if not chosen:
            raise ValueError(f"The event hub has no partition {only!r}. It has: {', '.join(one.id for one in found)}.")
        return chosen

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        """The start position; `latest` stands for that of `receive`. As in the service, a position that retention has
        removed becomes the oldest event, and one that does not exist yet is waited for."""
        wanted = self._options.start_of(partition) if start == "latest" else start
        try:
            if isinstance(wanted, Position) and wanted.sequence is None:
                return await self._by_offset(partition, wanted.offset)
            return await super().resolve(partition, wanted)
        except PositionGone:
            return await super().resolve(partition, "earliest")
        except PositionOutOfRange as error:
            raise NotYet(f"{error} Retrying until there is one.") from error

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        """As in the service, events after the checkpoint that retention has removed are skipped."""
        try:
            try:
                reader = await super().open(partition, after, epoch=epoch)
            except PositionGone as error:
                logger.warning("%s Continuing with the oldest event that is kept.", error)
                oldest = await super().resolve(partition, "earliest")
                reader = await super().open(partition, oldest, epoch=epoch)
        except PositionOutOfRange as error:
            raise NotYet(f"{error} Retrying until it has one.") from error
        except LeaseLost as error:
            self._on_stolen(partition, error)
            raise
        self._on_open()
        return ObservedReader(reader, lambda error: self._on_stolen(partition, error))

    async def _by_offset(self, partition: PartitionId, wanted: str) -> Position:
        """After the event with this offset, or before it if inclusive; before the next one if no event has it."""
        inclusive, offset = wanted.startswith(INCLUSIVE), wanted.removeprefix(INCLUSIVE)
        facts = await self._properties(partition)
        newest = Position(facts.last_offset, facts.last)
        if _is_beyond(offset, facts.last_offset):
            raise PositionOutOfRange(
                f"partition {partition}: offset {offset} is beyond the newest event, which has offset {newest.offset}."
            )
        if facts.last < facts.first or (offset == newest.offset and not inclusive):
            return newest
        found = (await self._peek(partition, offset)).position
        if not inclusive and _is_same(found.offset, offset):
            return found
        assert found.sequence is not None
        before = found.sequence - 1
        return await super().resolve(partition, Position(f"{COUNTED}{before}", before))


def _is_beyond(offset: str, newest: str) -> bool:
    """Whether an offset is beyond the newest one. Only numbers can be compared here; other offsets are never beyond."""
    return offset.isdecimal() and newest.removeprefix("-").isdecimal() and int(offset) > int(newest)


def _is_same(one: str, other: str) -> bool:
    return one == other or (one.isdecimal() and other.isdecimal() and int(one) == int(other))


class ObservedReader:
    """A reader that reports when another receiver has disconnected it."""

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
    """An async wrapper of a blocking credential: `get_token` runs on a thread."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        if hasattr(credential, "token_type"):
            self.token_type = credential.token_type

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """Does nothing: the application that created the credential closes it."""

    async def __aenter__(self) -> ThreadedCredential:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass
