"""A store in this process's memory: for tests, for the simulated world, and for programs of one process.

Every operation is atomic because nothing in it awaits. Several event loops of one thread may share a store. What is
kept are frozen records in dictionaries whose order is that of their last change, so that what changed lately (and who
has stood still) is found without looking at the rest.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import json, structs

from evenflow.model import Checkpoint, Cursor, Group, GroupState, Ledger, Outcome
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from evenflow.model import Action, Change, Lease, Member, Move, Owner, PartitionId, Steering


@dataclass(slots=True)
class _Room:
    """One group."""

    born: int
    revision: int
    newest: int
    """The highest incarnation given or seen."""
    roster_revision: int = 0
    """When somebody last joined, left, or changed anything but the mark."""
    state: GroupState = field(default_factory=GroupState)
    members: dict[str, Member] = field(default_factory=dict)
    """The longest silent first."""
    leases: dict[PartitionId, Lease] = field(default_factory=dict)
    """The latest changed last."""
    moves: deque[Move] = field(default_factory=lambda: deque(maxlen=rules.MOVES_KEPT))

    def copy(self) -> _Room:
        return replace(self, members=dict(self.members), leases=dict(self.leases), moves=self.moves.copy())

    def mark_of(self, owner: Owner) -> int | None:
        member = self.members.get(owner.id)
        return member.mark if member and member.incarnation == owner.incarnation else None

    def is_named(self, owner: Owner) -> bool:
        return any(lease.owner == owner for lease in self.leases.values())


_Records: TypeAlias = "dict[PartitionId, Checkpoint]"


class Snapshot(NamedTuple):
    """What a MemoryStore held at one moment."""

    rooms: dict[Group, _Room]
    records: dict[Group, _Records]
    floor: tuple[int, int]


class _Watch(NamedTuple):
    group: Group
    instance: str
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], None]


class MemoryStore:
    """The contracts of Store, Watchable, Operable and Steerable, in memory."""

    def __init__(self, *, wall: Callable[[], float] | None = None, lineage: str | None = None) -> None:
        self._wall = wall or time.time  # noqa: TID251
        self._lineage = lineage or secrets.token_hex(8)
        self._history = 0
        self._rooms: dict[Group, _Room] = {}
        self._records: dict[Group, _Records] = {}
        self._floor = 0, 0
        """The highest revision and incarnation of deleted groups: a group that is made again starts above them."""
        self._actions: dict[Group, deque[Action]] = {}
        """The newest first. They outlive their group."""
        self._watches: list[_Watch] = []

    # --- the ledger
    async def beat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        room = self._rooms.get(group) or self._make(group)
        self._history = rules.history_after(since, self._cursor(room))
        mine = room.members.get(member.id)
        incarnation = rules.admitted(mine, member, newest=room.newest, history=self._history)
        room.revision += 1
        room.newest = max(room.newest, incarnation)
        me = structs.replace(member, incarnation=incarnation, mark=room.revision, beat_at=self._wall(), leaving=False)
        stays = not member.leaving or room.is_named(me.owner)
        self._write_row(room, me, stays=stays)
        self._forget_silent(room, since)
        if room.state.retired and room.roster_revision == room.revision:
            room.state = rules.pruned(room.state, {str(row.owner) for row in room.members.values()})
        self._adopt_source(group, room, me.source)
        return self._ledger(room, me if stays else None, since)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        room = self._rooms.get(group)
        if room is None:
            return [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
        room.revision += 1
        return [self._swap(group, room, change) for change in changes]

    # --- progress
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        records = self._records.get(group, {})
        written = rules.sealed(records.get(partition), partition, epoch, default, self._wall(), unplanned=unplanned)
        if written is not None:
            self._records.setdefault(group, records)[partition] = _own(written)
        return _own(records[partition])

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        records = self._records.get(group, {})
        return [self._commit(records, checkpoint) for checkpoint in checkpoints]

    async def aclose(self) -> None:
        """Nothing to close: another client may go on with what is in here."""

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        watch = _Watch(group, instance, asyncio.get_running_loop(), wake)
        self._watches.append(watch)

        def end() -> None:
            if watch in self._watches:
                self._watches.remove(watch)

        return end

    # --- for people
    async def groups(self) -> Sequence[Group]:
        return sorted({*self._rooms, *self._records}, key=str)

    async def peek(self, group: Group) -> Ledger | None:
        room = self._rooms.get(group)
        return self._ledger(room, None, None) if room else None

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        return [_own(record) for record in self._records.get(group, {}).values()]

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        room = self._rooms.get(group)
        return list(reversed(room.moves))[:limit] if room else []

    async def delete(self, group: Group) -> None:
        self._records.pop(group, None)
        room = self._rooms.pop(group, None)
        if room is not None:
            self._floor = max(self._floor[0], room.revision), max(self._floor[1], room.newest)
            self._wake(group)

    # --- for people who steer
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        room = self._rooms.get(group)
        if room is None:
            raise rules.no_such_group(group)
        kept = rules.recorded(action, self._wall())
        room.state = rules.steered(room.state, steering, rules.wish_of(kept))
        room.revision += 1
        self._keep_action(group, kept)
        self._wake(group)
        return room.state

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        self._keep_action(group, rules.recorded(action, self._wall()))

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        return list(self._actions.get(group, ()))[:limit]

    def _keep_action(self, group: Group, action: Action) -> None:
        self._actions.setdefault(group, deque(maxlen=rules.ACTIONS_KEPT)).appendleft(action)

    # --- lost writes
    def snapshot(self) -> Snapshot:
        rooms = {group: room.copy() for group, room in self._rooms.items()}
        return Snapshot(rooms, {group: dict(records) for group, records in self._records.items()}, self._floor)

    def restore(self, snapshot: Snapshot) -> None:
        """Be what it was then, as after a failover that lost the writes since; the history rises by one."""
        self._rooms = {group: room.copy() for group, room in snapshot.rooms.items()}
        self._records = {group: dict(records) for group, records in snapshot.records.items()}
        self._floor = snapshot.floor
        self._history += 1

    # --- inside
    def _make(self, group: Group) -> _Room:
        revision, incarnation = self._floor
        room = self._rooms[group] = _Room(revision + 1, revision + 1, incarnation)
        return room

    def _cursor(self, room: _Room) -> Cursor:
        return Cursor(self._lineage, self._history, room.revision)

    def _write_row(self, room: _Room, me: Member, *, stays: bool) -> None:
        old = room.members.get(me.id)
        if stays:
            room.members.pop(me.id, None)
            room.members[me.id] = structs.replace(me, load=me.load and dict(me.load))
            is_news = old is None or structs.replace(old, mark=me.mark, beat_at=me.beat_at) != me
        else:
            is_news = old is not None and old.incarnation == me.incarnation
            if is_news:
                del room.members[me.id]
        if is_news:
            room.roster_revision = room.revision

    def _forget_silent(self, room: _Room, since: Cursor | None) -> None:
        """Only those are looked at who stood still since the cursor: mostly nobody."""
        if since is None:
            return
        limit_at = self._wall() - rules.FORGOTTEN_AFTER_S
        silent = [member for member in _stood_still(room, since.revision) if member.beat_at < limit_at]
        for member in silent:
            if not room.is_named(member.owner):
                del room.members[member.id]
                room.roster_revision = room.revision

    def _adopt_source(self, group: Group, room: _Room, source: str) -> None:
        if source and not room.state.source:
            room.state = structs.replace(room.state, source=source)
            self._wake(group)

    def _ledger(self, room: _Room, me: Member | None, since: Cursor | None) -> Ledger:
        now = self._cursor(room)
        whole = since is None or not rules.fits(since, now, room.born)
        seen = 0 if whole or since is None else since.revision
        roster = whole or room.roster_revision > seen
        rows = room.members.values() if roster else _stood_still(room, seen)
        return Ledger(
            cursor=now,
            me=me,
            whole=whole,
            leases=tuple(room.leases.values() if whole else _changed_after(room, seen)),
            roster=roster,
            members=tuple(rows),
            state=room.state,
        )

    def _swap(self, group: Group, room: _Room, change: Change) -> Outcome:
        before = room.leases.get(change.partition)
        if why := rules.refusal(change, before, self._history, room.mark_of):
            return Outcome(partition=change.partition, ok=False, why=why, lease=before)
        after = rules.changed(change, room.revision, self._wall())
        room.leases.pop(change.partition, None)
        room.leases[change.partition] = after
        if (move := rules.move(before, after)) is not None:
            room.moves.append(move)
        if (heir := rules.handed_to(before, change)) is not None:
            self._wake(group, heir)
        return Outcome(partition=change.partition, ok=True, lease=after)

    def _commit(self, records: _Records, checkpoint: Checkpoint) -> Outcome:
        record = records.get(checkpoint.partition)
        if record is None or not rules.may_commit(record, checkpoint):
            return Outcome(partition=checkpoint.partition, ok=False, why="epoch")
        if not rules.overtaken(record, checkpoint):
            records[checkpoint.partition] = _own(rules.committed(record, checkpoint, self._wall()))
        return Outcome(partition=checkpoint.partition, ok=True)

    def _wake(self, group: Group, instance: str | None = None) -> None:
        """On each watcher's own loop, which need not be the one that runs now."""
        for watch in self._watches:
            if watch.group == group and instance in (None, watch.instance) and not watch.loop.is_closed():
                watch.loop.call_soon(watch.wake)


_NAMED: dict[str, MemoryStore] = {}


def from_url(url: str, *, create: bool = True) -> MemoryStore:
    """`memory:` or `memory:NAME`: all who name the same in this process share it."""
    return _NAMED.setdefault(url, MemoryStore())


def _stood_still(room: _Room, revision: int) -> Iterator[Member]:
    for member in room.members.values():
        if member.mark > revision:
            return
        yield member


def _changed_after(room: _Room, revision: int) -> Iterable[Lease]:
    for lease in reversed(room.leases.values()):
        if lease.revision <= revision:
            return
        yield lease


def _own(record: Checkpoint) -> Checkpoint:
    """Notes are the one part of a record that can be changed in place; they are what JSON would keep, as elsewhere."""
    return structs.replace(record, notes=json.decode(json.encode(record.notes)))
