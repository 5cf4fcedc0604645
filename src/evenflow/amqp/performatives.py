"""The performatives of connections, sessions and links: parsing and encoding.

Encoding writes all fields, including trailing nulls, because some clients count them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.amqp.conditions import INVALID_FIELD, NOT_IMPLEMENTED, AmqpError, DecodeError
from evenflow.amqp.frames import AMQP_FRAME, HEADER_BYTES
from evenflow.amqp.types import (
    FALSE,
    NULL,
    TRUE,
    Described,
    boolean,
    decode,
    described,
    list_,
    string,
    symbol,
    symbols,
    ubyte,
    uint,
    ulong,
    ushort,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = range(0x40, 0x45)
ERROR = 0x1D
ACCEPTED, REJECTED = 0x24, 0x25
SOURCE, TARGET = 0x28, 0x29

SENDER, RECEIVER = False, True
"""The role of a link's end."""
SETTLED_MODE = 1
"""The sender settles each delivery before it sends it, so the receiver does not respond."""

UINT_MAX = 0xFFFFFFFF


class Open(NamedTuple):
    container_id: str
    hostname: str | None
    max_frame_size: int | None
    channel_max: int | None
    idle_timeout_ms: int | None
    outgoing_locales: Any
    incoming_locales: Any
    offered: Any
    desired: Any
    properties: dict[Any, Any] | None


class Begin(NamedTuple):
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None
    offered: Any
    desired: Any
    properties: dict[Any, Any] | None


class AttachSummary(NamedTuple):
    """The part of an attach that its response needs. The whole attach may be large and is not kept."""

    name: str
    handle: int
    role: bool
    source_address: str
    target_address: str


class Attach(NamedTuple):
    name: str
    handle: int
    role: bool
    sender_mode: int | None
    receiver_mode: int | None
    source: Described | None
    target: Described | None
    unsettled: Any
    incomplete_unsettled: bool | None
    initial_delivery_count: int | None
    max_message_size: int | None
    offered: Any
    desired: Any
    properties: dict[Any, Any] | None

    @property
    def summary(self) -> AttachSummary:
        return AttachSummary(self.name, self.handle, self.role, self.source_address, self.target_address)

    @property
    def source_address(self) -> str:
        return _address(self.source)

    @property
    def target_address(self) -> str:
        return _address(self.target)

    @property
    def source_filters(self) -> dict[Any, Any]:
        found = _field(self.source, 7)
        return found if isinstance(found, dict) else {}

    def wants(self, capability: str) -> bool:
        desired = self.desired
        return capability in desired if isinstance(desired, list) else desired == capability


class Flow(NamedTuple):
    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None
    delivery_count: int | None
    link_credit: int | None
    available: int | None
    drain: bool | None
    echo: bool | None
    properties: dict[Any, Any] | None


class Transfer(NamedTuple):
    handle: int
    delivery_id: int | None
    delivery_tag: bytes | None
    message_format: int | None
    settled: bool | None
    more: bool | None
    receiver_mode: int | None
    state: Any
    resume: bool | None
    aborted: bool | None
    batchable: bool | None


class Disposition(NamedTuple):
    role: bool
    first: int
    last: int | None
    settled: bool | None
    state: Any
    batchable: bool | None


class Detach(NamedTuple):
    handle: int
    closed: bool | None
    error: Any


class End(NamedTuple):
    error: Any


class Close(NamedTuple):
    error: Any


class SaslInit(NamedTuple):
    mechanism: str
    initial_response: bytes | None
    hostname: str | None


# The type of each field: s string, u 32-bit number, U 64-bit number, b boolean, x binary, m map, d described value,
# * any. An exclamation mark makes the field mandatory.
_FIELDS: dict[int, tuple[Callable[..., Any], str]] = {
    OPEN: (Open, "s!s u u u * * * * m"),
    BEGIN: (Begin, "u u!u!u!u * * m"),
    ATTACH: (Attach, "s!u!b!u u d d * b u U * * m"),
    FLOW: (Flow, "u u!u!u!u u u u b b m"),
    TRANSFER: (Transfer, "u!u x u b b u * b b b"),
    DISPOSITION: (Disposition, "b!u!u b * b"),
    DETACH: (Detach, "u!b *"),
    END: (End, "*"),
    CLOSE: (Close, "*"),
    SASL_INIT: (SaslInit, "s!x s"),
}


