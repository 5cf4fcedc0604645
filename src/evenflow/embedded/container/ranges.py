"""The ranges of a container, which divide the EPK space, and where they are split."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from evenflow.embedded.container.keys import EPK_MAX, EPK_MIN
from evenflow.errors import Misconfigured, RangeGone

RANGES_MAX = 1_024
_HASH_END = 1 << 126
_DIGITS = 32


class PartitionKeyRange(Struct, frozen=True, kw_only=True):
    """One range, from `min` (inclusive) to `max` (exclusive). `parents` are all its ancestors, oldest first."""

    id: str
    min: str
    max: str
    parents: tuple[str, ...] = ()
    lsn: int = 0
    """The LSN of its last change. Each change increments it; children of a split or merge continue from it."""
    revision: int = 0
    """The container's revision when the range was created. Every split and merge increments the container's."""

    def overlaps(self, low: str, high: str) -> bool:
        return self.min < high and low < self.max

    def holds(self, low: str, high: str) -> bool:
        return self.min <= low and high <= self.max


def even_bounds(count: int) -> list[tuple[str, str]]:
    """Divide the whole space into this many ranges with equally many hashes."""
    if not 1 <= count <= RANGES_MAX:
        raise Misconfigured(f"A container must have 1 to {RANGES_MAX} ranges, not {count}.")
    cuts = [EPK_MIN, *(_text(_HASH_END * number // count - 1) for number in range(1, count)), EPK_MAX]
    return list(pairwise(cuts))


def middle(low: str, high: str) -> str:
    """The default split point of a range: the middle of its hashes."""
    found = _text((_number(low) + _number(high)) // 2)
    if not low < found < high:
        raise Misconfigured(f"The range from {low!r} to {high!r} is too small to split.")
    return found


def check_cut(low: str, high: str, at: str) -> str:
    digits = set("0123456789ABCDEF")
    if not low < at < high or len(at) % 2 or not digits.issuperset(at):
        raise Misconfigured(
            f"Cannot split the range from {low!r} to {high!r} at {at!r}. Pass an even number of digits 0-9 and A-F, "
            "between these bounds."
        )
    return at


def range_gone(id: str, children: tuple[str, ...]) -> RangeGone:
    error = RangeGone(f"The range {id} was split or merged. Continue with {', '.join(children)}.")
    error.children = children
    return error


def _text(number: int) -> str:
    return f"{number:0{_DIGITS}X}"


def _number(bound: str) -> int:
    if bound == EPK_MAX:
        return _HASH_END
    return int(bound[:_DIGITS].ljust(_DIGITS, "0"), 16)
