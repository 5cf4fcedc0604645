"""Short words that the tests of stores share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from evenflow.model import Group, Member
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import at, first

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.model import Cursor, Ledger
    from evenflow.ports import Store

LEASES, PROGRESS = "leases.sqlite", "progress.sqlite"
GROUP = Group("homes.example", "sensors", "alerts")


def start(instance: str) -> Member:
    return Member(id=instance, nonce=f"nonce of {instance}", ttl_s=8.0)


async def join(store: Store, instance: str = "a") -> Member:
    return known(await store.heartbeat(GROUP, start(instance), None))


async def cursor(store: Store, member: Member) -> Cursor:
    return (await store.heartbeat(GROUP, member, None)).cursor


def known(ledger: Ledger) -> Member:
    assert ledger.me is not None
    return ledger.me


async def filled(path: Path) -> tuple[Member, Cursor]:
    """A store with a member, a lease and a checkpoint, which is then closed."""
    store = SQLiteStore(path)
    me = await join(store)
    assert (await store.swap(GROUP, [first("0", me.owner)]))[0].ok
    await store.seal(GROUP, "0", 1, at(3))
    since = await cursor(store, me)
    await store.aclose()
    return me, since


def execute(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
