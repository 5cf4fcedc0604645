"""Imports checkpoints from elsewhere into a group: shows them, asks for confirmation, records the action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.cli.confirm import confirm, say_safely
from evenflow.cli.output import columns, print_json, printable, say
from evenflow.errors import Misconfigured
from evenflow.model import Group
from evenflow.operate.inspect.survey import conform, operable
from evenflow.operate.steer.importing import HostLease, PartitionImport, import_checkpoints, plan_import
from evenflow.runtime.clock import system_clock
from evenflow.stores.memory import MemoryStore
from evenflow.text import count_of
from evenflow.urls import open_source, open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.cli.selection import GroupSelection
    from evenflow.operate.steer import Operator
    from evenflow.ports import Source, Store

HEADERS = ("PARTITION", "OLD-OWNER", "FROM", "TO", "LAG-AFTER", "NOTE")
FILES = "sqlite:"


async def import_leases(
    chosen: GroupSelection,
    find: Callable[[Source, Group], Awaitable[Sequence[HostLease]]],
    partitions: Sequence[str] | None,
    by: Operator,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """`find` gets the source and the target group, and returns the leases to import."""
    assert chosen.source is not None
    assert chosen.group is not None
    assert chosen.store is not None
    source = open_source(chosen.source)
    store = open_store(chosen.store) if not dry_run else await _open_for_dry_run(chosen.store)
    try:
        identity = await source.identity()
        group = Group(identity.namespace, identity.hub, chosen.group)
        await conform(store, group, source)
        found = [one for one in await find(source, group) if partitions is None or one.partition in partitions]
        importings = await plan_import(store, source, group, found)
        _show(importings, as_json=as_json)
        if dry_run:
            say(f"would write {_count(importings)} to {group}; nothing was changed")
            done: Sequence[PartitionImport] = importings
        else:
            confirm([f"This writes {_count(importings)} to {group}."], yes=yes)
            done = await _carry_out(store, source, group, importings, by)
    finally:
        await store.aclose()
        await source.aclose()
    if as_json:
        print_json({"group": str(group), "dry_run": dry_run, "partitions": [_facts(one) for one in done]})


async def _open_for_dry_run(url: str) -> Store:
    """The store, without creating it; an empty one in memory if its files do not exist yet."""
    store = open_store(url, create=False)
    try:
        await operable(store).groups()
        return store
    except Misconfigured:
        await store.aclose()
        if not url.startswith(FILES):
            raise
        return MemoryStore()


async def _carry_out(
    store: Store, source: Source, group: Group, importings: Sequence[PartitionImport], by: Operator
) -> Sequence[PartitionImport]:
    done = await import_checkpoints(store, source, group, importings, by, system_clock(), say_safely)
    say(f"wrote {count_of(len(done), 'checkpoint')} to {group}")
    return [one for one in importings if one.partition in done]


def _count(importings: Sequence[PartitionImport]) -> str:
    return count_of(sum(one.after is not None for one in importings), "checkpoint")


# --- output
def _show(importings: Sequence[PartitionImport], *, as_json: bool) -> None:
    rows = [
        (one.partition, printable(one.owner) or None, _offset(one.before), _offset(one.after), one.lag_after, one.note)
        for one in importings
    ]
    text = "\n".join(columns(HEADERS, rows, HEADERS[2:5]))
    if as_json:
        say(text)
    else:
        print(text, flush=True)


def _offset(position: Any) -> str | None:
    return position.offset if position is not None else None


def _facts(one: PartitionImport) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "old_owner": one.owner or None,
        "from": _offset(one.before),
        "to": _offset(one.after),
        "lag_after": one.lag_after,
        "note": one.note or None,
    }
