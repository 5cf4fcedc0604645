"""Converts changes of a feed to events: the body is the unmodified JSON, the key is the partition key as text.

The feed does not order documents of the same LSN. Here a hash of their ids and keys orders them, so that a position
inside an LSN can be stored and found again, even if some of the documents have changed since.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from evenflow.drivers.cosmos.positions import Spot
from evenflow.errors import Misconfigured
from evenflow.model import MICROSECONDS, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.drivers.cosmos.positions import Piece, Place

_STEP = re.compile(r'/(?:"((?:[^"\\]|\\.)*)"|([^/]+))')


class _Page(Struct):
    documents: list[Raw] = field(name="Documents")


class _Document(Struct):
    lsn: int = field(name="_lsn")
    ts: int = field(name="_ts")


class _Metadata(Struct):
    lsn: int
    crts: int = 0
    id: str | UnsetType = UNSET
    partition_key: dict[str, Any] | UnsetType = field(name="partitionKey", default=UNSET)


class _Named(Struct):
    id: str | UnsetType = UNSET


class _Version(Struct):
    metadata: _Metadata
    current: Raw = Raw(b"null")
    previous: Raw = Raw(b"null")


class FeedChange(NamedTuple):
    """The parsed fields of a change, and its body."""

    lsn: int
    at_s: int
    key: str | None
    body: bytes


class CosmosFeedCodec:
    """Converts a container's changes to events, in one mode."""

    def __init__(self, paths: Sequence[str], *, whole: bool) -> None:
        self._steps = [_steps(path) for path in paths]
        self._key = self._key_reader()
        self._read = self._version if whole else self._document_reader()
        self._whole = whole

    def changes(self, page: bytes) -> list[FeedChange]:
        try:
            return [self._read(raw) for raw in _decode_page(page).documents]
        except msgspec.MsgspecError as error:
            raise Misconfigured(
                f"The answer is not a change feed of Cosmos DB: {error}. Some servers that emulate Cosmos DB have none;"
                " `evenflow container serve` has one."
            ) from error

    def events(self, changes: Sequence[FeedChange], place: Place, piece: Piece, ceiling: Spot | None) -> list[Event]:
        """The events after the piece's position and up to the ceiling, each with the position after it."""
        is_simple = ceiling is None and len(place.pieces) == 1 and piece.spot == Spot(piece.spot.lsn)
        if not is_simple or len({change.lsn for change in changes}) < len(changes):
            return self._placed(changes, place, piece, ceiling)
        if not place.has_span:
            return [Event(body, key, None, lsn, at_s * MICROSECONDS) for lsn, at_s, key, body in changes]
        end = str(place).removeprefix(str(piece.spot))
        return [Event(body, key, None, lsn, at_s * MICROSECONDS, f"{lsn}{end}") for lsn, at_s, key, body in changes]

    def _placed(self, changes: Sequence[FeedChange], place: Place, piece: Piece, ceiling: Spot | None) -> list[Event]:
        ordered = self._in_order(changes)
        found = []
        for number, (spot, change) in enumerate(ordered):
            if spot <= piece.spot or (ceiling is not None and spot > ceiling):
                continue
            is_inside = number + 1 < len(ordered) and ordered[number + 1][0].lsn == spot.lsn
            after = place.advanced(piece, spot if is_inside else Spot(spot.lsn))
            sequence = change.lsn if len(after.pieces) == 1 and not is_inside else None
            at_us = change.at_s * MICROSECONDS
            found.append(Event(change.body, change.key, None, sequence, at_us, str(after)))
        return found

    def _in_order(self, changes: Sequence[FeedChange]) -> list[tuple[Spot, FeedChange]]:
        seen: dict[tuple[int, str], int] = {}
        found = []
        for change in changes:
            mark = self._mark(change)
            times = seen[change.lsn, mark] = seen.get((change.lsn, mark), -1) + 1
            found.append((Spot(change.lsn, f"{mark}{times:04x}"), change))
        return sorted(found, key=lambda one: one[0])

    def _mark(self, change: FeedChange) -> str:
        if self._whole:
            version = _decode_version(change.body)
            name = version.metadata.id or _id_in(version.current) or _id_in(version.previous)
        else:
            name = _id_in(change.body)
        return blake2b(f"{name}\0{change.key}".encode(), digest_size=6).hexdigest()

    # --- parsing
    def _document_reader(self) -> Callable[[Raw], FeedChange]:
        """Skips all properties but the needed ones if the key is a single top-level property, the usual case."""
        if len(self._steps) != 1 or len(self._steps[0]) != 1:
            return self._document
        fields: list[Any] = [("key", Any, UNSET)]
        kind = msgspec.defstruct("_Keyed", fields, bases=(_Document,), rename={"key": self._steps[0][0]})
        decode: Callable[[Raw], Any] = msgspec.json.Decoder(kind).decode

        def read(raw: Raw) -> FeedChange:
            found = decode(raw)
            key = found.key
            return FeedChange(found.lsn, found.ts, key if type(key) is str else _text((key,)), bytes(raw))

        return read

    def _document(self, raw: Raw) -> FeedChange:
        found = _decode_document(raw)
        return FeedChange(found.lsn, found.ts, self._key(raw), bytes(raw))

    def _version(self, raw: Raw) -> FeedChange:
        found = _decode_version(raw)
        metadata = found.metadata
        key = self._key(found.current)
        if key is None and metadata.partition_key:
            key = _text(tuple(metadata.partition_key.values()))
        if key is None:
            key = self._key(found.previous)
        return FeedChange(metadata.lsn, metadata.crts, key, bytes(raw))

    def _key_reader(self) -> Callable[[Raw], str | None]:
        def read(document: Raw) -> str | None:
            whole = msgspec.json.decode(document)
            return _text(tuple(_found(whole, steps) for steps in self._steps))

        return read


_decode_page = msgspec.json.Decoder(_Page).decode
_decode_document = msgspec.json.Decoder(_Document).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_decode_named = msgspec.json.Decoder(_Named | None).decode


def _id_in(document: bytes | Raw) -> str:
    found = _decode_named(document)
    return "" if found is None or found.id is UNSET else found.id


def _steps(path: str) -> tuple[str, ...]:
    """The names in a partition key path, such as /home/id. A name with a slash in it is quoted."""
    return tuple(quoted or plain for quoted, plain in _STEP.findall(path))


def _found(document: Any, steps: tuple[str, ...]) -> Any:
    for name in steps:
        if not isinstance(document, dict) or name not in document:
            return UNSET
        document = document[name]
    return document


def _text(parts: tuple[Any, ...]) -> str | None:
    """A single text stays as it is, another value becomes JSON, several a list. None if there is no key."""
    if all(part is UNSET for part in parts):
        return None
    if len(parts) == 1:
        return parts[0] if isinstance(parts[0], str) else msgspec.json.encode(parts[0]).decode()
    return msgspec.json.encode([None if part is UNSET else part for part in parts]).decode()
