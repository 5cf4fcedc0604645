"""The two base classes of checkpoint stores in azure-eventhub. Only this module imports them."""

from __future__ import annotations

from evenflow.errors import Misconfigured

try:
    from azure.eventhub import CheckpointStore as CheckpointStore
    from azure.eventhub.aio import CheckpointStore as AsyncCheckpointStore
except ImportError as error:
    raise Misconfigured(
        "The checkpoint store needs azure-eventhub, which is not installed; run: pip install 'evenflow[eventhubs]'."
    ) from error

__all__ = ["AsyncCheckpointStore", "CheckpointStore"]
