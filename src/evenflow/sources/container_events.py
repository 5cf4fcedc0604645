"""Changes of a container as events: the body is the JSON that Cosmos DB's feed has, the key is the partition key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.container import MISSING
from evenflow.container.envelopes import every, latest
from evenflow.container.keys import names_in
from evenflow.model import Event
from evenflow.sources.container_places import has_twins, in_order, places_after, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.container import Change
    from evenflow.container.feed import Mode
    from evenflow.container.keys import KeyPart, KeyPaths
    from evenflow.sources.container_places import Piece, Place, Span


class Teller:
    """Makes events of a container's changes, in one mode."""

    def __init__(self, keys: KeyPaths, mode: Mode) -> None:
        self._keys = keys
        self._whole = mode == "all"
        self._parts = _quick_parts(keys) or self._any_parts

    def events(self, place: Place, span: Span, piece: Piece, changes: Sequence[Change]) -> list[Event]:
        """Events of a piece of the range; each has the place after it."""
        if len(place) == 1 and not has_twins(changes):
            return [self._event(change, change.lsn, None) for change in changes]
        ordered = in_order(changes)
        return [
            self._event(change, change.lsn if len(after) == 1 else None, text_of(after))
            for change, after in zip(ordered, places_after(place, span, piece, ordered), strict=True)
        ]

    def _event(self, change: Change, sequence: int | None, offset: str | None) -> Event:
        body = every(change, self._keys.paths) if self._whole else latest(change)
        return Event(body, self._key(change), None, sequence, change.changed_us, offset)

    def _key(self, change: Change) -> str | None:
        """The partition key as text; None where the document has none. One that is no text is JSON."""
        body = change.body if change.body is not None else change.previous
        parts = self._parts(body or b"{}")
        if len(parts) > 1:
            return msgspec.json.encode([None if part is MISSING else part for part in parts]).decode()
        part = parts[0]
        return part if isinstance(part, str) else None if part is MISSING else msgspec.json.encode(part).decode()

    def _any_parts(self, body: bytes) -> tuple[KeyPart, ...]:
        return self._keys.of(msgspec.json.decode(body))


def _quick_parts(keys: KeyPaths) -> Callable[[bytes], tuple[KeyPart, ...]] | None:
    """Reads one property and passes over all others; for the usual key, which is one at the top."""
    names = [names_in(path) for path in keys.paths]
    if len(names) != 1 or len(names[0]) != 1:
        return None
    document = msgspec.defstruct("Document", [("key", Any, MISSING)], rename={"key": names[0][0]})
    decode = msgspec.json.Decoder(document).decode

    def parts(body: bytes) -> tuple[KeyPart, ...]:
        found: Any = decode(body)
        return (found.key,)

    return parts
