"""A hub and a group, made by function calls, for commands that inspect and change a group without an instance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from evenflow.embedded.hub import Hub
from evenflow.model import Change, Checkpoint, DeadLetter, Event, Group, Member, Position
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.urls import open_dead_letters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evenflow.core.notes import Notes
    from evenflow.model import Ledger

PARTITIONS, EVENTS = 4, 10
TTL_S = 600.0
"""So long that no instance becomes silent during a test."""
PROFILES = """
default = "alerts"

[profiles.alerts]
source = "hub:homes"
store = "sqlite:leases"
group = "alerts"
"""
GROUP = Group("local", "homes", "alerts")


def make_hub(folder: Path, events: int = EVENTS) -> Path:
    """The folder with a hub, so many events in each partition, and a profile for the commands."""
    (folder / "evenflow.toml").write_text(PROFILES)
    with Hub.create(folder / "homes", PARTITIONS) as hub:
        for partition in range(PARTITIONS):
            asyncio.run(hub.send(["x"] * events, partition=partition))
    return folder


async def leave_records(
    folder: Path,
    notes: Notes | None = None,
    *,
    group: Group = GROUP,
    members: Sequence[str] = ("ada",),
    owned: bool = True,
    load: dict[str, float] | None = None,
    handled: int = -1,
) -> None:
    """A group with checkpoints after `handled` of each partition. Notes are those of partition 1.

    Owned: each member has its share, and heartbeats. Otherwise all have released it, and left.
    """
    store = SQLiteStore(folder / "leases")
    try:
        joined = [await _joined(store, group, name, load) for name in members]
        for number in range(PARTITIONS):
            await _claim(store, group, str(number), joined[number * len(joined) // PARTITIONS])
            record = Checkpoint(partition=str(number), epoch=1, position=_position(handled), ordinal=handled + 1)
            await store.seal(group, record.partition, 1, record)
        if notes is not None:
            noted = Checkpoint(
                partition="1", epoch=1, position=_position(handled), ordinal=handled + 1, notes=notes.as_dict()
            )
            await store.commit(group, [noted])
        if not owned:
            await _leave(store, group, joined)
    finally:
        await store.aclose()


def _position(sequence: int) -> Position:
    return Position(str(sequence), sequence)


async def _joined(store: SQLiteStore, group: Group, name: str, load: dict[str, float] | None) -> Member:
    ledger = await store.heartbeat(group, Member(id=name, nonce=name, ttl_s=TTL_S, load=load), None)
    assert ledger.me is not None
    return ledger.me


async def _claim(store: SQLiteStore, group: Group, name: str, member: Member) -> None:
    change = Change(partition=name, revision=0, history=0, owner=member.owner, epoch=1, ttl_s=TTL_S, reason="claimed")
    (outcome,) = await store.swap(group, [change])
    assert outcome.ok


async def _leave(store: SQLiteStore, group: Group, members: Sequence[Member]) -> None:
    ledger = await store.peek(group)
    assert ledger is not None
    await store.swap(group, [_release(ledger, number) for number in range(PARTITIONS)])
    for member in members:
        await store.heartbeat(group, msgspec.structs.replace(member, leaving=True), None)


def _release(ledger: Ledger, number: int) -> Change:
    lease = ledger.leases[number]
    return Change(partition=lease.partition, revision=lease.revision, history=0, owner=None, epoch=2)


async def file_dead_letters(folder: Path) -> None:
    """Two dead letters of partition 1."""
    dead_letters = open_dead_letters(f"jsonl:{folder / 'dead'}")
    filed = [
        DeadLetter(partition="1", event=Event(b"x", sequence=number), reason="poison", error="E") for number in (0, 1)
    ]
    await dead_letters.file(GROUP, "1", filed)
    await dead_letters.aclose()
