"""The interface of `azure.eventhub`, with a consumer client that assigns partitions as evenflow does.

Replace `from azure.eventhub import EventHubConsumerClient` by the same import from this module. The processor runs on a
thread of its own. Callbacks run on the thread that called `receive`, one after the other, as with the official client.
With `parallel=True` each partition's callbacks run on a separate thread, so that a slow one does not delay the others.
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
    raise Misconfigured(
        "evenflow.compat.eventhub needs azure-eventhub, which is not installed; run: pip install 'evenflow[eventhubs]'"
    ) from error

from evenflow.compat.eventhub.client_settings import ALL, check_free, client_settings, key_of
from evenflow.compat.eventhub.options import ReceiveOptions
from evenflow.compat.eventhub.source import ThreadedCredential
from evenflow.compat.eventhub.thread import BlockingReceiveSession

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
    """Like the official client. `checkpoint_store` is a store of evenflow, its URL, or a BlobCheckpointStore."""

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
        options = ReceiveOptions(handler=on_event, **kwargs)
        key = key_of(self._consumer_group, options.partition_id or ALL)
        processors: dict[Any, Any] = self._event_processors
        with self._lock:
            check_free(processors, self._consumer_group, options.partition_id)
            client = client_settings(self, self._given, _credential(self._given_credential))
            processors[key] = session = BlockingReceiveSession(client, options, parallel=self._parallel)
        try:
            session.run()
        finally:
            with self._lock:
                processors.pop(key, None)

    def close(self) -> None:
        """Stop, drain and hand over all partitions. On the thread of the callbacks (in one, or in a signal handler), it
        does not wait for that."""
        with self._lock:
            sessions = list(self._event_processors.values())
        for session in sessions:
            session.stop()
        super().close()


def _credential(given: Any) -> Any:
    """The credential for the event loop. A key never blocks; a blocking token credential is called on a thread."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    return given if isinstance(given, AzureNamedKeyCredential | AzureSasCredential) else ThreadedCredential(given)
