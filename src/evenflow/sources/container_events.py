"""Changes of a container as events: the body is the JSON that Cosmos DB's feed has, the key is the partition key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from evenflow.container import MISSING
from evenflow.container.envelopes import every, latest
from evenflow.container.feed import change_of
from evenflow.container.keys import names_in
from evenflow.model import Event
from evenflow.sources.container_places import places_after, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.container.feed import Mode, Row
    from evenflow.container.keys import KeyPart, KeyPaths
    from evenflow.sources.container_places import Piece, Place, Span

KeyReader: TypeAlias = "Callable[[bytes], str | None]"
"""The partition key of a document as text; None where it has none."""


class Teller:
    """Makes events of a container's changes, in one mode."""

    def __init__(self, keys: KeyPaths, mode: Mode) -> None:
        self._paths = keys.paths
        self._whole = mode == "all"
        self._key = _quick_reader(keys) or _reader(keys)

    def events(self, place: Place, span: Span, piece: Piece, rows: Sequence[Row]) -> list[Event]:
        """Events of a piece of the range; each has the place after it."""
        if len(place) == 1 and len({row[0] for row in rows}) == len(rows):
            return self._plain(rows)
        # Those of one LSN by their EPKs, which is how a place tells them apart.
        ordered = sorted(rows, key=lambda row: (row[0], row[3]))
        places = places_after(place, span, piece, [(row[0], row[3]) for row in ordered])
        return [_placed(event, after) for event, after in zip(self._plain(ordered), places, strict=True)]

    def _plain(self, rows: Sequence[Row]) -> list[Event]:
        key = self._key
        if self._whole:
            return [
                Event(every(change_of(row), self._paths), key(row[2] or row[7]), None, row[0], row[1]) for row in rows
            ]
        return [Event(latest(row[2], row[0]), key(row[2]), None, row[0], row[1]) for row in rows]


def _placed(event: Event, after: Place) -> Event:
    return Event(
        event.body, event.key, None, event.sequence if len(after) == 1 else None, event.enqueued_us, text_of(after)
    )


def _reader(keys: KeyPaths) -> KeyReader:
    def read(body: bytes) -> str | None:
        parts = keys.of(msgspec.json.decode(body))
        if len(parts) > 1:
            return msgspec.json.encode([None if part is MISSING else part for part in parts]).decode()
        return _text(parts[0])

    return read


def _quick_reader(keys: KeyPaths) -> KeyReader | None:
    """Passes over all properties but one; for the usual key, which is one at the top."""
    names = [names_in(path) for path in keys.paths]
    if len(names) != 1 or len(names[0]) != 1:
        return None
    document = msgspec.defstruct("Document", [("key", Any, MISSING)], rename={"key": names[0][0]})
    decode = msgspec.json.Decoder(document).decode

    def read(body: bytes) -> str | None:
        found: Any = decode(body).key  # type: ignore[attr-defined]
        return found if isinstance(found, str) else _text(found)

    return read


def _text(part: KeyPart) -> str | None:
    """As it is; what is no text is JSON."""
    return part if isinstance(part, str) else None if part is MISSING else msgspec.json.encode(part).decode()
