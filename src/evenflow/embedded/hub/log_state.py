"""The bounds of a log, and the check that a reader's position lies within them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import PositionGone, PositionOutOfRange

if TYPE_CHECKING:
    from pathlib import Path


class LogState(NamedTuple):
    """The bounds of a log: the oldest sequence, the next sequence, and the newest enqueue time."""

    oldest: int
    next: int
    enqueued_us: int
    written_bytes: int
    """Bytes ever written, and how many of them were trimmed."""
    trimmed_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.written_bytes - self.trimmed_bytes


def check_range(path: Path, after: int, state: LogState) -> None:
    """Raise unless a reader can continue after this sequence."""
    empty = state.oldest == state.next
    kept = "it is empty" if empty else f"it holds {state.oldest} to {state.next - 1}"
    if after < state.oldest - 1:
        raise PositionGone(
            f"Retention removed the events after {after} from {path}: {kept}, and the next is {state.next}. "
            'Start at "earliest" to continue with the remaining events, and increase the retention.'
        )
    if after >= state.next:
        raise PositionOutOfRange(
            f"Position {after} is beyond the end of {path}: {kept}, and the next is {state.next}. "
            'Correct the position, or start at "latest".'
        )
