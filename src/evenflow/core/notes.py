"""The failure state of a partition that outlives its owner: what rides in a checkpoint's notes. Small, and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evenflow.model import Position  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from evenflow.model import Checkpoint

PARKED_MOST = 1_000
"""So many keys at most are parked in one partition: the record is rewritten with every checkpoint."""
ERROR_CHARS = 500
"""Of an error's text: the whole of it is in the log and in the dead letter."""


class Failing(Struct, frozen=True, omit_defaults=True):
    """The next event has failed, and is tried again."""

    ordinal: int
    """How many events come before it."""
    attempts: int
    error: str = ""


class Stopped(Struct, frozen=True, omit_defaults=True):
    """A poison event halted the partition, until somebody resumes it."""

    ordinal: int
    position: Position
    """Of the event itself."""
    error: str
    attempts: int = 0
    by: str = ""
    """The instance that stopped it."""
    at: float = 0.0


class Tripped(Struct, frozen=True, omit_defaults=True):
    """Too many events fail: it is not the events. The partition stands still, and tries again now and then."""

    error: str
    pauses: int = 1
    """How often it has waited so far."""
    at: float = 0.0
    """Since when."""


class Notes(Struct, frozen=True, omit_defaults=True):
    failing: Failing | None = None
    stopped: Stopped | None = None
    tripped: Tripped | None = None
    trying: int | None = None
    """The ordinal before an event that is handled alone, because epochs ended before it without progress."""
    deadly: int | None = None
    """The ordinal before an event that was being tried alone when its owner ended."""
    parked: tuple[str, ...] = ()
    """Keys whose events follow an earlier one into the dead letters."""
    redriven: int = 0
    """Which of the redrives that were asked for is done."""

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def notes_of(record: Checkpoint) -> Notes:
    """What a record says. What cannot be understood (a later version wrote it) is as good as nothing."""
    if not record.notes:
        return Notes()
    try:
        return msgspec.convert(record.notes, Notes)
    except msgspec.ValidationError:
        return Notes()


def shortened(error: BaseException) -> str:
    """An error in one line of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= ERROR_CHARS else f"{text[: ERROR_CHARS - 3]}..."
