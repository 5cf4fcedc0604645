"""MurmurHash3 in its 128-bit variant for 64-bit machines, with which Cosmos DB hashes partition keys."""

from __future__ import annotations

_MASK = 0xFFFFFFFFFFFFFFFF
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def murmur3_128(data: bytes) -> int:
    """The hash with seed 0. Its first half is the lower half of the number."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for place in range(0, whole, 16):
        h1 ^= _scrambled(int.from_bytes(data[place : place + 8], "little"), _C1, 31, _C2)
        h1 = (((_turned(h1, 27) + h2) & _MASK) * 5 + 0x52DCE729) & _MASK
        h2 ^= _scrambled(int.from_bytes(data[place + 8 : place + 16], "little"), _C2, 33, _C1)
        h2 = (((_turned(h2, 31) + h1) & _MASK) * 5 + 0x38495AB5) & _MASK
    # Zeros scramble to zero, so a short rest needs no special case.
    h1 ^= _scrambled(int.from_bytes(data[whole : whole + 8], "little"), _C1, 31, _C2) ^ len(data)
    h2 ^= _scrambled(int.from_bytes(data[whole + 8 :], "little"), _C2, 33, _C1) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return h2 << 64 | h1


def _scrambled(block: int, first: int, transaction: int, second: int) -> int:
    return _turned(block * first & _MASK, transaction) * second & _MASK


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
