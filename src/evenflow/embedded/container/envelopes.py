"""A change as JSON, in the words of Cosmos DB: what its change feed answers, and the body of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.embedded.container.keys import names_in
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from evenflow.embedded.container.feed import Change


def latest(body: bytes, lsn: int) -> bytes:
    """The document, with its LSN."""
    return b'%b,"_lsn":%d}' % (body[:-1], lsn)


def latest_in_envelope(change: Change) -> bytes:
    """The document in the form of all versions, for who asks for that form: of what was done nothing is known."""
    metadata = b'"lsn":%d,"crts":%d' % (change.lsn, change.changed_us // MICROSECONDS)
    return b'{"current":%b,"metadata":{%b}}' % (change.body or b"{}", metadata)


def every(change: Change, paths: tuple[str, ...]) -> bytes:
    """One of all versions, with what was done and what was there before."""
    kind, seconds = change.kind.encode(), change.changed_us // MICROSECONDS
    metadata = b'"lsn":%d,"crts":%d,"operationType":"%b"' % (change.lsn, seconds, kind)
    if change.previous_lsn is not None:
        metadata += b',"previousImageLSN":%d' % change.previous_lsn
    if change.expired:
        metadata += b',"timeToLiveExpired":true'
    if change.body is None:
        metadata += b"," + msgspec.json.encode(_whose(change, paths))[1:-1]
    previous = b"" if change.previous is None else b',"previous":' + change.previous
    return b'{"current":%b%b,"metadata":{%b}}' % (change.body or b"{}", previous, metadata)


def _whose(change: Change, paths: tuple[str, ...]) -> dict[str, Any]:
    """Which document was deleted."""
    before = change.previous_document or {}
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = before
        for name in names_in(path):
            value = value.get(name) if isinstance(value, dict) else None
        found[path.strip("/")] = value
    return {"id": before.get("id"), "partitionKey": found}
