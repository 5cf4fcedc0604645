"""Finds damaged rows of a group in a PostgreSQL store: columns that hold JSON as text and cannot be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import json

from evenflow.errors import Corrupt
from evenflow.model import Member, Wish
from evenflow.stores.damage import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXTS = """
WITH g AS (SELECT * FROM evenflow.groups WHERE namespace = $1 AND hub = $2 AND name = $3)
SELECT 'groups', g.name, 'pauses', g.pauses FROM g
UNION ALL SELECT 'groups', g.name, 'retired', g.retired FROM g
UNION ALL SELECT 'groups', g.name, 'redrives', g.redrives FROM g
UNION ALL SELECT 'members', m.id, 'facts', m.facts FROM evenflow.members m JOIN g ON m.group_id = g.id
UNION ALL SELECT 'checkpoints', partition, 'notes', notes FROM evenflow.checkpoints
    WHERE namespace = $1 AND hub = $2 AND consumer_group = $3"""
"""Selects all JSON columns of a group: table, row, column and text."""

_KINDS: dict[str, Any] = {
    "pauses": dict[str, Wish],
    "retired": dict[str, Wish],
    "redrives": dict[str, int],
    "facts": Member,
    "notes": dict[str, Any],
}
_REMEDIES = {
    "groups": "Restore it from a backup, or set it to '{{}}', which clears {column} of the group.",
    "members": "Delete the row; its instance writes it again with its next heartbeat.",
    "checkpoints": "Restore it from a backup, or set it to '{{}}', which clears the partition's failure state. Its"
    " position is in other columns and is not affected.",
}


def first_damaged(rows: Iterable[tuple[str, str, str, str]], where: str) -> Corrupt | None:
    """`where` is the database and schema for the message."""
    for table, name, column, text in rows:
        try:
            json.decode(text, type=_KINDS[column])
        except DECODE_ERRORS:
            remedy = _REMEDIES[table].format(column=column)
            return Corrupt(
                f"{where}: column {column} of the row {name!r} in the table {table} cannot be read: it was"
                f" changed by hand. {remedy}"
            )
    return None
