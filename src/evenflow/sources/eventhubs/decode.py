"""Messages that the official client cannot decode, decoded by our own codec, into what the official one would give.

It does not know AMQP's characters and short decimals, stumbles over arrays without elements, and expects every section
to begin in the shortest way. A sender in another language may send all of these. What neither can decode is an error
that says which event it is: it is never passed over in silence.
"""

from __future__ import annotations

from typing import Any

from evenflow.amqp.conditions import DecodeError
from evenflow.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    section_at,
    sections,
    value_of,
)
from evenflow.amqp.types import Described, Timestamp
from evenflow.errors import Corrupt

FIELDS = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    MESSAGE_ANNOTATIONS: "message_annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application_properties",
    DATA: "data",
    SEQUENCE: "sequence",
    VALUE: "value",
    FOOTER: "footer",
}
"""What the official client calls the sections."""
NUMBER = "x-opt-sequence-number"


def fields_of(payload: bytes, partition: str) -> dict[str, Any]:
    """The sections of a message by the official client's names, with its types."""
    found: dict[str, Any] = {}
    try:
        for section in sections(payload):
            name, value = FIELDS[section.code], _official(value_of(payload, section))
            if section.code in (DATA, SEQUENCE):
                found.setdefault(name, []).append(value)
            else:
                found[name] = value
    except DecodeError as error:
        raise _undecodable(payload, partition, error) from error
    return found


def _official(value: Any) -> Any:
    """It gives texts and names as bytes, times as numbers, and forgets what described values mean."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, Described):
        return _official(value.value)
    if isinstance(value, list):
        return [_official(one) for one in value]
    if isinstance(value, dict):
        return {_official(name): _official(one) for name, one in value.items()}
    return value


def _undecodable(payload: bytes, partition: str, error: DecodeError) -> Corrupt:
    number = _number_of(payload)
    which = "the next event" if number is None else f"event {number}"
    there = "'#NUMBER' (its own)" if number is None else f"'#{number}'"
    return Corrupt(
        f"partition {partition}: {which} is no message of AMQP: {error.description} Pass it over with `evenflow group"
        f" seek --to-offset {there} --partition {partition}`, and mend what sent it."
    )


def _number_of(payload: bytes) -> int | None:
    """The annotations are the service's own, so that they can be read even where the rest cannot."""
    at = 0
    try:
        while at < len(payload):
            section = section_at(payload, at)
            if section.code == MESSAGE_ANNOTATIONS:
                found = value_of(payload, section).get(NUMBER)
                return found if type(found) is int else None
            at = section.end
    except DecodeError:
        pass
    return None
