"""The event hub as a consumer client is asked to read it: which partitions, from where, with which owner level."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import Position
from evenflow.sources.eventhubs import BEFORE_ALL, EventHubsSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.compat.eventhub.terms import Terms
    from evenflow.model import Partition, PartitionId
    from evenflow.ports import Start

INCLUSIVE = ">="


class ReceivingSource(EventHubsSource):
    """`shares` tells that a store is shared with others: then receivers are exclusive, as the official ones are."""

    def __init__(self, terms: Terms, group: str, *, shares: bool, **access: Any) -> None:
        super().__init__(consumer_group=group, prefetch=terms.prefetch, annotated=True, **access)
        self._terms, self._shares = terms, shares
        self._track = terms.track_last_enqueued_event_properties

    def of_group(self, name: str) -> ReceivingSource:
        joined = object.__new__(ReceivingSource)
        joined.__dict__.update(self.__dict__)
        joined._is_joined = True
        return joined

    def owner_level(self, epoch: int) -> int | None:
        """A level that somebody asks for is the least: epochs count from there, so that the service can tell owners."""
        asked = self._terms.owner_level
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
            raise Misconfigured(f"{self!r} has no partition {only!r}; it has {', '.join(one.id for one in found)}.")
        return chosen

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        """Where `latest` stands for what was asked for. As with the service, what is too old begins with the oldest,
        and what is not there yet is waited for."""
        wanted = self._terms.start_of(partition) if start == "latest" else start
        try:
            if isinstance(wanted, Position) and wanted.offset.startswith(INCLUSIVE):
                return await self._from(partition, wanted.offset.removeprefix(INCLUSIVE))
            return await super().resolve(partition, wanted)
        except PositionGone:
            return await super().resolve(partition, "earliest")
        except PositionOutOfRange as error:
            raise SourceUnavailable(f"{error} It is tried again until there is one.") from error

    async def _from(self, partition: PartitionId, offset: str) -> Position:
        """Just before the event that has this offset."""
        at = await super().resolve(partition, Position(offset))
        if at.sequence is None or at.offset == BEFORE_ALL:
            return at
        before = at.sequence - 1
        return await super().resolve(partition, Position(f"#{before}", before))


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
