"""Decodes rows without losing precision.

JSON does not distinguish `numeric` from `double precision`, and a float cannot hold the first. So every number with a
fraction becomes a `Decimal`, unless its column is a float. For columns of a known type, the type decides and not the
value: `5` in a `numeric` column becomes a `Decimal`, `5` in a `double precision` column a `float`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Resolves domains and arrays to their base types.
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
    """A function that decodes a body. Each column comes with whether it is `numeric`; otherwise it is a float. With
    `whole`, a body has the format for all versions."""
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
    """NaN and infinity are text in JSON, which both types accept."""
    if isinstance(value, list):
        return [None if one is None else _as(kind, one) for one in value]
    return kind(value)
