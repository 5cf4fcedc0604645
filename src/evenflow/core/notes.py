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
PARKED_CHARS_MOST = 100_000
"""So long they may be together."""
SUSPECTS_MOST = 100
NAME_CHARS = 200
"""Of the name of a document, or of a key."""
ERROR_CHARS = 500
"""Of an error's text: the whole of it is in the log and in the dead letter."""


class Failing(Struct, frozen=True, omit_defaults=True):
    """The next event has failed, and is tried again."""

    ordinal: int
    """How many events come before it."""
    attempts: int
    error: str = ""


class Stopped(Struct, frozen=True, omit_defaults=True):
    """A poison event stopped the partition, until somebody resumes it."""

    ordinal: int
    position: Position
    """Of the event itself."""
    error: str
    attempts: int = 0
    by: str = ""
    """The instance that stopped it."""
    at: float = 0.0
    whose: str = ""
    """Which document, or whose key, the event is of; for people."""


class Tripped(Struct, frozen=True, omit_defaults=True):
    """Too many events fail: it is not the events. The partition stands still, and tries again now and then."""

    error: str
    pauses: int = 1
    """How often it has waited so far."""
    at: float = 0.0
    """Since when."""


class Suspect(Struct, frozen=True):
    """An event that was being handled alone when its owner ended."""

    ordinal: int
    deaths: int
    """How many owners ended there."""


class Ends(Struct, frozen=True):
    """Owners that ended unplanned, not far from each other, whatever progress each of them made."""

    owners: int
    """So many, or one less."""
    since: int
    """The ordinal at which the second of them began."""
    begun: int
    """The ordinal at which the owner began that wrote this."""
    fruitless: int
    """What the seal had counted by then."""


class Unmarked(Struct, frozen=True):
    """An owner passed the partition on, as planned, when it had handled more than the application had marked."""

    epoch: int
    events: int
    """So many, which come again."""


class Notes(Struct, frozen=True, omit_defaults=True):
    failing: Failing | None = None
    stopped: Stopped | None = None
    tripped: Tripped | None = None
    trying: int | None = None
    """The ordinal before an event that is handled alone, because epochs ended before it without progress."""
    suspects: tuple[Suspect, ...] = ()
    """Those that the record has not passed yet. With Manual checkpoints, also some that were filed."""
    ends: Ends | None = None
    """None: the last owners ended as planned, or the partition has come far, or to its end, since they did not."""
    parked: dict[str, int] = {}
    """Keys whose events follow an earlier one into the dead letters, and the sequence of that one (-1: it has none).
    What comes before it does not: with Manual checkpoints, notes are ahead of the position."""
    redriven: int = 0
    """Which of the redrives that were asked for is done."""
    redriving: str = ""
    """The dead letter that is being given to the handler again."""
    effected: str = ""
    """The dead letter whose effects a transaction has committed, along with this note: it is handled, whatever follows.
    """
    gone: int | None = None
    """The epoch whose owner stands still, since the log does not have what comes next; for people. Later owners look
    for themselves."""
    lost: int | None = None
    """The epoch that found no record in a store that has lost writes, in a group that starts at the end of the log: it
    began at the oldest event. It stays as long as the partition stands still for that (`on_lost="stop"`)."""
    unmarked: Unmarked | None = None
    """Only with Manual checkpoints; for people."""

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


def whose(name: str, key: str | None) -> str:
    """Of which document and of which key an event is, for people: a place in a feed alone tells them nothing."""
    told = [f"document {_quoted(name)}"] if name else []
    if key and key != name:
        told.append(f"key {_quoted(key)}")
    return ", ".join(told)


def _quoted(text: str) -> str:
    """Of bounded length, and without anything that would steer a terminal."""
    return repr(text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 3]}...")


def in_words(error: BaseException, most: int) -> str:
    """An error's kind and text, of bounded length, whatever the application made of it."""
    try:
        text = str(error)
    except Exception:
        text = "(it cannot be shown: its own __str__ fails)"
    # Half a character, as in the name of a file, has no place in a record.
    text = f"{type(error).__name__}: {text[: most + 1]}".encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shortened(error: BaseException) -> str:
    """An error in one short line."""
    return " ".join(in_words(error, ERROR_CHARS).split())
