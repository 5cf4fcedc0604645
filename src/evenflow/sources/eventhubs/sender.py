"""Sends events to an event hub through the official client, for dead letters: all of them, in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow.errors import Misconfigured
from evenflow.sources.eventhubs.codec import check_sendable
from evenflow.sources.eventhubs.errors import meaning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event


class EventHubsSender:
    """Sends one batch after another. The events of one key keep their order and have batches of their own."""

    def __init__(self, client: Any, where: str) -> None:
        self._client, self._where = client, where
        self._turn = asyncio.Lock()

    async def send(self, events: Sequence[Event]) -> None:
        by_key: dict[str | None, list[Event]] = {}
        for event in events:
            check_sendable(event)
            by_key.setdefault(event.key, []).append(event)
        async with self._turn:
            try:
                for key, those in by_key.items():
                    await self._send(key, those)
            except Misconfigured:
                raise
            except Exception as error:
                raise meaning(error, self._where, "-") from error

    async def aclose(self) -> None:
        await self._client.close()

    async def _send(self, key: str | None, events: Sequence[Event]) -> None:
        from azure.eventhub import EventData

        batch = await self._client.create_batch(partition_key=key)
        for event in events:
            data = EventData(event.body)
            data.properties.update(event.properties or {})
            try:
                batch.add(data)
            except ValueError:
                if len(batch):
                    await self._client.send_batch(batch)
                    batch = await self._client.create_batch(partition_key=key)
                self._add(batch, data, len(event.body))
        if len(batch):
            await self._client.send_batch(batch)

    def _add(self, batch: Any, data: Any, size_bytes: int) -> None:
        try:
            batch.add(data)
        except ValueError:
            raise Misconfigured(
                f"{self._where}: an event of {size_bytes:,} bytes is too large: the limit of a batch is"
                f" {batch.max_size_in_bytes:,}. Store the large part elsewhere, and put a reference into the event."
            ) from None
