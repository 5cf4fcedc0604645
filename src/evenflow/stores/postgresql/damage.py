"""What in a group's rows of a PostgreSQL store cannot be read. Columns have their types; some hold JSON as text."""

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
"""Of each row of a group that has such a column: table, name of the row, column, and what is in it."""

_KINDS: dict[str, Any] = {
    "pauses": dict[str, Wish],
    "retired": dict[str, Wish],
    "redrives": dict[str, int],
    "facts": Member,
    "notes": dict[str, Any],
}
_REMEDIES = {
    "groups": "Set it to '{{}}', and {column} of the group are forgotten; or put it back from a copy.",
    "members": "Delete the row: its instance writes it anew with its next heartbeat, or is forgotten if it is gone.",
    "checkpoints": "Set it to '{{}}', and what was noted of the partition's failures is forgotten; or put it back from"
    " a copy. Where the partition stands is in other columns.",
}


def first_damaged(rows: Iterable[tuple[str, str, str, str]], where: str) -> Corrupt | None:
    """`where` names database and schema."""
    for table, name, column, text in rows:
        try:
            json.decode(text, type=_KINDS[column])
        except DECODE_ERRORS:
            remedy = _REMEDIES[table].format(column=column)
            return Corrupt(
                f"{where}: column {column} of the row {name!r} in the table {table} cannot be read: somebody has"
                f" changed it. {remedy}"
            )
    return None
