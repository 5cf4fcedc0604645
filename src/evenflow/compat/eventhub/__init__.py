"""`azure.eventhub`, with a consumer client that shares partitions out as evenflow does.

`from evenflow.compat.eventhub import EventHubConsumerClient` in place of `from azure.eventhub import ...`. The
processor runs on a thread; callbacks are called on the thread that called `receive`, one after the other, as the
official client does. With `parallel=True` each partition's are on a thread of their own, so that a slow one stalls no
other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from evenflow.errors import Misconfigured

try:
    from azure.eventhub import (
        CheckpointStore,
        CloseReason,
        EventData,
        EventDataBatch,
        EventHubConnectionStringProperties,
        EventHubProducerClient,
        EventHubSharedKeyCredential,
        LoadBalancingStrategy,
        PartitionContext,
        TransportType,
        parse_connection_string,
    )
    from azure.eventhub import EventHubConsumerClient as Official
except ImportError as error:
    raise Misconfigured("evenflow.compat.eventhub needs azure-eventhub: pip install 'evenflow[eventhubs]'") from error

from evenflow.compat.eventhub.given import ALL, check_free, client_of, key_of
from evenflow.compat.eventhub.source import ThreadedCredential
from evenflow.compat.eventhub.terms import Terms
from evenflow.compat.eventhub.thread import PlainReceiving

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CheckpointStore",
    "CloseReason",
    "EventData",
    "EventDataBatch",
    "EventHubConnectionStringProperties",
    "EventHubConsumerClient",
    "EventHubProducerClient",
    "EventHubSharedKeyCredential",
    "LoadBalancingStrategy",
    "PartitionContext",
    "TransportType",
    "parse_connection_string",
]


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
        self._parallel = bool(kwargs.pop("parallel", False))
        self._given, self._given_credential = dict(kwargs), credential
        super().__init__(fully_qualified_namespace, eventhub_name, consumer_group, credential, **kwargs)
        self._lock: Any = threading.RLock()  # a signal handler may call close() on the thread that holds it

    def _receive(self, on_event: Callable[..., Any], **kwargs: Any) -> None:
        terms = Terms(handler=on_event, **kwargs)
        key = key_of(self._consumer_group, terms.partition_id or ALL)
        processors: dict[Any, Any] = self._event_processors
        with self._lock:
            check_free(processors, self._consumer_group, terms.partition_id)
            client = client_of(self, self._given, _credential(self._given_credential))
            processors[key] = receiving = PlainReceiving(client, terms, parallel=self._parallel)
        try:
            receiving.run()
        finally:
            with self._lock:
                processors.pop(key, None)

    def close(self) -> None:
        """On the thread of the callbacks, and of signal handlers there, it only asks to stop. From elsewhere it waits
        until all is drained and passed on."""
        with self._lock:
            processors = list(self._event_processors.values())
        for one in processors:
            one.stop()
        super().close()


def _credential(given: Any) -> Any:
    """Keys need no waiting; whatever fetches tokens does, and this one blocks."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    return given if isinstance(given, AzureNamedKeyCredential | AzureSasCredential) else ThreadedCredential(given)
