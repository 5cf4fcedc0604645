"""AMQP's types: what is encoded comes back, and whatever else comes is an error with a name."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenflow.amqp import types
from evenflow.amqp.conditions import DecodeError
from evenflow.amqp.types import Described, Symbol, Timestamp, decode, end_of, plain

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=9), inner, max_size=40)
)


@given(VALUES)
def test_a_plain_value_comes_back(value: Any) -> None:
    data = plain(value)
    assert decode(data) == (value, len(data))
    assert end_of(data, 0) == len(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (types.uint(0), 0),
        (types.uint(255), 255),
        (types.uint(256), 256),
        (types.ulong(0), 0),
        (types.ulong(255), 255),
        (types.ulong(1 << 60), 1 << 60),
        (types.ubyte(7), 7),
        (types.ushort(4_999), 4_999),
        (types.int_(-5), -5),
        (b"\x51\xfe", -2),
        (b"\x54\xff", -1),
        (b"\x55\x80", -128),
        (b"\x56\x01", True),
        (b"\x56\x00", False),
        (b"\x61\xff\xfe", -2),
        (b"\x72\x3f\x80\x00\x00", 1.0),
        (b"\x73\x00\x00\x00\x41", "A"),
        (b"\x74\x32\x80\x00\x01", Decimal(1)),
        (b"\x74\xb2\x00\x00\x0f", Decimal("-1.5")),
        (b"\x74\x6c\xb8\x96\x7f", Decimal(9_999_999)),
        (b"\x74\x6c\xb8\x96\x80", Decimal(0)),
        (b"\x74\x78\x00\x00\x00", Decimal("Infinity")),
        (b"\x84\xf8" + bytes(7), Decimal("-Infinity")),
        (b"\x84\x31\xc0" + bytes(5) + b"\x07", Decimal(7)),
        (b"\x84\x31\x60" + bytes(5) + b"\x07", Decimal("0.007")),
        (b"\x94\x30\x40" + bytes(13) + b"\x07", Decimal(7)),
        (b"\x94\x30\x3e\x00\x00\x00\x00" + bytes(8) + b"\x01\x00", Decimal("25.6")),
        (b"\x45", []),
        (types.symbol("amqp:not-found"), Symbol("amqp:not-found")),
        (types.timestamp(-1), Timestamp(-1)),
        (types.strings(["0", "1"]), ["0", "1"]),
        (types.symbols([]), []),
        (b"\xe0\x06\x02\x50\x01\x02"[:1] + b"\x04\x02\x50\x01\x02", [1, 2]),
        (b"\xe0\x02\x05\x41", [True] * 5),
        (types.described(0x24, types.list_([])), Described(0x24, [])),
        (types.list_([types.uint(1)] * 300), [1] * 300),
    ],
)
def test_every_form_of_a_type_is_understood(data: bytes, value: Any) -> None:
    assert decode(data) == (value, len(data))
    assert end_of(data, 0) == len(data)


def test_an_array_of_described_values_is_understood() -> None:
    data = b"\xe0" + bytes((7, 2)) + b"\x00\x53\x70" + b"\x50" + b"\x01\x02"
    assert decode(data)[0] == [Described(0x70, 1), Described(0x70, 2)]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1 << 63, 1 << 63),
        (1 << 70, str(1 << 70)),
        (datetime(1970, 1, 2, tzinfo=UTC), Timestamp(86_400_000)),
        (datetime(1970, 1, 2), Timestamp(86_400_000)),  # noqa: DTZ001
        ((1, "a"), [1, "a"]),
        (UUID(int=5), UUID(int=5)),
        ({1, 2}, "{1, 2}"),
    ],
)
def test_what_is_not_quite_plain_goes_as_what_is_nearest(value: Any, wanted: Any) -> None:
    assert decode(plain(value))[0] == wanted


def test_a_number_that_is_none_survives() -> None:
    assert math.isnan(decode(plain(math.nan))[0])


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x00")
@example(b"\x00\x00\x00")
@example(b"\xa1\x05abc")  # shorter than it says
@example(b"\xa1\x01\xff")  # not UTF-8
@example(b"\xb0\xff\xff\xff\xff")  # four gigabytes that are not there
@example(b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\xc0\x01\xff")  # more items than bytes
@example(b"\xc0\x00\x00")  # a size that does not hold its own count
@example(b"\xc1\x04\x01\xa1\x00")  # half a pair
@example(b"\xc1\x04\x02\x45\x40\x40")  # a list as a key
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")  # four billion nulls
@example(b"\xf0\x00\x00\x00\x08\x00\x00\x10\x01\x00\x40\x40\x43")
@example(b"\xc0\x02\x01")  # cut off inside
@example(b"\xc0\x03\x01\x40\x40")  # longer than its items
@example(b"\x73\xff\xff\xff\xff")  # no character
@example(b"\x73\x00\x00\xd8\x00")  # half of one
@example(b"\xc0\xff\x01" * 80)
def test_whatever_the_bytes_are_there_is_a_value_or_an_error_with_a_name(data: bytes) -> None:
    try:
        _, end = decode(data)
    except DecodeError:
        return
    assert 0 < end <= len(data)
    assert end_of(data, 0) == end


LIST_IN_LIST = b"\xd0\x00\x00\xff\xff\x00\x00\x00\x01"


@pytest.mark.parametrize("opening", [b"\x00\x53\x01", b"\x00", LIST_IN_LIST, b"\xe0\xff\x01\x00"])
def test_nesting_is_bounded(opening: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(opening * 5_000)


def test_a_deep_list_that_is_right_in_itself_is_refused() -> None:
    data = types.list_([])
    for _ in range(types.DEPTH_MAX + 1):
        data = types.list_([data])
    with pytest.raises(DecodeError, match="nested"):
        decode(data)


def test_an_array_of_what_has_no_bytes_is_bounded() -> None:
    many = struct.pack(">II", 5, types.EMPTY_ITEMS_MAX + 1)
    with pytest.raises(DecodeError, match="more items"):
        decode(b"\xf0" + many + b"\x40")
