"""evenflow's stores as an azure.eventhub.CheckpointStore, for azure-eventhub's own EventHubConsumerClient.

As in azure-eventhub, this module has the blocking variant, and `evenflow.compat.checkpointstore.aio` that for asyncio.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.compat.checkpointstore import aio
from evenflow.compat.checkpointstore.loop import SHARED_THREAD
from evenflow.compat.checkpointstore.official import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import TracebackType

    from evenflow.compat.checkpointstore.loop import LoopThread
    from evenflow.ports import Store

T = TypeVar("T")

__all__ = ["EvenflowCheckpointStore"]


class EvenflowCheckpointStore(CheckpointStore):
    """The blocking variant of `evenflow.compat.checkpointstore.aio.EvenflowCheckpointStore`; any thread may use it."""

    def __init__(
        self,
        store: Store | str,
        *,
        load_balancing_interval: float = 30.0,
        partition_ownership_expiration_interval: float | None = None,
    ) -> None:
        self._async_store = aio.EvenflowCheckpointStore(
            store,
            load_balancing_interval=load_balancing_interval,
            partition_ownership_expiration_interval=partition_ownership_expiration_interval,
        )
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        return self._run(self._async_store.list_ownership(fully_qualified_namespace, eventhub_name, consumer_group))

    def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any) -> Iterable[dict[str, Any]]:
        return self._run(self._async_store.claim_ownership(ownership_list))

    def update_checkpoint(self, checkpoint: dict[str, Any], **kwargs: Any) -> None:
        self._run(self._async_store.update_checkpoint(checkpoint))

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        return self._run(self._async_store.list_checkpoints(fully_qualified_namespace, eventhub_name, consumer_group))

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._async_store.close())
            SHARED_THREAD.release()

    def check(self) -> None:
        """Raises `Misconfigured` if the store cannot work as it is configured."""
        self._run(self._async_store.check())

    def __enter__(self) -> EvenflowCheckpointStore:
        try:
            self.check()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._thread is None:
                self._thread = SHARED_THREAD.acquire()
            thread = self._thread
        return thread.run(work)
