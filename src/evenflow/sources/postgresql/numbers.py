"""Rows of a table as documents: what PostgreSQL keeps exactly, Python gets exactly.

JSON does not say whether a number is a `numeric` or a `double precision`, and a float could not hold the first. So
every number with a fraction is a `Decimal`, unless its column is a float. Of columns whose type is known, the value
never decides what it is: `5` of a `numeric` is a `Decimal`, `5` of a `double precision` a `float`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Domains and arrays are followed to what they are made of.
COLUMNS = """
WITH RECURSIVE kinds(name, kind) AS (
    SELECT attname, atttypid FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT name, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END
    FROM kinds JOIN pg_type ON pg_type.oid = kind WHERE typtype = 'd' OR typcategory = 'A'
)
SELECT name::text, kind = 'numeric'::regtype FROM kinds
WHERE kind IN ('numeric'::regtype, 'float4'::regtype, 'float8'::regtype)"""

_decode = msgspec.json.Decoder(float_hook=Decimal).decode


def decoder(columns: Iterable[tuple[str, bool]], *, whole: bool) -> Callable[[bytes], Any]:
    """What makes a document of a body. With each column: whether it is a `numeric`; else it is a float. With `whole`,
    a body tells all versions."""
    kinds: dict[str, Callable[[Any], object]] = {name: Decimal if is_exact else float for name, is_exact in columns}
    if not kinds:
        return _decode

    def typed(row: dict[str, Any]) -> None:
        for name, kind in kinds.items():
            value = row.get(name)
            if value is not None and value.__class__ is not kind:
                row[name] = _as(kind, value)

    def latest(body: bytes) -> Any:
        row = _decode(body)
        typed(row)
        return row

    def every(body: bytes) -> Any:
        change = _decode(body)
        for row in (change["current"], change.get("previous"), change["metadata"].get("partitionKey")):
            if row is not None:
                typed(row)
        return change

    return every if whole else latest


def _as(kind: Callable[[Any], object], value: Any) -> object:
    """NaN and infinity are texts in JSON, which both kinds understand."""
    if isinstance(value, list):
        return [None if one is None else _as(kind, one) for one in value]
    return kind(value)
