"""When to checkpoint: the policy as plain values, and the decision as a function of what has passed."""

from __future__ import annotations

from msgspec import Struct

from evenflow.core.numbers import is_positive, is_whole
from evenflow.errors import Misconfigured


class Every(Struct, frozen=True):
    """Checkpoint after so many events or so many seconds, whichever comes first, and at every planned stop."""

    events: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.events is None and self.seconds is None:
            raise Misconfigured("Every() needs events=, seconds= or both, such as Every(seconds=1).")
        events_ok = self.events is None or is_whole(self.events, 1)
        seconds_ok = self.seconds is None or is_positive(self.seconds)
        if not events_ok or not seconds_ok:
            raise Misconfigured(
                f"{self} can never be due: events must be a whole number of at least 1 and seconds above 0."
            )


class Manual(Struct, frozen=True):
    """Only `partition.checkpoint()` moves the checkpoint. What it has not marked comes again after a move."""


def is_due(policy: Every | Manual, events: int, seconds: float) -> bool:
    """Whether a partition with so many handled events, `seconds` after its last checkpoint, is to be committed."""
    if isinstance(policy, Manual) or events == 0:
        return False
    enough = policy.events is not None and events >= policy.events
    return enough or (policy.seconds is not None and seconds >= policy.seconds)


def room(policy: Every | Manual, events: int) -> int | None:
    """How many more events may be handled before the next look at `is_due`; None: any number."""
    if isinstance(policy, Manual) or policy.events is None:
        return None
    return max(1, policy.events - events)
