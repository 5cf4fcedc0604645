"""Ranges of a container: the parts of the EPK space that are read, split and merged. Here is where they are cut."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from evenflow.embedded.container.keys import EPK_MAX, EPK_MIN
from evenflow.errors import Misconfigured, RangeGone

RANGES_MAX = 1_024
_HASH_END = 1 << 126
_DIGITS = 32


class Range(Struct, frozen=True, kw_only=True):
    """One range: from `min`, to before `max`. `parents` are all those that it came from, the oldest first."""

    id: str
    min: str
    max: str
    parents: tuple[str, ...] = ()
    lsn: int = 0
    """Of its last change. Every change has the next one; they go on in the children of a split or merge."""
    revision: int = 0
    """Grows with every split and merge of the container; that of a range is of when it was made."""

    def overlaps(self, low: str, high: str) -> bool:
        return self.min < high and low < self.max

    def holds(self, low: str, high: str) -> bool:
        return self.min <= low and high <= self.max


def even_bounds(count: int) -> list[tuple[str, str]]:
    """So many ranges over the whole space, with as many hashes in each."""
    if not 1 <= count <= RANGES_MAX:
        raise Misconfigured(f"A container has 1 to {RANGES_MAX} ranges, not {count}.")
    cuts = [EPK_MIN, *(_text(_HASH_END * number // count - 1) for number in range(1, count)), EPK_MAX]
    return list(pairwise(cuts))


def middle(low: str, high: str) -> str:
    """Where a range is cut in two if nobody says where."""
    found = _text((_number(low) + _number(high)) // 2)
    if not low < found < high:
        raise Misconfigured(f"The range from {low!r} to {high!r} is too small to be split.")
    return found


def check_cut(low: str, high: str, at: str) -> str:
    digits = set("0123456789ABCDEF")
    if not low < at < high or len(at) % 2 or not digits.issuperset(at):
        raise Misconfigured(
            f"{at!r} is no place to split the range from {low!r} to {high!r}: it is an even number of digits 0 to 9 "
            "and A to F, and lies between them."
        )
    return at


def gone(id: str, children: tuple[str, ...]) -> RangeGone:
    error = RangeGone(f"The range {id} is gone: it was split or merged. Go on in {', '.join(children)}.")
    error.children = children
    return error


def _text(number: int) -> str:
    return f"{number:0{_DIGITS}X}"


def _number(bound: str) -> int:
    if bound == EPK_MAX:
        return _HASH_END
    return int(bound[:_DIGITS].ljust(_DIGITS, "0"), 16)
