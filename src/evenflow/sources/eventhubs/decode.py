"""Decodes messages that the official client cannot decode, with our own codec, to what the client would return.

The client does not support AMQP's characters and short decimals, fails on empty arrays, and expects the shortest
encoding at the beginning of every section. Senders in other languages may use all of these. A message that neither
codec can decode is an error that names the event, and is never skipped silently.
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
"""The official client's names of the sections."""
NUMBER = "x-opt-sequence-number"


def fields_of(payload: bytes, partition: str) -> dict[str, Any]:
    """The sections of a message, with the official client's names and types."""
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
    """The client returns text and symbols as bytes and times as numbers, and drops the descriptors of values."""
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
        f"partition {partition}: {which} is not a valid AMQP message: {error.description} Skip it with `evenflow group"
        f" seek --to-offset {there} --partition {partition}`, and fix its sender."
    )


def _number_of(payload: bytes) -> int | None:
    """The service writes the annotations, so they can be decoded even if the rest cannot."""
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
