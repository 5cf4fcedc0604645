"""azure-eventhub's own two kinds of checkpoint store, which ours are made to be: the one place that imports it."""

from __future__ import annotations

from evenflow.errors import Misconfigured

try:
    from azure.eventhub import CheckpointStore as CheckpointStore
    from azure.eventhub.aio import CheckpointStore as AsyncCheckpointStore
except ImportError as error:
    raise Misconfigured(
        "A checkpoint store for azure-eventhub needs that package: pip install 'evenflow[eventhubs]'."
    ) from error

__all__ = ["AsyncCheckpointStore", "CheckpointStore"]
