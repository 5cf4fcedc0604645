"""`azure.eventhub.aio`, with a consumer client that shares partitions out as evenflow does.

`from evenflow.compat.eventhub.aio import EventHubConsumerClient` in place of `from azure.eventhub.aio import ...`.
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

from evenflow.compat.eventhub.contexts import AsyncContext
from evenflow.compat.eventhub.given import ALL, check_free, client_of, key_of
from evenflow.compat.eventhub.receiving import Receiving
from evenflow.compat.eventhub.terms import Terms

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
        failed = RuntimeError("a callback was cancelled from within: it awaited something that was cancelled")
        failed.__cause__ = error
        return failed
    except BaseException as error:
        return error
    return None


class EventHubConsumerClient(Official):
    """The official client's face. `checkpoint_store` is a store of evenflow, its URL, or a BlobCheckpointStore."""

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
        terms = Terms(handler=on_event, **kwargs)
        processors: dict[Any, Any] = self._event_processors
        check_free(processors, self._consumer_group, terms.partition_id)
        receiving = Receiving(client_of(self, self._given, self._given_credential), terms, _await, AsyncContext)
        key = key_of(self._consumer_group, terms.partition_id or ALL)
        processors[key] = receiving
        try:
            await receiving.start()
        finally:
            processors.pop(key, None)

    async def close(self) -> None:
        """From inside a callback it only asks to stop; from elsewhere it waits until all is drained and passed on."""
        receiving: list[Any] = list(self._event_processors.values())
        self._event_processors = {}
        for one in receiving:
            one.ask_to_stop()
        for one in receiving:
            await one.stop()
        await super().close()
