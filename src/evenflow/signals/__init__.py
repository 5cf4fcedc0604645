"""Typed signals: what a processor reports to its listeners and to the log. One class for each kind of event; `str` is
its sentence in the log."""

from evenflow.signals.announcer import Announcer
from evenflow.signals.base import Signal
from evenflow.signals.failures import (
    Careful,
    DeadLettered,
    HandlerSlow,
    LoopBlocked,
    Recovered,
    Redriven,
    Skipped,
    Stopped,
    Tripped,
    Trouble,
)
from evenflow.signals.membership import HistoryLost, Joined, Left, Paused, Resumed, Retiring, Spent
from evenflow.signals.partitions import (
    Committed,
    Ended,
    EndUnmarked,
    Fenced,
    Gone,
    PartitionStarted,
    PartitionStopped,
    PositionLost,
    Repeated,
    Stalled,
    Swapped,
    Unowned,
)

__all__ = [
    "Announcer",
    "Careful",
    "Committed",
    "DeadLettered",
    "EndUnmarked",
    "Ended",
    "Fenced",
    "Gone",
    "HandlerSlow",
    "HistoryLost",
    "Joined",
    "Left",
    "LoopBlocked",
    "PartitionStarted",
    "PartitionStopped",
    "Paused",
    "PositionLost",
    "Recovered",
    "Redriven",
    "Repeated",
    "Resumed",
    "Retiring",
    "Signal",
    "Skipped",
    "Spent",
    "Stalled",
    "Stopped",
    "Swapped",
    "Tripped",
    "Trouble",
    "Unowned",
]
