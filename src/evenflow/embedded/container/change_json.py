"""Encodes changes as JSON in the format of Cosmos DB's change feed, which is also the body of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.embedded.container.keys import names_in
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from evenflow.embedded.container.feed import DocumentChange


def latest(body: bytes, lsn: int) -> bytes:
    """The document, with its LSN."""
    return b'%b,"_lsn":%d}' % (body[:-1], lsn)


def latest_with_metadata(change: DocumentChange) -> bytes:
    """The latest version in the format of all versions, without the kind of change, which the feed does not record."""
    metadata = b'"lsn":%d,"crts":%d' % (change.lsn, change.changed_us // MICROSECONDS)
    return b'{"current":%b,"metadata":{%b}}' % (change.body or b"{}", metadata)


def all_versions(change: DocumentChange, paths: tuple[str, ...]) -> bytes:
    """A change of the feed of all versions, with its kind and the previous version."""
    kind, seconds = change.kind.encode(), change.changed_us // MICROSECONDS
    metadata = b'"lsn":%d,"crts":%d,"operationType":"%b"' % (change.lsn, seconds, kind)
    if change.previous_lsn is not None:
        metadata += b',"previousImageLSN":%d' % change.previous_lsn
    if change.expired:
        metadata += b',"timeToLiveExpired":true'
    if change.body is None:
        metadata += b"," + msgspec.json.encode(_deleted_identity(change, paths))[1:-1]
    previous = b"" if change.previous is None else b',"previous":' + change.previous
    return b'{"current":%b%b,"metadata":{%b}}' % (change.body or b"{}", previous, metadata)


def _deleted_identity(change: DocumentChange, paths: tuple[str, ...]) -> dict[str, Any]:
    """The id and the partition key of a deleted document."""
    before = change.previous_document or {}
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = before
        for name in names_in(path):
            value = value.get(name) if isinstance(value, dict) else None
        found[path.strip("/")] = value
    return {"id": before.get("id"), "partitionKey": found}
