"""What in a group's keys of a Redis store cannot be read: found once something has failed, so that it can be named.

A script, or whoever reads its answer, finds out that a record is garbled, and not which. Here each is looked at alone.
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
    from evenflow.stores.redis.client import Link

_TEXTS = {b"lineage", b"run", b"source", b"departed"}
_END = re.compile(rb"[0-9a-f]*@[0-9]+")


class _Kind(NamedTuple):
    command: str
    """It tells all that the key holds."""
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
    "retired": _hash(lambda owner, wish: wire.state(b"", b"{}", (owner, wish))),
    "records": _hash(lambda _, text: wire.checkpoint(text)),
    "moves": _listed(wire.move),
    "actions": _listed(wire.action),
}


async def damage(link: Link, lane: str, prefix: str, group: Group) -> Corrupt | None:
    """The first record that cannot be read; None when all can."""
    for kind, key in zip(_KINDS.values(), wire.keys(prefix, group, tuple(_KINDS)), strict=True):
        try:
            told = await link.ask(lane, kind.command, key, *kind.options)
        except Misconfigured:
            continue  # a key of another type: whoever met it has said so
        for field, value in _pairs(kind, told):
            try:
                kind.read(field, value)
            except DECODE_ERRORS:
                return _corrupt(link, key, field, kind.removal)
    return None


def _pairs(kind: _Kind, told: Any) -> Iterable[tuple[Any, ...]]:
    """Field and value. The driver makes a dictionary of a hash, and the entries of a list have numbers."""
    if kind.command == "HGETALL":
        return told.items() if isinstance(told, dict) else wire.by(2, told)
    return wire.by(2, told) if kind.command == "ZRANGE" else ((b"%d" % number, one) for number, one in enumerate(told))


def _corrupt(link: Link, key: str, field: bytes, removal: str) -> Corrupt:
    shown = field.decode(errors="backslashreplace")
    command = removal.format(key=key, field=shown)
    return Corrupt(
        f"The store {link.address}: field {shown!r} of the key {key!r} cannot be read: somebody has changed it. Put the"
        f" key back from a copy, or stop all instances of the group and remove it (`{command}`)."
        " Of leases and checkpoints that counts as lost writes, and the group goes on from what its instances remember."
    )
