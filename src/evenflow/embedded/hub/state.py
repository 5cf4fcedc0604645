"""Where a log stands, and which positions a reader may go on after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import PositionGone, PositionOutOfRange

if TYPE_CHECKING:
    from pathlib import Path


class LogState(NamedTuple):
    """Where a log stands: the oldest sequence that is kept, the next to be given, and the newest time."""

    oldest: int
    next: int
    enqueued_us: int
    written_bytes: int
    """All that was ever written, and of that what was trimmed."""
    trimmed_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.written_bytes - self.trimmed_bytes


def check_range(path: Path, after: int, state: LogState) -> None:
    """Raise unless a reader may go on after this sequence."""
    empty = state.oldest == state.next
    kept = "it is empty" if empty else f"the oldest is {state.oldest} and the newest {state.next - 1}"
    if after < state.oldest - 1:
        raise PositionGone(
            f"Events after {after} are no longer in {path}: {kept}, the next to come {state.next}. "
            'Start at "earliest" to go on with what is left, and keep events for longer.'
        )
    if after >= state.next:
        raise PositionOutOfRange(
            f"Position {after} is beyond the end of {path}: {kept}, the next to come {state.next}. "
            'Correct the position, or start at "latest".'
        )
