"""A store in this process's memory: for tests, for the simulator, and for programs with one process.

Every operation is atomic because it never awaits. Several event loops of one thread may share a store. `StoredGroup`
decides what a heartbeat or a swap changes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import json, structs

from evenflow.errors import Misconfigured
from evenflow.model import Checkpoint, Cursor, Group, Outcome
from evenflow.stores import rules
from evenflow.stores.stored_group import StoredGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import Action, Change, GroupState, Ledger, Member, Move, PartitionId, Steering


_Records: TypeAlias = "dict[PartitionId, Checkpoint]"


class MemorySnapshot(NamedTuple):
    """The contents of a MemoryStore at one moment."""

    groups: dict[Group, StoredGroup]
    records: dict[Group, _Records]
    floor: tuple[int, int]
    epoch_floors: dict[Group, int]


class _MemoryWatch(NamedTuple):
    group: Group
    instance: str
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], None]


class MemoryStore:
    """The contracts of Store, Watchable, Operable and Steerable, in memory."""

    def __init__(self, *, wall: Callable[[], float] | None = None, lineage: str | None = None) -> None:
        self._wall = wall or time.time  # noqa: TID251
        self._made = lineage or secrets.token_hex(8)
        self._terms = 0
        """How many times it has lost writes."""
        self._history = 0
        self._stored: dict[Group, StoredGroup] = {}
        self._records: dict[Group, _Records] = {}
        self._floor = 0, 0
        """The highest revision and incarnation of deleted groups. A group that is created again starts above them."""
        self._epoch_floors: dict[Group, int] = {}
        """For names of deleted groups."""
        self._actions: dict[Group, deque[Action]] = {}
        """Newest first. Actions outlive their group."""
        self._watches: list[_MemoryWatch] = []

    # --- the ledger
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        stored = self._stored.get(group)
        if stored is not None and member.nonce in stored.departed:
            return stored.ledger(self._cursor(stored), None, since)
        stored = stored or self._make(group)
        history = rules.history_after(since, self._cursor(stored))
        source = stored.state.source
        me = stored.heartbeat(member, since, history, self._wall())
        self._history = history
        if stored.state.source != source:
            self._wake(group)
        return stored.ledger(self._cursor(stored), me, since)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        stored = self._stored.get(group)
        if stored is None:
            return [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
        stored.revision += 1
        return [self._swap(group, stored, change) for change in changes]

    # --- progress
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        records = self._records.get(group, {})
        written = rules.seal(
            records.get(partition),
            partition,
            epoch,
            default,
            self._wall(),
            unplanned=unplanned,
            history=self._history,
            floor=self._epoch_floors.get(group, 0),
        )
        if written is not None:
            self._records.setdefault(group, records)[partition] = _own(written)
        return _own(records[partition])

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        return [self._commit(group, checkpoint) for checkpoint in checkpoints]

    async def aclose(self) -> None:
        """Nothing to close: other clients may keep using this store."""

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        watch = _MemoryWatch(group, instance, asyncio.get_running_loop(), wake)
        self._watches.append(watch)

        def end() -> None:
            if watch in self._watches:
                self._watches.remove(watch)

        return end

    # --- for operators: reads
    async def groups(self) -> Sequence[Group]:
        return sorted({*self._stored, *self._records}, key=str)

    async def peek(self, group: Group) -> Ledger | None:
        stored = self._stored.get(group)
        return stored.ledger(self._cursor(stored), None, None) if stored else None

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        return [_own(record) for record in self._records.get(group, {}).values()]

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        stored = self._stored.get(group)
        return [moved.move for moved in list(reversed(stored.moves))[:limit]] if stored else []

    async def delete(self, group: Group) -> None:
        records = self._records.pop(group, {})
        stored = self._stored.pop(group, None)
        epochs = [record.epoch for record in records.values()]
        epochs += [lease.epoch for lease in stored.leases.values()] if stored is not None else []
        self._epoch_floors[group] = rules.floor_after(self._epoch_floors.get(group, 0), epochs, self._history)
        if stored is not None:
            self._floor = max(self._floor[0], stored.revision), max(self._floor[1], stored.newest)
            self._wake(group)

    # --- for operators: changes
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        stored = self._stored.get(group)
        if stored is None:
            raise rules.no_such_group(group)
        kept = rules.stamp_action(action, self._wall())
        stored.state = rules.steer(stored.state, steering, rules.request_of(kept))
        stored.revision += 1
        self._keep_action(group, kept)
        self._wake(group)
        return stored.state

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        self._keep_action(group, rules.stamp_action(action, self._wall()))

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        return list(self._actions.get(group, ()))[:limit]

    def _keep_action(self, group: Group, action: Action) -> None:
        self._actions.setdefault(group, deque(maxlen=rules.ACTIONS_KEPT)).appendleft(action)

    # --- lost writes
    @property
    def history(self) -> int:
        return self._history

    def snapshot(self) -> MemorySnapshot:
        groups = {group: stored.copy() for group, stored in self._stored.items()}
        records = {group: dict(records) for group, records in self._records.items()}
        return MemorySnapshot(groups, records, self._floor, dict(self._epoch_floors))

    def restore(self, snapshot: MemorySnapshot, *, noticed: bool = True) -> None:
        """Restores a snapshot, as a failover to another server does that lost the writes since then. The history rises
        by one at once; without `noticed` it rises with the first heartbeat of an instance that knows the old server."""
        self._stored = {group: stored.copy() for group, stored in snapshot.groups.items()}
        self._records = {group: dict(records) for group, records in snapshot.records.items()}
        self._floor = snapshot.floor
        self._epoch_floors = dict(snapshot.epoch_floors)
        self._terms += 1
        self._history += noticed

    def empty(self) -> None:
        """Drops everything, as a restart of a server without persistence does."""
        self._stored, self._records, self._floor, self._epoch_floors, self._history = {}, {}, (0, 0), {}, 0
        self._terms += 1

    # --- private
    def _make(self, group: Group) -> StoredGroup:
        revision, incarnation = self._floor
        stored = self._stored[group] = StoredGroup(
            revision + 1, revision + 1, incarnation, self._history, self._epoch_floors.get(group, 0)
        )
        return stored

    def _cursor(self, stored: StoredGroup) -> Cursor:
        return Cursor(f"{self._made}.{self._terms}", self._history, stored.revision)

    def _swap(self, group: Group, stored: StoredGroup, change: Change) -> Outcome:
        before = stored.leases.get(change.partition)
        outcome = stored.swap(change, self._history, self._wall())
        if outcome.ok and (heir := rules.instance_to_wake(before, change)) is not None:
            self._wake(group, heir)
        return outcome

    def _commit(self, group: Group, checkpoint: Checkpoint) -> Outcome:
        record = self._records.get(group, {}).get(checkpoint.partition)
        floor = self._epoch_floors.get(group, 0)
        if not rules.may_commit(record, checkpoint, history=self._history, floor=floor):
            return Outcome(partition=checkpoint.partition, ok=False, why="epoch")
        if not rules.is_late_commit(record, checkpoint):
            records = self._records.setdefault(group, {})
            records[checkpoint.partition] = _own(rules.commit(record, checkpoint, self._wall()))
        return Outcome(partition=checkpoint.partition, ok=True)

    def _wake(self, group: Group, instance: str | None = None) -> None:
        """Calls each watcher on its own event loop, which may not be the running one."""
        for watch in self._watches:
            if watch.group == group and instance in (None, watch.instance) and not watch.loop.is_closed():
                watch.loop.call_soon(watch.wake)


_NAMED: dict[str, MemoryStore] = {}


def from_url(url: str, *, create: bool = True) -> MemoryStore:
    """`memory:` or `memory:NAME`. All uses of one name in this process share one store."""
    if not create and url not in _NAMED:
        raise Misconfigured(
            f"The store {url} lives in the memory of the process that runs with it; another process cannot read it."
            " Use a store that can be shared, such as sqlite:data/leases."
        )
    return _NAMED.setdefault(url, MemoryStore())


def _own(record: Checkpoint) -> Checkpoint:
    """A copy with its own notes, the only mutable part, passed through JSON as in every other store."""
    return structs.replace(record, notes=json.decode(json.encode(record.notes)))
