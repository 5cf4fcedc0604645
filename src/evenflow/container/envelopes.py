"""A change as JSON, in the words of Cosmos DB: what its change feed answers, and the body of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.container.keys import names_in
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from evenflow.container.feed import Change


def latest(change: Change) -> bytes:
    """The document, with its LSN."""
    assert change.body is not None
    return change.body[:-1] + b',"_lsn":%d}' % change.lsn


def every(change: Change, paths: tuple[str, ...]) -> bytes:
    """One of all versions, with what was done and what was there before."""
    metadata: dict[str, Any] = {
        "lsn": change.lsn,
        "crts": change.changed_us // MICROSECONDS,
        "operationType": change.kind,
    }
    if change.previous_lsn is not None:
        metadata["previousImageLSN"] = change.previous_lsn
    if change.expired:
        metadata["timeToLiveExpired"] = True
    if change.body is None:
        metadata |= _whose(change, paths)
    previous = b"" if change.previous is None else b',"previous":' + change.previous
    return b'{"current":%s%s,"metadata":%s}' % (change.body or b"{}", previous, msgspec.json.encode(metadata))


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
