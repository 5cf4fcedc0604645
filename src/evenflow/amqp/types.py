"""Encodes and decodes AMQP's types. Decoding arbitrary bytes gives a value or raises `DecodeError`.

Sizes and counts in the data are checked against the available bytes before anything is allocated. Nesting is bounded.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

from evenflow.amqp.conditions import DecodeError
from evenflow.amqp.decimals import decimal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

DEPTH_MAX = 32
"""How deep values may be nested; no known client exceeds five."""
EMPTY_ITEMS_MAX = 4_096
"""How many elements an array of zero-width values (null, true, zero) may have, since no bytes bound their number."""

NULL = b"\x40"
TRUE = b"\x41"
FALSE = b"\x42"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SHORT = struct.Struct(">h")
_USHORT = struct.Struct(">H")
_INT = struct.Struct(">i")
_UINT = struct.Struct(">I")
_LONG = struct.Struct(">q")
_ULONG = struct.Struct(">Q")
_FLOAT = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")
_CODE_LONG = struct.Struct(">Bq")
_CODE_UINT = struct.Struct(">BI")
_SIZE_COUNT = struct.Struct(">II")


class Symbol(str):
    """An AMQP symbol: an ASCII name from a fixed vocabulary."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with a descriptor: a number or a symbol that defines its meaning."""

    descriptor: Any
    value: Any


# Encoding


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def ubyte(value: int) -> bytes:
    return bytes((0x50, value))


def uint(value: int) -> bytes:
    if value < 256:
        return bytes((0x52, value)) if value else b"\x43"
    return _CODE_UINT.pack(0x70, value)


def ulong(value: int) -> bytes:
    if value < 256:
        return bytes((0x53, value)) if value else b"\x44"
    return b"\x80" + _ULONG.pack(value)


def ushort(value: int) -> bytes:
    return b"\x60" + _USHORT.pack(value)


def int_(value: int) -> bytes:
    return b"\x71" + _INT.pack(value)


def long(value: int) -> bytes:
    return _CODE_LONG.pack(0x81, value)


def double(value: float) -> bytes:
    return b"\x82" + _DOUBLE.pack(value)


def timestamp(time_ms: int) -> bytes:
    return _CODE_LONG.pack(0x83, time_ms)


def binary(value: bytes) -> bytes:
    return _sized(0xA0, value)


def string(value: str) -> bytes:
    return _sized(0xA1, value.encode())


def symbol(value: str) -> bytes:
    return _sized(0xA3, value.encode("ascii"))


def _sized(code: int, value: bytes) -> bytes:
    size = len(value)
    if size < 256:
        return bytes((code, size)) + value
    return _CODE_UINT.pack(code + 0x10, size) + value


def list_(items: Iterable[bytes]) -> bytes:
    """A list of encoded items."""
    found = list(items)
    return _compound(0xC0, len(found), b"".join(found))


