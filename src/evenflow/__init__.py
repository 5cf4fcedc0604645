"""evenflow: run N copies of an application over a partitioned stream of events.

Each copy owns a fair share of the partitions, handlers are called in order, progress is checkpointed, and partitions
move between copies, planned or after a crash, without loss.
"""

from evenflow.core.checkpointing import Every, Manual
from evenflow.core.failure import Breaker, Retry
from evenflow.embedded.hub import Hub
from evenflow.errors import (
    AlreadyDone,
    BatchForgotten,
    ContainerExists,
    Corrupt,
    DeadLettersUnavailable,
    DocumentChanged,
    DocumentExists,
    DocumentMissing,
    DocumentRefused,
    EvenflowError,
    HandlerTimeout,
    HubExists,
    HubReplaced,
    LeaseLost,
    Misconfigured,
    NoSuchPartition,
    NotAContainer,
    NotAHub,
    PartitionHalted,
    PositionGone,
    PositionOutOfRange,
    RangeGone,
    SendFailed,
    SourceUnavailable,
    StorageFull,
    StoreUnavailable,
    Superseded,
    TransactionTimeout,
    Transient,
    UnknownScheme,
    Unsupported,
)
from evenflow.model import BEGINNING, Event, Position
from evenflow.runtime.partition import OwnedPartition
from evenflow.runtime.processor import Processor
from evenflow.signals import Signal

__all__ = [
    "BEGINNING",
    "AlreadyDone",
    "BatchForgotten",
    "Breaker",
    "ContainerExists",
    "Corrupt",
    "DeadLettersUnavailable",
    "DocumentChanged",
    "DocumentExists",
    "DocumentMissing",
    "DocumentRefused",
    "EvenflowError",
    "Event",
    "Every",
    "HandlerTimeout",
    "Hub",
    "HubExists",
    "HubReplaced",
    "LeaseLost",
    "Manual",
    "Misconfigured",
    "NoSuchPartition",
    "NotAContainer",
    "NotAHub",
    "OwnedPartition",
    "PartitionHalted",
    "Position",
    "PositionGone",
    "PositionOutOfRange",
    "Processor",
    "RangeGone",
    "Retry",
    "SendFailed",
    "Signal",
    "SourceUnavailable",
    "StorageFull",
    "StoreUnavailable",
    "Superseded",
    "TransactionTimeout",
    "Transient",
    "UnknownScheme",
    "Unsupported",
]
