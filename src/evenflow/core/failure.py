"""What to do when a handler fails: how long to wait, when it is poison, which part of a batch to try, when to trip.

Plain values and functions of what has happened; whoever calls them waits, files dead letters and tells people.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from evenflow.core.notes import Ends
from evenflow.core.numbers import is_positive, is_whole
from evenflow.errors import Misconfigured

Errors: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...]"

FRUITLESS_MOST = 3
"""After so many epochs in a row that ended unplanned and without progress, a partition goes on carefully."""
ENDS_MOST = 5
"""After so many that ended unplanned within `CAREFUL_EVENTS` events, too: whether a checkpoint was written before the
next event ended the process is chance, and must not make the count begin anew for ever."""
CAREFUL_EVENTS = 1_000
"""So many events are then handled one at a time."""
DEATHS_MOST = 2
"""So many owners may end while they handle one event alone; then it is poison. One may be chance: machines die too."""


class Retry(Struct, frozen=True):
    """How often a failing event is tried, and how long to wait in between: exponential, with full jitter.

    `attempts` None tries for ever. An error that is none of `retry_on`, or one of `never_retry`, is not tried again.
    """

    attempts: int | None = 10
    first_s: float = 0.1
    most_s: float = 30.0
    retry_on: Errors = Exception
    never_retry: Errors = ()

    def __post_init__(self) -> None:
        if self.attempts is not None and not is_whole(self.attempts, 1):
            raise Misconfigured(f"Retry(attempts={self.attempts!r}): give a whole number of at least 1, or None.")
        for name in ("first_s", "most_s"):
            if not is_positive(getattr(self, name)):
                raise Misconfigured(f"Retry({name}={getattr(self, name)!r}): give a number above 0.")
        if self.most_s < self.first_s:
            raise Misconfigured(f"Retry(most_s={self.most_s}) is below first_s={self.first_s}: raise it.")
        for name in ("retry_on", "never_retry"):
            if not _are_errors(getattr(self, name)):
                raise Misconfigured(
                    f"Retry({name}={getattr(self, name)!r}): give an exception class, or a tuple of some."
                )

    def tries_again(self, error: BaseException, attempts: int) -> bool:
        """Whether an event that has failed so often, lastly with this error, is tried once more."""
        if isinstance(error, self.never_retry) or not isinstance(error, self.retry_on):
            return False
        return self.attempts is None or attempts < self.attempts

    def pause_s(self, attempts: int, chance: float) -> float:
        return pause_s(attempts, chance, first_s=self.first_s, most_s=self.most_s)


class Breaker(Struct, frozen=True):
    """Trips when at least `share` of its last `events` events were poison: then it is not the events.

    It tries again after `first_s`, then after twice that, up to `most_s`, until an event passes.
    """

    share: float = 0.5
    events: int = 20
    first_s: float = 1.0
    most_s: float = 300.0

    def __post_init__(self) -> None:
        if not is_positive(self.share) or self.share > 1:
            raise Misconfigured(f"Breaker(share={self.share!r}): give a number above 0 and at most 1.")
        if not is_whole(self.events, 2):
            raise Misconfigured(f"Breaker(events={self.events!r}): give a whole number of at least 2.")
        if not is_positive(self.first_s) or not is_positive(self.most_s) or self.most_s < self.first_s:
            raise Misconfigured(
                f"Breaker(first_s={self.first_s!r}, most_s={self.most_s!r}): give numbers above 0, the first no larger."
            )

    def trips(self, poisoned: list[int], ordinal: int) -> bool:
        """Whether too many of the last events were poison; `poisoned` are their ordinals, up to `ordinal`."""
        recent = sum(one > ordinal - self.events for one in poisoned)
        return recent >= self.share * self.events

    def pause_s(self, pauses: int, chance: float) -> float:
        return pause_s(pauses, chance, first_s=self.first_s, most_s=self.most_s, least=0.5)


def pause_s(attempt: int, chance: float, *, first_s: float = 0.1, most_s: float = 30.0, least: float = 0.1) -> float:
    """Before the try after `attempt` failures (1 or more): exponential, with full jitter, never quite zero.

    `chance` is a random number from 0 to 1, so that a fleet that failed together does not come back together.
    """
    limit_s = min(most_s, first_s * 2.0 ** min(attempt - 1, 30))
    return limit_s * (least + (1 - least) * chance)


def part_of(suspects: int, count: int) -> int:
    """How many of `count` events the next call of a batch handler takes, when the first `suspects` hold a bad one.

    Halving finds it in few calls, and each good event around it is in one call that succeeds.
    """
    return count if suspects == 0 else min(count, max(1, suspects // 2))


def suspects_after(suspects: int, size: int, *, failed: bool) -> int:
    """How many of the events that come next are known to hold a bad one, after a call with `size` of them."""
    return size if failed else max(0, suspects - size)


def ends_after(known: Ends | None, ordinal: int, fruitless: int, *, unplanned: bool) -> Ends | None:
    """What an owner knows of those before it. It has sealed the record at `ordinal`, and the seal counted `fruitless`.

    Of those that made no progress the seal tells, since they wrote nothing; what the last one with progress knew is in
    its record.
    """
    if known is None or not known.begun <= ordinal < known.since + CAREFUL_EVENTS:
        return Ends(1 + fruitless, ordinal, ordinal, fruitless) if unplanned else None
    has_advanced = ordinal > known.begun
    more = fruitless + (unplanned or fruitless > 0) if has_advanced else max(0, fruitless - known.fruitless)
    return Ends(known.owners + more, known.since, ordinal, fruitless)


def _are_errors(value: object) -> bool:
    classes = value if isinstance(value, tuple) else (value,)
    return all(isinstance(one, type) and issubclass(one, BaseException) for one in classes)