def map_(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A map of encoded keys and values."""
    found = [part for pair in pairs for part in pair]
    return _compound(0xC1, len(found), b"".join(found))


def map_of(count: int, entries: bytes) -> bytes:
    """A map of keys and values that are already concatenated; `count` is their total number."""
    return _compound(0xC1, count, entries)


def _compound(code: int, count: int, inside: bytes) -> bytes:
    size = len(inside) + 1
    if size < 256 and count < 256:
        return bytes((code, size, count)) + inside
    return bytes((code + 0x10,)) + _SIZE_COUNT.pack(len(inside) + 4, count) + inside


def array(code: int, items: Iterable[bytes]) -> bytes:
    """An array of items encoded without their type code."""
    found = list(items)
    inside = bytes((code,)) + b"".join(found)
    return b"\xf0" + _SIZE_COUNT.pack(len(inside) + 4, len(found)) + inside


def strings(values: Iterable[str]) -> bytes:
    """An array of strings."""
    return array(0xB1, (_UINT.pack(len(text)) + text for text in (value.encode() for value in values)))


def symbols(values: Iterable[str]) -> bytes:
    """An array of symbols."""
    return array(0xB3, (_UINT.pack(len(text)) + text for text in (value.encode("ascii") for value in values)))


def described(descriptor: int, value: bytes) -> bytes:
    return b"\x00" + ulong(descriptor) + value


def plain(value: Any) -> bytes:
    """Encode a Python value as the closest AMQP type; other objects become their text."""
    encode = _PLAIN.get(type(value))
    return encode(value) if encode is not None else _uncommon(value)


def plain_map(values: Mapping[str, Any]) -> bytes:
    return map_((string(name), plain(value)) for name, value in values.items())


def _uncommon(value: Any) -> bytes:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return timestamp((moment - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, dict):
        return map_((plain(name), plain(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return list_([plain(one) for one in value])
    return string(str(value))


def _whole_number(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return long(value)
    return ulong(value) if 0 <= value < 1 << 64 else string(str(value))


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: NULL,
    bool: boolean,
    int: _whole_number,
    float: double,
    str: string,
    bytes: binary,
    Symbol: symbol,
    Timestamp: timestamp,
    UUID: lambda value: b"\x98" + value.bytes,
}


# Decoding


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Decode the value at this offset; returns it and the offset of its end."""
    try:
        return _DECODERS[data[at]](data, at + 1, 0)
    except IndexError:
        raise DecodeError("A value ends before it is complete.") from None
    except struct.error:
        raise DecodeError("A number ends before it is complete.") from None
    except UnicodeDecodeError:
        raise DecodeError("A string is not valid UTF-8.") from None
    except TypeError:
        raise DecodeError("A map has a key of an unsupported type.") from None


def end_of(data: bytes, at: int) -> int:
    """The offset of the end of the value at this offset, from its size alone."""
    try:
        while data[at] == 0:
            at = _end_of_simple(data, at + 1)
        end = _end_of_simple(data, at)
    except (IndexError, struct.error):
        raise DecodeError("A value ends before it is complete.") from None
    if end > len(data):
        raise DecodeError("A value ends before it is complete.")
    return end


def _end_of_simple(data: bytes, at: int) -> int:
    width = _WIDTHS[data[at] >> 4]
    if width >= 0:
        return at + 1 + width
    if width == -1:
        return at + 2 + data[at + 1]
    if width == -4:
        size: int = _UINT.unpack_from(data, at + 1)[0]
        return at + 5 + size
    raise DecodeError(f"0x{data[at]:02x} is not a type code.")


_WIDTHS = (-2, -2, -2, -2, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)
"""By the upper half of a type code: how many bytes follow. -1 and -4: the width of a size field; -2: invalid code."""


def _unknown(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    raise DecodeError(f"0x{data[at - 1]:02x} is not a type code.")


def _constant(value: Any) -> Decoder:
    return lambda data, at, depth: (value, at)


def _number(layout: struct.Struct, kind: Callable[[Any], Any] | None = None) -> Decoder:
    unpack, size = layout.unpack_from, layout.size
    if kind is None:
        return lambda data, at, depth: (unpack(data, at)[0], at + size)
    return lambda data, at, depth: (kind(unpack(data, at)[0]), at + size)


def _byte(data: bytes, at: int, depth: int) -> tuple[int, int]:
    return data[at], at + 1


def _signed_byte(data: bytes, at: int, depth: int) -> tuple[int, int]:
    value = data[at]
    return (value - 256 if value > 127 else value), at + 1


def _truth(data: bytes, at: int, depth: int) -> tuple[bool, int]:
    return data[at] == 1, at + 1


def _raw(size: int, kind: Callable[[bytes], Any]) -> Decoder:
    def decode_raw(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        return kind(_cut(data, at, size)), at + size

    return decode_raw


def _character(found: bytes) -> str:
    number = _UINT.unpack(found)[0]
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise DecodeError("A character is not a Unicode code point.")
    return chr(number)


def _short_text(kind: Callable[[bytes], Any]) -> Decoder:
    def decode_text(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        size = data[at]
        return kind(_cut(data, at + 1, size)), at + 1 + size

    return decode_text


def _long_text(kind: Callable[[bytes], Any]) -> Decoder:
    def decode_text(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        size = _UINT.unpack_from(data, at)[0]
        return kind(_cut(data, at + 4, size)), at + 4 + size

    return decode_text


def _cut(data: bytes, at: int, size: int) -> bytes:
    end = at + size
    if end > len(data):
        raise DecodeError("A value ends before it is complete.")
    return data[at:end]


def _as_bytes(found: bytes) -> bytes:
    return found


def _text(found: bytes) -> str:
    return found.decode()


def _name(found: bytes) -> Symbol:
    # The standard requires ASCII. Accept other bytes rather than break the connection.
    return Symbol(found.decode("latin-1"))


def _list(wide: bool, kind: Callable[[list[Any]], Any]) -> Decoder:
    def decode_items(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        at, end, count = _extent(data, at, wide=wide)
        _check_depth(depth)
        if count > end - at:
            raise DecodeError("A list claims more items than it has bytes.")
        items = []
        for _ in range(count):
            item, at = _DECODERS[data[at]](data, at + 1, depth + 1)
            items.append(item)
        _check_end(at, end)
        return kind(items), at

    return decode_items


def _extent(data: bytes, at: int, *, wide: bool) -> tuple[int, int, int]:
    """The start and end of a compound's items, and their number."""
    if wide:
        size, count = _SIZE_COUNT.unpack_from(data, at)
        begin, end = at + 8, at + 4 + size
    else:
        size, count = data[at], data[at + 1]
        begin, end = at + 2, at + 1 + size
    if end > len(data) or end < begin:
        raise DecodeError("A list or map ends before it is complete.")
    return begin, end, count


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise DecodeError(f"Values are nested more than {DEPTH_MAX} deep.")


def _check_end(at: int, end: int) -> None:
    if at != end:
        raise DecodeError("The length of a list or map is wrong.")


def _items(found: list[Any]) -> list[Any]:
    return found


def _pairs(found: list[Any]) -> dict[Any, Any]:
    if len(found) % 2:
        raise DecodeError("A map has a key without a value.")
    return dict(zip(found[::2], found[1::2], strict=True))


def _array(wide: bool) -> Decoder:
    def decode_array(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        at, end, count = _extent(data, at, wide=wide)
        _check_depth(depth)
        if not count:
            return [], end
        descriptor = None
        if data[at] == 0:
            descriptor, at = _DECODERS[data[at + 1]](data, at + 2, depth + 1)
        code = data[at]
        at += 1
        if count > max(end - at, EMPTY_ITEMS_MAX if code >> 4 == 4 else 0):
            raise DecodeError("An array claims more items than it has bytes.")
        decoder = _DECODERS[code]
        items = []
        for _ in range(count):
            item, at = decoder(data, at, depth + 1)
            items.append(item if descriptor is None else Described(descriptor, item))
        _check_end(at, end)
        return items, at

    return decode_array


def _described(data: bytes, at: int, depth: int) -> tuple[Described, int]:
    _check_depth(depth)
    descriptor, at = _DECODERS[data[at]](data, at + 1, depth + 1)
    value, at = _DECODERS[data[at]](data, at + 1, depth + 1)
    return Described(descriptor, value), at


_DECODERS: list[Decoder] = [_unknown] * 256
for _code, _decoder in {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda data, at, depth: ([], at),
    0x50: _byte,
    0x51: _signed_byte,
    0x52: _byte,
    0x53: _byte,
    0x54: _signed_byte,
    0x55: _signed_byte,
    0x56: _truth,
    0x60: _number(_USHORT),
    0x61: _number(_SHORT),
    0x70: _number(_UINT),
    0x71: _number(_INT),
    0x72: _number(_FLOAT),
    0x73: _raw(4, _character),
    0x74: _raw(4, decimal_of),
    0x80: _number(_ULONG),
    0x81: _number(_LONG),
    0x82: _number(_DOUBLE),
    0x83: _number(_LONG, Timestamp),
    0x84: _raw(8, decimal_of),
    0x94: _raw(16, decimal_of),
    0x98: _raw(16, lambda found: UUID(bytes=found)),
    0xA0: _short_text(_as_bytes),
    0xA1: _short_text(_text),
    0xA3: _short_text(_name),
    0xB0: _long_text(_as_bytes),
    0xB1: _long_text(_text),
    0xB3: _long_text(_name),
    0xC0: _list(False, _items),
    0xC1: _list(False, _pairs),
    0xD0: _list(True, _items),
    0xD1: _list(True, _pairs),
    0xE0: _array(False),
    0xF0: _array(True),
}.items():
    _DECODERS[_code] = _decoder
