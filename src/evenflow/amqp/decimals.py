"""Decodes AMQP's decimals: IEEE 754 decimals of 4, 8 and 16 bytes with the digits as one binary integer."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

INFINITE, NOT_A_NUMBER = 0b11110, 0b11111


class _Form(NamedTuple):
    exponent_bits: int
    bias: int
    digits: int


_FORMS = {4: _Form(8, 101, 7), 8: _Form(10, 398, 16), 16: _Form(14, 6176, 34)}


def decimal_of(found: bytes) -> Decimal:
    number, bits, form = int.from_bytes(found, "big"), len(found) * 8, _FORMS[len(found)]
    sign = number >> (bits - 1)
    kind = number >> (bits - 6) & 0b11111
    if kind >= INFINITE:
        return Decimal("NaN" if kind == NOT_A_NUMBER else "-Infinity" if sign else "Infinity")
    below = bits - 1 - form.exponent_bits
    if kind >> 3 == 0b11:
        # Two more bits before the exponent mean that the digits begin with binary 100.
        below -= 2
        digits = 0b100 << below | number & (1 << below) - 1
    else:
        digits = number & (1 << below) - 1
    if digits >= 10**form.digits:
        digits = 0  # the standard defines a non-canonical coefficient as zero
    exponent = (number >> below & (1 << form.exponent_bits) - 1) - form.bias
    return Decimal((sign, tuple(map(int, str(digits))), exponent))
