"""The functions that queries may call."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.values import (
    BOOLEAN_RANK,
    LIST_RANK,
    NULL_RANK,
    NUMBER_RANK,
    OBJECT_RANK,
    TEXT_RANK,
    rank,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_texts(test: Callable[[str, str], bool]) -> Callable[..., Any]:
    def found(text: Any, part: Any, ignore_case: Any = False) -> Any:
        if not isinstance(text, str) or not isinstance(part, str) or not isinstance(ignore_case, bool):
            return MISSING
        return test(text.lower(), part.lower()) if ignore_case else test(text, part)

    return found


def _is_kind(*kinds: int) -> Callable[[Any], bool]:
    return lambda value: rank(value) in kinds


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "STARTSWITH": (2, 3, _of_texts(str.startswith)),
    "ENDSWITH": (2, 3, _of_texts(str.endswith)),
    "CONTAINS": (2, 3, _of_texts(operator.contains)),
    "IS_DEFINED": (1, 1, lambda value: value is not MISSING),
    "IS_NULL": (1, 1, _is_kind(NULL_RANK)),
    "IS_BOOL": (1, 1, _is_kind(BOOLEAN_RANK)),
    "IS_NUMBER": (1, 1, _is_kind(NUMBER_RANK)),
    "IS_STRING": (1, 1, _is_kind(TEXT_RANK)),
    "IS_ARRAY": (1, 1, _is_kind(LIST_RANK)),
    "IS_OBJECT": (1, 1, _is_kind(OBJECT_RANK)),
}
"""For each function: the minimum and maximum number of arguments, and its implementation."""