_FITS: dict[str, Callable[[Any], bool]] = {
    "s": lambda value: isinstance(value, str),
    "u": lambda value: type(value) is int and 0 <= value <= UINT_MAX,
    "U": lambda value: type(value) is int and value >= 0,
    "b": lambda value: type(value) is bool,
    "x": lambda value: type(value) is bytes,
    "m": lambda value: type(value) is dict,
    "d": lambda value: type(value) is Described,
    "*": lambda value: True,
}


class _PerformativeLayout(NamedTuple):
    make: Callable[..., Any]
    checks: tuple[tuple[Callable[[Any], bool], bool], ...]
    """For each field: the check of its type, and whether it is mandatory."""


def _layout(make: Callable[..., Any], fields: str) -> _PerformativeLayout:
    codes, flags = fields[::2], fields[1::2].ljust(len(fields[::2]))
    return _PerformativeLayout(make, tuple((_FITS[code], flag == "!") for code, flag in zip(codes, flags, strict=True)))


_LAYOUTS = {code: _layout(*found) for code, found in _FIELDS.items()}


_SYMBOLS = {
    f"amqp:{found.make.__name__.lower()}:list": code for code, found in _LAYOUTS.items() if code < SASL_INIT
} | {"amqp:sasl-init:list": SASL_INIT}
"""A descriptor may be a symbol instead of a number."""


def parse(body: bytes) -> tuple[Any, bytes]:
    """Parse a frame's performative; returns it and the payload after it."""
    value, at = decode(body)
    if type(value) is not Described or type(value.value) is not list:
        raise DecodeError("A frame does not begin with a performative.")
    code = _SYMBOLS.get(value.descriptor) if isinstance(value.descriptor, str) else value.descriptor
    layout = _LAYOUTS.get(code) if type(code) is int else None
    if layout is None:
        raise AmqpError(NOT_IMPLEMENTED, f"There is no performative {value.descriptor!r:.60}.")
    fields = value.value
    missing = len(layout.checks) - len(fields)
    if missing < 0:
        raise DecodeError(f"{layout.make.__name__} has {-missing} extra fields.")
    fields += [None] * missing
    for place, (field, (fits, required)) in enumerate(zip(fields, layout.checks, strict=True)):
        if required if field is None else not fits(field):
            name = layout.make.__name__.lower()
            raise AmqpError(INVALID_FIELD, f"Field {place + 1} of {name} is missing or has the wrong type.")
    return layout.make(*fields), body[at:]


def _field(described_list: Described | None, place: int) -> Any:
    value = described_list.value if described_list is not None else None
    return value[place] if isinstance(value, list) and len(value) > place else None


def _address(terminus: Described | None) -> str:
    found = _field(terminus, 0)
    return found if isinstance(found, str) else ""


# Encoding


def _performative(code: int, fields: Iterable[bytes]) -> bytes:
    return described(code, list_(fields))


def open_(container_id: str, *, frame_bytes: int, channel_max: int, idle_ms: int) -> bytes:
    fields = [string(container_id), NULL, uint(frame_bytes), ushort(channel_max), uint(idle_ms)]
    return _performative(OPEN, [*fields, NULL, NULL, NULL, NULL, NULL])


def begin(remote_channel: int, *, next_id: int, incoming_window: int, outgoing_window: int, handle_max: int) -> bytes:
    fields = [ushort(remote_channel), uint(next_id), uint(incoming_window), uint(outgoing_window), uint(handle_max)]
    return _performative(BEGIN, [*fields, NULL, NULL, NULL])


