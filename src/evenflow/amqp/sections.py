"""The sections of a message. They are located by their sizes, without decoding them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.amqp.conditions import DecodeError
from evenflow.amqp.types import NULL, binary, decode, described, end_of, int_, list_, map_, string, symbol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

_LAST_OF_HEAD = APPLICATION_PROPERTIES
_SMALL_ULONG = 0x53

_SYMBOLS = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
"""A descriptor may be a symbol instead of a number. No client of Event Hubs uses or understands that."""

_MAPS = frozenset((DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER))
_LISTS = frozenset((HEADER, PROPERTIES, SEQUENCE))
_MAY_BE_NULL = frozenset((HEADER, PROPERTIES)) | _MAPS
"""A null in place of these sections means that they are missing."""
_NULL = NULL[0]


ID_BYTES_MAX = 1_024
"""The id is returned with the response, which may have to wait in memory."""


class Section(NamedTuple):
    code: int
    begin: int
    value: int
    """The offset of its value."""
    end: int


def sections(message: bytes) -> Iterator[Section]:
    """The sections of a message. Raises `DecodeError` if they are not in the required order."""
    at, size, before = 0, len(message), 0
    while at < size:
        section = section_at(message, at)
        if section.code < before or (section.code == before and section.code not in (DATA, SEQUENCE)):
            raise DecodeError("The sections of a message are not in order.")
        yield section
        at, before = section.end, section.code


def section_at(message: bytes, at: int) -> Section:
    begin = at
    if len(message) - at < 4 or message[at] != 0:
        raise DecodeError("Expected the start of a section.")
    if message[at + 1] == _SMALL_ULONG:
        code, at = message[at + 2], at + 3
    else:
        code, at = decode(message, at + 1)
        code = _SYMBOLS.get(code, 0) if isinstance(code, str) else code
    if type(code) is not int or not HEADER <= code <= FOOTER:
        raise DecodeError(f"{decode(message, begin + 1)[0]!r:.60} is not a section of a message.")
    return Section(code, begin, at, end_of(message, at))


def is_head(section: Section) -> bool:
    """Whether the section comes before the body."""
    return section.code <= _LAST_OF_HEAD


def value_of(message: bytes, section: Section) -> Any:
    """Decode a section's value. Raises `DecodeError` if its type does not fit the section."""
    found, end = decode(message, section.value)
    if end != section.end:
        raise DecodeError("A section's length is wrong.")
    if found is None and section.code in _MAY_BE_NULL:
        return {} if section.code in _MAPS else []
    if section.code in _MAPS and type(found) is not dict:
        raise DecodeError("A section that must be a map is not.")
    if section.code in _LISTS and type(found) is not list:
        raise DecodeError("A section that must be a list is not.")
    if section.code == DATA and type(found) is not bytes:
        raise DecodeError("A data section has no bytes.")
    return found


def normalized(message: bytes, section: Section) -> bytes:
    """A section with a short numeric descriptor, which all clients understand; empty if its value is null."""
    if message[section.value] == _NULL and section.code in _MAY_BE_NULL:
        return b""
    if message[section.begin + 1] == _SMALL_ULONG:
        return message[section.begin : section.end]
    return bytes((0x00, _SMALL_ULONG, section.code)) + message[section.value : section.end]


class AmqpRequest(NamedTuple):
    """A request message to `$cbs` or `$management`."""

    message_id: Any
    message_id_bytes: bytes
    """The encoded id, which the response returns as its correlation id, whatever its type."""
    reply_to: str
    properties: Mapping[Any, Any]
    value: Any


def request_of(message: bytes) -> AmqpRequest:
    message_id, message_id_bytes, reply_to = None, NULL, ""
    properties: dict[Any, Any] = {}
    value = None
    for section in sections(message):
        if section.code == PROPERTIES:
            found = value_of(message, section)
            message_id = found[0] if found else None
            message_id_bytes = _first_item(message, section) if found else NULL
            if len(message_id_bytes) > ID_BYTES_MAX:
                raise DecodeError(f"The id of a request has more than {ID_BYTES_MAX} bytes.")
            reply_to = found[4] if len(found) > 4 and isinstance(found[4], str) else ""
        elif section.code == APPLICATION_PROPERTIES:
            properties = value_of(message, section)
        elif section.code in (DATA, VALUE):
            value = value_of(message, section)
    return AmqpRequest(message_id, message_id_bytes, reply_to, properties, value)


def _first_item(message: bytes, section: Section) -> bytes:
    begin = section.value + (9 if message[section.value] == 0xD0 else 3)
    return message[begin : end_of(message, begin)]


def reply(request: AmqpRequest, status: int, description: str, value: bytes = NULL, condition: str = "") -> bytes:
    """The response to a request, with an HTTP status code."""
    facts = [(string("status-code"), int_(status)), (string("status-description"), string(description))]
    # The current Python client reads an error's description under a different name than the service's.
    facts += [(string("statusDescription"), string(description))] if condition else []
    facts += [(string("error-condition"), symbol(condition))] if condition else []
    properties = [NULL] * 5 + [request.message_id_bytes] + [NULL] * 7
    return b"".join(
        (
            described(PROPERTIES, list_(properties)),
            described(APPLICATION_PROPERTIES, map_(facts)),
            described(VALUE, value),
        )
    )


def data(body: bytes) -> bytes:
    return described(DATA, binary(body))
