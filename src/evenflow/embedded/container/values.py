"""Compares values in queries as Cosmos DB does, with three-valued logic: a missing value is neither equal nor unequal.

`=` and `!=` compare values of any types; `<`, `<=`, `>` and `>=` need two values of the same type. ORDER BY sorts by
type first: missing, null, booleans, numbers, strings, arrays, objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.embedded.container.keys import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MISSING_RANK, NULL_RANK, BOOLEAN_RANK, NUMBER_RANK, TEXT_RANK, LIST_RANK, OBJECT_RANK = range(7)
_RANKS: dict[type, int] = {
    type(None): NULL_RANK,
    bool: BOOLEAN_RANK,
    int: NUMBER_RANK,
    float: NUMBER_RANK,
    str: TEXT_RANK,
    list: LIST_RANK,
    dict: OBJECT_RANK,
}


def rank(value: Any) -> int:
    return _RANKS.get(type(value), MISSING_RANK)


def equal(one: Any, other: Any) -> Any:
    if one is MISSING or other is MISSING:
        return MISSING
    return same(one, other)


def unequal(one: Any, other: Any) -> Any:
    found = equal(one, other)
    return MISSING if found is MISSING else not found


def same(one: Any, other: Any) -> bool:
    """Deep equality in which true is not equal to 1."""
    kind = rank(one)
    if kind != rank(other):
        return False
    if kind == LIST_RANK:
        return len(one) == len(other) and all(map(same, one, other))
    if kind == OBJECT_RANK:
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def compared(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """A comparison of two values of the same type; MISSING for other values."""

    def found(one: Any, other: Any) -> Any:
        kind = rank(one)
        if kind != rank(other) or kind in (MISSING_RANK, LIST_RANK, OBJECT_RANK):
            return MISSING
        # Nulls are equal to each other, and Python cannot order them.
        return test(0, 0) if kind == NULL_RANK else test(one, other)

    return found


def both(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    return True if one is True and other is True else MISSING


def either(one: Any, other: Any) -> Any:
    if one is True or other is True:
        return True
    return False if one is False and other is False else MISSING


def negated(value: Any) -> Any:
    return not value if isinstance(value, bool) else MISSING


def order(one: Any, other: Any) -> int:
    """Negative if `one` sorts before `other`, positive if after, else zero."""
    kind, other_kind = rank(one), rank(other)
    if kind != other_kind:
        return kind - other_kind
    if kind in (MISSING_RANK, NULL_RANK):
        return 0
    if kind == LIST_RANK:
        return _order_of_lists(one, other)
    if kind == OBJECT_RANK:
        return _order_of_lists(sorted(one.items()), sorted(other.items()))
    return int(one > other) - int(one < other)


def _order_of_lists(one: Sequence[Any], other: Sequence[Any]) -> int:
    for mine, yours in zip(one, other, strict=False):
        found = order(list(mine), list(yours)) if isinstance(mine, tuple) else order(mine, yours)
        if found:
            return found
    return len(one) - len(other)
