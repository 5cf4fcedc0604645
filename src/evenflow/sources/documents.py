"""What a document is called: its id, as it stands in the change that a feed tells, in either mode."""

from __future__ import annotations

import msgspec


def document_id(body: bytes) -> str:
    """Of a document, or of all versions of one; "" where it has none."""
    try:
        change = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ""
    if not isinstance(change, dict):
        return ""
    for document in (change, *(change.get(name) for name in ("metadata", "current", "previous"))):
        if isinstance(document, dict) and isinstance(name := document.get("id"), str):
            return name
    return ""
