"""A receiver's start position, from the selector in its filter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.amqp.conditions import ARGUMENT, AmqpError
from evenflow.amqp.types import NULL, Described, map_, string, symbol

if TYPE_CHECKING:
    from evenflow.embedded.hub.log import PartitionLog

SELECTOR = "apache.org:selector-filter:string"
BEGINNING = "-1"
LATEST = "@latest"

_TEXT_MAX = 500
_WHERE = re.compile(
    r"\s*amqp\.annotation\.(x-opt-offset|x-opt-sequence-number|x-opt-enqueued-?time(?:-?utc)?)"
    r"\s*(>=?)\s*'?\s*(@latest|-?\d{1,20})(?:\.\d{1,9})?\s*'?\s*",
    re.IGNORECASE,
)


class StartPosition(NamedTuple):
    by: str
    """"offset", "sequence" or "time"."""
    value: str
    inclusive: bool


EARLIEST = StartPosition("offset", BEGINNING, False)


def start_of(filters: dict[Any, Any]) -> StartPosition:
    """The start position in these filters; the beginning if there is no selector."""
    for name, value in filters.items():
        if name == SELECTOR:
            return parse(value.value if isinstance(value, Described) else value)
    return EARLIEST


def encoded(filters: dict[Any, Any]) -> bytes:
    """The selector among these filters, encoded for the response."""
    value = filters.get(SELECTOR)
    text = value.value if isinstance(value, Described) else value
    if not isinstance(text, str):
        return NULL
    return map_([(symbol(SELECTOR), b"\x00" + symbol(SELECTOR) + string(text))])


def parse(text: Any) -> StartPosition:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    found = _WHERE.fullmatch(text) if isinstance(text, str) and len(text) <= _TEXT_MAX else None
    if found is None:
        raise AmqpError(ARGUMENT, f"The selector {text!r:.200} is not a valid start position.")
    name, comparison, value = found[1].lower(), found[2], found[3].lower()
    by = {"x-opt-offset": "offset", "x-opt-sequence-number": "sequence"}.get(name, "time")
    if by == "time" and value == LATEST:
        raise AmqpError(ARGUMENT, f"The selector {text!r:.200} compares the enqueued time with another value.")
    return StartPosition(by, value, comparison == ">=")


def after(start: StartPosition, log: PartitionLog) -> int:
    """The sequence to read after. Reads the log, so it must run on a thread."""
    if start.by == "time":
        time_ms = int(start.value) + (not start.inclusive)
        return log.before_time(max(0, min(time_ms, 1 << 52)) * 1000)
    state = log.state()
    if start.value == LATEST:
        return state.next - 1
    if start.value == BEGINNING and start.by == "offset":
        return state.oldest - 1
    place = int(start.value) - start.inclusive
    if place >= state.next:
        raise AmqpError(
            ARGUMENT,
            f"The supplied {'offset' if start.by == 'offset' else 'sequence number'} '{start.value}' is invalid. "
            f"The last {'offset' if start.by == 'offset' else 'sequence number'} in the system is '{state.next - 1}'",
        )
    # Skip events that retention removed, as the service does.
    return max(place, state.oldest - 1)