def attach(
    attach_request: AttachSummary | Attach,
    *,
    source: bytes,
    target: bytes,
    sender_mode: int = 2,
    message_bytes_max: int | None = None,
    offered: Sequence[str] = (),
    properties: bytes = NULL,
) -> bytes:
    """The response to an attach: the same name and handle, the opposite role."""
    role = not attach_request.role
    fields = [
        string(attach_request.name),
        uint(attach_request.handle),
        boolean(role),
        ubyte(sender_mode),
        ubyte(0),
        source,
        target,
        NULL,
        FALSE,
        uint(0) if role is SENDER else NULL,
        NULL if message_bytes_max is None else ulong(message_bytes_max),
        symbols(offered) if offered else NULL,
        NULL,
        properties,
    ]
    return _performative(ATTACH, fields)


def source(address: str, filters: bytes = NULL) -> bytes:
    nulls = [NULL] * 6
    return _performative(SOURCE, [string(address), *nulls, filters, NULL, NULL, NULL])


def target(address: str) -> bytes:
    return _performative(TARGET, [string(address), *[NULL] * 6])


def flow(
    *,
    next_incoming_id: int,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int | None = None,
    delivery_count: int | None = None,
    credit: int | None = None,
    drain: bool = False,
) -> bytes:
    """The flow state of a session and, with a handle, of one of its links."""
    session = (next_incoming_id, incoming_window, next_outgoing_id, outgoing_window)
    link = (handle, delivery_count, credit, None)
    numbers = [NULL if number is None else uint(number) for number in (*session, *link)]
    return _performative(FLOW, [*numbers, boolean(drain), FALSE, NULL])


def disposition(first: int, last: int, state: bytes) -> bytes:
    """Settle deliveries as their receiver."""
    return _performative(DISPOSITION, [TRUE, uint(first), uint(last), TRUE, state, FALSE])


def accepted() -> bytes:
    return _performative(ACCEPTED, [])


def rejected(condition: str, description: str) -> bytes:
    return _performative(REJECTED, [error(condition, description)])


def detach(handle: int, reason: AmqpError | None = None) -> bytes:
    return _performative(DETACH, [uint(handle), TRUE, _error_field(reason)])


def end(reason: AmqpError | None = None) -> bytes:
    return _performative(END, [_error_field(reason)])


def close(reason: AmqpError | None = None) -> bytes:
    return _performative(CLOSE, [_error_field(reason)])


def error(condition: str, description: str) -> bytes:
    return _performative(ERROR, [symbol(condition), string(description), NULL])


def _error_field(reason: AmqpError | None) -> bytes:
    return NULL if reason is None else error(reason.condition, reason.description)


def sasl_mechanisms(names: Sequence[str]) -> bytes:
    return _performative(SASL_MECHANISMS, [symbols(names)])


def sasl_outcome(code: int) -> bytes:
    return _performative(SASL_OUTCOME, [ubyte(code), NULL])


# A transfer is written for every event, so its frame and performative are packed at once with fixed-width numbers.
_TRANSFER = struct.Struct(">IBBH 6s BI BI 3s BI B B 5s")
TRANSFER_BYTES = _TRANSFER.size
_TRANSFER_HEAD = bytes((0x00, 0x53, TRANSFER, 0xC0, TRANSFER_BYTES - HEADER_BYTES - 5, len(Transfer._fields)))
# Settled deliveries need no unique tag. With a constant tag, clients that collect tags keep a single one.
_TRANSFER_TAG = b"\xa0\x01\x00"
_TRANSFER_TAIL = NULL + NULL + FALSE + FALSE + FALSE
_TRUE, _FALSE = TRUE[0], FALSE[0]


def transfer_head(channel: int, handle: int, delivery_id: int, payload_bytes: int, *, more: bool = False) -> bytes:
    """The frame header and performative of a settled transfer with this many bytes of payload."""
    return _TRANSFER.pack(
        TRANSFER_BYTES + payload_bytes,
        2,
        AMQP_FRAME,
        channel,
        _TRANSFER_HEAD,
        0x70,
        handle,
        0x70,
        delivery_id,
        _TRANSFER_TAG,
        0x70,
        0,
        _TRUE,
        _TRUE if more else _FALSE,
        _TRANSFER_TAIL,
    )
