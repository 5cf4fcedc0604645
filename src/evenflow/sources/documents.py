"""Finds the id of a changed document in the body of a change feed event, in either mode."""

from __future__ import annotations

import msgspec


def document_id(body: bytes) -> str:
    """The id in a document, or in a change of the mode "all versions and deletes"; "" if there is none."""
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
