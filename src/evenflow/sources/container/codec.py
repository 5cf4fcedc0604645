"""Converts changes of a container to events: the body is the JSON of Cosmos DB's feed, the key the partition key."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from evenflow.embedded.container import MISSING
from evenflow.embedded.container.change_json import all_versions, latest
from evenflow.embedded.container.feed import change_of
from evenflow.embedded.container.keys import names_in
from evenflow.model import Event
from evenflow.sources.container.positions import positions_after, to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.embedded.container.feed import FeedLines, FeedRow, Mode
    from evenflow.embedded.container.keys import KeyPart, KeyPaths
    from evenflow.sources.container.positions import FeedPosition, RangePiece, Span

KeysReader: TypeAlias = "Callable[[bytes], list[str | None]]"
"""Reads the partition keys of documents, one document a line, as text; None for a document without one."""


class ContainerCodec:
    """Converts a container's changes to events, in one mode."""

    def __init__(self, keys: KeyPaths, mode: Mode) -> None:
        self._paths = keys.paths
        self._whole = mode == "all"
        self._keys = _reader(keys)

    def events(self, place: FeedPosition, span: Span, piece: RangePiece, rows: Sequence[FeedRow]) -> list[Event]:
        """The events of a piece of the range, each with the position after it."""
        if len(place) == 1 and len({row[0] for row in rows}) == len(rows):
            return self._plain(rows)
        # Changes with the same LSN are ordered by EPK, which is how a position distinguishes them.
        ordered = sorted(rows, key=lambda row: (row[0], row[3]))
        places = positions_after(place, span, piece, [(row[0], row[3]) for row in ordered])
        return [_placed(event, after) for event, after in zip(self._plain(ordered), places, strict=True)]

    def of_lines(self, found: FeedLines) -> list[Event]:
        """The events of latest versions."""
        if not found.lsns:
            return []
        keys = self._keys(found.bodies)
        return list(map(Event, found.bodies.split(b"\n"), keys, repeat(None), found.lsns, found.times_us))

    def _plain(self, rows: Sequence[FeedRow]) -> list[Event]:
        keys = self._keys(b"\n".join([row[2] or row[7] for row in rows]))
        if self._whole:
            bodies = [all_versions(change_of(row), self._paths) for row in rows]
        else:
            bodies = [latest(row[2], row[0]) for row in rows]
        return [Event(body, key, None, row[0], row[1]) for row, body, key in zip(rows, bodies, keys, strict=True)]


def _placed(event: Event, after: FeedPosition) -> Event:
    return Event(
        event.body, event.key, None, event.sequence if len(after) == 1 else None, event.enqueued_us, to_text(after)
    )


def _reader(keys: KeyPaths) -> KeysReader:
    decode = msgspec.json.Decoder().decode_lines
    names = [names_in(path) for path in keys.paths]
    if len(names) == 1 and len(names[0]) == 1:
        return _quick_reader(names[0][0])

    def read(lines: bytes) -> list[str | None]:
        found = map(keys.of, decode(lines))
        return [_text(parts[0]) if len(parts) == 1 else _listed(parts) for parts in found]

    return read


def _quick_reader(name: str) -> KeysReader:
    """Skips all properties but one. For the usual key, a top-level property."""
    document: Any = msgspec.defstruct("Document", [("key", Any, MISSING)], rename={"key": name}, gc=False)
    decode = msgspec.json.Decoder(document).decode_lines
    return lambda lines: [key if isinstance(key := one.key, str) else _text(key) for one in decode(lines)]


def _listed(parts: tuple[KeyPart, ...]) -> str:
    return msgspec.json.encode([None if part is MISSING else part for part in parts]).decode()


def _text(part: KeyPart) -> str | None:
    """Text stays as it is; anything else becomes JSON."""
    return part if isinstance(part, str) else None if part is MISSING else msgspec.json.encode(part).decode()
