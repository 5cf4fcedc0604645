"""Partition keys: where a document has its key, and where that key is in the space of effective partition keys (EPK).

The space is that of Cosmos DB, so that a range means the same there and here: an EPK is a text of hexadecimal digits,
by hash version 2, compared as text. The space goes from "" to "FF"; hashes themselves end below "40". A hierarchical
key (kind MultiHash) is the hashes of its levels one after the other, so that those of one prefix are side by side.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct

from evenflow.embedded.container.murmur import murmur3_128
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Missing(Enum):
    """What stands for a value that is not there, which is something else than null."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

KeyPart: TypeAlias = "str | float | bool | Literal[Missing.MISSING] | None"
Key: TypeAlias = "KeyPart | Sequence[KeyPart]"
"""One value, or for a hierarchical key one a level, the first ones at least."""

EPK_MIN, EPK_MAX = "", "FF"
LEVELS_MAX = 3
_DOUBLE = struct.Struct("<d")


class KeyPaths(Struct, frozen=True):
    """Where a container's documents have their partition key."""

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
        """A key as somebody gives it, checked."""
        is_many = isinstance(key, list | tuple)
        parts: tuple[Any, ...] = tuple(key) if is_many else (key,)  # type: ignore[arg-type]
        if not 0 < len(parts) <= len(self.paths):
            raise Misconfigured(
                f"The partition key {key!r} has {len(parts)} parts, where the container has {len(self.paths)}: "
                f"{', '.join(self.paths)}."
            )
        for part in parts:
            if isinstance(part, list | dict):
                raise Misconfigured(f"A partition key is text, a number, true, false or null, not {part!r}.")
        return parts

    def epk(self, parts: Sequence[KeyPart]) -> str:
        """The EPK of a whole key, or where those of a prefix begin."""
        return "".join([_hashed(_encoded(part)) for part in parts])

    def within(self, parts: Sequence[KeyPart]) -> tuple[str, str]:
        """The part of the space that a key, or a prefix of one, has: from here, to before there."""
        epk = self.epk(parts)
        # Nothing lies between a text and the same with a zero behind it.
        return epk, epk + ("FF" if len(parts) < len(self.paths) else "0")


def key_paths(given: str | Sequence[str]) -> KeyPaths:
    paths = (given,) if isinstance(given, str) else tuple(given)
    if not 0 < len(paths) <= LEVELS_MAX:
        raise Misconfigured(f"A partition key has one to {LEVELS_MAX} paths, not {len(paths)}.")
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or not all(names_in(path)):
            raise Misconfigured(f"{path!r} is no path of a partition key; write for instance /customer or /home/id.")
    return KeyPaths(paths)


@lru_cache(256)
def names_in(path: str) -> tuple[str, ...]:
    """The steps of a path. A name with a slash in it may be quoted."""
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
            f"The document has {kind} at {path}, where its partition key is. That is text, a number, true, false or "
            "null."
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
        raise Misconfigured(f"The number {part} is too large for a partition key.") from None


@lru_cache(4096)
def _hashed(encoded: bytes) -> str:
    # The two upper bits are not used, so that every hash is below the end of the space.
    return f"{murmur3_128(encoded) & (1 << 126) - 1:032X}"
