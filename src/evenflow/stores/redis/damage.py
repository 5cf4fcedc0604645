"""Finds the damaged record among a group's keys in a Redis store, after a request has failed.

A script, or the code that decodes its answer, detects that some record is damaged but not which one. This module reads
and decodes each record separately.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import Corrupt, Misconfigured
from evenflow.stores.damage import DECODE_ERRORS
from evenflow.stores.redis import codec as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from evenflow.model import Group
    from evenflow.stores.redis.client import RedisClient

_TEXTS = {b"lineage", b"run", b"source", b"departed"}
_END = re.compile(rb"[0-9a-f]*@[0-9]+")


class _Kind(NamedTuple):
    command: str
    """Reads the whole contents of the key."""
    options: tuple[str | int, ...]
    read: Callable[[bytes, bytes], object]
    removal: str


def _group_field(field: bytes, value: bytes) -> object:
    if field in _TEXTS:
        return value.decode()
    if field == b"state":
        return wire.state(b"", value, ())
    if field in (b"newest", b"floor"):
        return wire.narrow(value)
    if field.startswith(b"end:"):
        if _END.fullmatch(value) is None:
            raise ValueError(value)
        return value
    return float(value) if field == b"quiet_until" else int(value)


def _member(_: bytes, row: bytes) -> object:
    return wire.member(row), float(row.split(b"\n", 3)[2])


def _hash(read: Callable[[bytes, bytes], object]) -> _Kind:
    return _Kind("HGETALL", (), read, "HDEL {key} {field}")


def _ranked() -> _Kind:
    return _Kind("ZRANGE", (0, -1, "WITHSCORES"), lambda _, score: int(score), "ZREM {key} {field}")


def _listed(read: Callable[[bytes], object]) -> _Kind:
    return _Kind("LRANGE", (0, -1), lambda _, text: read(text), "DEL {key}")


_KINDS = {
    "group": _Kind("HGETALL", (), _group_field, "DEL {key}"),
    "members": _hash(_member),
    "marks": _ranked(),
    "heartbeats": _hash(lambda _, text: float(text)),
    "leases": _hash(lambda _, text: wire.lease(text)),
    "changes": _ranked(),
    "owned": _hash(lambda _, text: int(text)),
    "retired": _hash(lambda owner, request: wire.state(b"", b"{}", (owner, request))),
    "records": _hash(lambda _, text: wire.checkpoint(text)),
    "moves": _listed(wire.move),
    "actions": _listed(wire.action),
}


async def find_damage(client: RedisClient, lane: str, prefix: str, group: Group) -> Corrupt | None:
    """Returns an error for the first record that cannot be decoded, or None if all can."""
    for kind, key in zip(_KINDS.values(), wire.keys(prefix, group, tuple(_KINDS)), strict=True):
        try:
            entries = await client.ask(lane, kind.command, key, *kind.options)
        except Misconfigured:
            continue  # a key of another type: the failed request already reports it
        for field, value in _pairs(kind, entries):
            try:
                kind.read(field, value)
            except DECODE_ERRORS:
                return _corrupt(client, key, field, kind.removal)
    return None


def _pairs(kind: _Kind, entries: Any) -> Iterable[tuple[Any, ...]]:
    """Pairs of field and value. The driver returns a dict for a hash; list entries are numbered."""
    if kind.command == "HGETALL":
        return entries.items() if isinstance(entries, dict) else wire.by(2, entries)
    return (
        wire.by(2, entries)
        if kind.command == "ZRANGE"
        else ((b"%d" % number, one) for number, one in enumerate(entries))
    )


def _corrupt(client: RedisClient, key: str, field: bytes, removal: str) -> Corrupt:
    shown = field.decode(errors="backslashreplace")
    command = removal.format(key=key, field=shown)
    return Corrupt(
        f"The store {client.options}: field {shown!r} of the key {key!r} cannot be read: it was changed by hand."
        f" Restore the key from a backup, or stop all instances of the group and remove the entry (`{command}`)."
        " Removed leases and checkpoints count as lost writes; the group continues from what its instances remember."
    )
