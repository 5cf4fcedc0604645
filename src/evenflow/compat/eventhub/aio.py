"""The interface of `azure.eventhub.aio`, with a consumer client that assigns partitions as evenflow does.

Replace `from azure.eventhub.aio import EventHubConsumerClient` by the same import from this module.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from azure.eventhub.aio import (
    CheckpointStore,
    EventHubProducerClient,
    EventHubSharedKeyCredential,
    PartitionContext,
)
from azure.eventhub.aio import EventHubConsumerClient as Official

from evenflow.compat.eventhub.client_settings import ALL, check_free, client_settings, key_of
from evenflow.compat.eventhub.contexts import AsyncContext
from evenflow.compat.eventhub.options import ReceiveOptions
from evenflow.compat.eventhub.receiving import ReceiveSession

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CheckpointStore",
    "EventHubConsumerClient",
    "EventHubProducerClient",
    "EventHubSharedKeyCredential",
    "PartitionContext",
]


async def _await(callback: Callable[..., Any], *arguments: Any) -> BaseException | None:
    try:
        await callback(*arguments)
    except GeneratorExit:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        failed = RuntimeError("the callback was cancelled: something that it awaited was cancelled")
        failed.__cause__ = error
        return failed
    except BaseException as error:
        return error
    return None


class EventHubConsumerClient(Official):
    """Like the official client. `checkpoint_store` is a store of evenflow, its URL, or a BlobCheckpointStore."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        credential: Any,
        **kwargs: Any,
    ) -> None:
        self._given, self._given_credential = dict(kwargs), credential
        super().__init__(fully_qualified_namespace, eventhub_name, consumer_group, credential, **kwargs)

    async def _receive(self, on_event: Callable[..., Any], **kwargs: Any) -> None:
        options = ReceiveOptions(handler=on_event, **kwargs)
        processors: dict[Any, Any] = self._event_processors
        check_free(processors, self._consumer_group, options.partition_id)
        client = client_settings(self, self._given, self._given_credential)
        session = ReceiveSession(client, options, _await, AsyncContext)
        key = key_of(self._consumer_group, options.partition_id or ALL)
        processors[key] = session
        try:
            await session.start()
        finally:
            processors.pop(key, None)

    async def close(self) -> None:
        """Stop, drain and hand over all partitions. Called inside a callback, it does not wait for that."""
        running: list[Any] = list(self._event_processors.values())
        self._event_processors = {}
        for session in running:
            session.request_stop()
        for session in running:
            await session.stop()
        await super().close()
