"""Partition keys: extracts a document's key and maps it to an effective partition key (EPK).

EPKs are those of Cosmos DB with hash version 2, so a range covers the same keys in both. An EPK is a string of
hexadecimal digits, compared as text. The space goes from "" to "FF"; the hashes end below "40". The EPK of a
hierarchical key (kind MultiHash) concatenates the hashes of its levels, so that keys with a common prefix are adjacent.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct

from evenflow.embedded.container.murmur_hash import murmur3_128
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MissingValue(Enum):
    """The value of a property that is missing, as opposed to null."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = MissingValue.MISSING

KeyPart: TypeAlias = "str | float | bool | Literal[MissingValue.MISSING] | None"
Key: TypeAlias = "KeyPart | Sequence[KeyPart]"
"""One value; or, for a hierarchical key, a value for each level or for the first ones."""

EPK_MIN, EPK_MAX = "", "FF"
LEVELS_MAX = 3
_DOUBLE = struct.Struct("<d")


class KeyPaths(Struct, frozen=True):
    """The paths of a container's partition key."""

    paths: tuple[str, ...]

    @property
    def is_hierarchical(self) -> bool:
        return len(self.paths) > 1

    @property
    def kind(self) -> str:
        return "MultiHash" if self.is_hierarchical else "Hash"

    def of(self, document: Mapping[str, Any]) -> tuple[KeyPart, ...]:
        return tuple([_found(document, path) for path in self.paths])

    def parts(self, key: Key) -> tuple[KeyPart, ...]:
        """Check a key and return its parts."""
        is_many = isinstance(key, list | tuple)
        parts: tuple[Any, ...] = tuple(key) if is_many else (key,)  # type: ignore[arg-type]
        if not 0 < len(parts) <= len(self.paths):
            raise Misconfigured(
                f"The partition key {key!r} has {len(parts)} parts, but the container's has {len(self.paths)}: "
                f"{', '.join(self.paths)}."
            )
        for part in parts:
            if isinstance(part, list | dict):
                raise Misconfigured(f"A partition key must be text, a number, true, false or null, not {part!r}.")
        return parts

    def epk(self, parts: Sequence[KeyPart]) -> str:
        """The EPK of a complete key, or the lowest EPK of a prefix."""
        return "".join([_hashed(_encoded(part)) for part in parts])

    def within(self, parts: Sequence[KeyPart]) -> tuple[str, str]:
        """The interval of EPKs of a key or a prefix: an inclusive lower and an exclusive upper bound."""
        epk = self.epk(parts)
        # No EPK lies between a string and the same string with a zero appended.
        return epk, epk + ("FF" if len(parts) < len(self.paths) else "0")


def key_paths(given: str | Sequence[str]) -> KeyPaths:
    paths = (given,) if isinstance(given, str) else tuple(given)
    if not 0 < len(paths) <= LEVELS_MAX:
        raise Misconfigured(f"A partition key must have 1 to {LEVELS_MAX} paths, not {len(paths)}.")
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or not all(names_in(path)):
            raise Misconfigured(f"{path!r} is not a valid partition key path. Write it as in /customer or /home/id.")
    return KeyPaths(paths)


@lru_cache(256)
def names_in(path: str) -> tuple[str, ...]:
    """The property names of a path. A name that contains a slash may be quoted."""
    names, rest = [], path.removeprefix("/")
    while rest:
        if rest.startswith('"') and '"' in rest[1:]:
            name, _, rest = rest[1:].partition('"')
            rest = rest.removeprefix("/")
        else:
            name, _, rest = rest.partition("/")
        names.append(name)
    return tuple(names) or ("",)


def _found(document: Mapping[str, Any], path: str) -> KeyPart:
    value: Any = document
    for name in names_in(path):
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        raise Misconfigured(
            f"The document's partition key at {path} is {kind}. It must be text, a number, true, false or null."
        )
    part: KeyPart = value
    return part


def _encoded(part: KeyPart) -> bytes:
    if part is True:
        return b"\x03"
    if part is False:
        return b"\x02"
    if part is None:
        return b"\x01"
    if part is MISSING:
        return b"\x00"
    if isinstance(part, str):
        return b"\x08" + part.encode() + b"\xff"
    try:
        return b"\x05" + _DOUBLE.pack(float(part))
    except OverflowError:
        raise Misconfigured(f"The number {part} is too large for a partition key. Use a double or text.") from None


@lru_cache(4096)
def _hashed(encoded: bytes) -> str:
    # The two upper bits are cleared, so that every hash is below the end of the space.
    return f"{murmur3_128(encoded) & (1 << 126) - 1:032X}"
