"""A store without a database: a bucket of objects on S3, Google Cloud Storage or Azure.

Everything that a group's instances agree on is in one small object, the group object. A heartbeat reads it and puts it
back, whatever the number of partitions. Takeovers, handoffs and leaves are atomic because they change one object.
Decisions come from `StoredGroup` and `rules`. Each checkpoint is an object of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import Cursor, Group, Outcome
from evenflow.stores import rules
from evenflow.stores.objects import checkpoints as progress
from evenflow.stores.objects import codec as wire
from evenflow.stores.objects.client import BucketClient
from evenflow.stores.objects.group_object import GroupObject, GroupObjectFormat, revision_of, tenths
from evenflow.stores.objects.options import POLL_S, PREFIX, TIMEOUT_S, options_from_url
from evenflow.stores.objects.versioned_object import VersionedObject
from evenflow.stores.objects.wakeups import GroupWatcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from evenflow.model import (
        Action,
        Change,
        Checkpoint,
        GroupState,
        Ledger,
        Member,
        Move,
        PartitionId,
        Steering,
    )
    from evenflow.stores.stored_group import StoredGroup

T = TypeVar("T")

FRESH_S = 0.3
"""A value that was put or read this recently is used without another read; conflicts are rare."""
OWN_KEPT = 64
REQUESTS_MOST = 16
"""Concurrent checkpoint requests of one store."""


def from_url(url: str, *, create: bool = True) -> ObjectsStore:
    """`s3://BUCKET[/PREFIX][?endpoint=...&region=...]`; also gs, az and azure."""
    return ObjectsStore(url, create=create)


class ObjectsStore:
    """The contracts of Store, Watchable, Operable and Steerable, on a bucket.

    `where` is a URL, or an obstore store (`S3Store`, `GCSStore`, `AzureStore`) with its own credentials and options.
    Nothing is opened before the first operation. With `create=False`, for read-only tools, it is an error if nothing
    was ever stored under this prefix.
    """

    def __init__(
        self,
        where: str | Any,
        *,
        prefix: str = PREFIX,
        timeout_s: float = TIMEOUT_S,
        poll_s: float = POLL_S,
        create: bool = True,
        wall: Callable[[], float] | None = None,
    ) -> None:
        given = options_from_url(where) if isinstance(where, str) else where
        self._client = BucketClient(given, prefix=prefix, timeout_s=timeout_s, poll_s=poll_s)
        self._create = create
        self._wall = wall or time.time  # noqa: TID251
        self._is_checked = False
        self._may_write = False
        self._check = asyncio.Lock()
        self._requests = asyncio.Semaphore(REQUESTS_MOST)
        self._group_objects: dict[Group, VersionedObject[GroupObject]] = {}
        self._records: dict[tuple[Group, PartitionId], VersionedObject[progress.StoredCheckpoint]] = {}
        self._acts: dict[Group, VersionedObject[progress.ActionLog]] = {}
        self._own: dict[Group, deque[int]] = {}
        """Revisions made by this client's own swaps; they cause no wake-up."""
        self._watchers: set[GroupWatcher] = set()

    def __repr__(self) -> str:
        return f"ObjectsStore({str(self._client.options)!r})"

    # --- the ledger
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        await self._check_once(writes=True)

        def decide(current: GroupObject) -> tuple[GroupObject | None, Ledger]:
            if current.stored is not None and member.nonce in current.stored.departed:
                return None, current.stored.ledger(current.cursor, None, since)
            me: Member | None = None

            def change(new: GroupObject, stored: StoredGroup) -> None:
                nonlocal me
                new.history = rules.history_after(since, new.cursor)
                me = stored.heartbeat(member, since, new.history, tenths(self._wall()) / 10)

            new = current.after(change)
            assert new.stored is not None
            new.note_mark(member, me)
            return new, new.stored.ledger(new.cursor, me, since)

        versioned = self._group_object(group)
        return await versioned.change(decide, trust=versioned.is_quiet)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        await self._check_once(writes=True)

        def decide(current: GroupObject) -> tuple[GroupObject | None, list[Outcome]]:
            outcomes: list[Outcome] = []

            def change(new: GroupObject, stored: StoredGroup) -> None:
                stored.revision += 1
                at = round(self._wall(), 3)
                outcomes.extend(stored.swap(change, new.history, at) for change in changes)

            if current.stored is None:
                return None, [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
            new = current.after(change)
            new.swapped |= {done.partition: done.lease.revision for done in outcomes if done.ok and done.lease}
            return new if any(outcome.ok for outcome in outcomes) else None, outcomes

        versioned = self._group_object(group)
        outcomes = await versioned.change(decide, trust=versioned.is_quiet or versioned.is_fresh(FRESH_S), again=False)
        self._own.setdefault(group, deque(maxlen=OWN_KEPT)).extend(
            {outcome.lease.revision for outcome in outcomes if outcome.ok and outcome.lease is not None}
        )
        return outcomes

    # --- progress
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        await self._check_once(writes=True)
        versioned, default = self._record(group, partition), wire.own(default)

        async def sealed(bounds: progress.EpochBounds, *, makes: bool) -> Checkpoint | None:
            return await progress.seal(
                versioned, bounds, partition, epoch, default, self._now(), unplanned=unplanned, makes=makes
            )

        async with self._requests:
            record = await sealed(await self._bounds(group), makes=False)
            if record is None:  # the group may have been deleted, or lost writes, since this client last looked
                record = await sealed(await self._bounds(group, fresh=True), makes=True)
            assert record is not None
            return record

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        await self._check_once(writes=True)

        async def one(checkpoint: Checkpoint, bounds: progress.EpochBounds, *, restores: bool) -> Outcome | None:
            versioned = self._record(group, checkpoint.partition)
            return await progress.commit(versioned, bounds, checkpoint, self._now(), restores=restores)

        bounds = await self._bounds(group)
        outcomes = dict(enumerate(await self._all(one(each, bounds, restores=False) for each in checkpoints)))
        if left := [number for number, outcome in outcomes.items() if outcome is None]:
            bounds = await self._bounds(group, fresh=True)
            found = await self._all(one(checkpoints[number], bounds, restores=True) for number in left)
            outcomes |= zip(left, found, strict=True)
        return [outcome for outcome in outcomes.values() if outcome is not None]

    async def aclose(self) -> None:
        self._client.close()
        watchers = list(self._watchers)
        for watcher in watchers:
            watcher.task.cancel()
        await asyncio.gather(*(watcher.task for watcher in watchers), return_exceptions=True)

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        """An object store has no notifications, so this polls (`poll_s`), more often while leases move."""
        if not self._client.options.poll_s:
            return lambda: None
        own = self._own.setdefault(group, deque(maxlen=OWN_KEPT))
        watcher = GroupWatcher(self._client, group, instance, wake, own, self._client.options.poll_s)
        self._watchers.add(watcher)
        watcher.task.add_done_callback(lambda _: self._watchers.discard(watcher))
        return watcher.end

    # --- for operators: reads
    async def groups(self) -> Sequence[Group]:
        await self._check_once()
        found = await self._all(self._group_in(folder) for folder in await self._folders())
        return sorted((group for group in found if group is not None), key=str)

    async def peek(self, group: Group) -> Ledger | None:
        current = await self._look(group)
        return current.stored.ledger(current.cursor, None, None) if current.stored is not None else None

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        floor = (await self._look(group)).epoch_floor
        paths = await self._client.paths(wire.records_path(group))
        found = await self._all(self._read_record(path) for path in paths)
        return [body.record for body in found if body is not None and body.record.epoch >= floor]

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        stored = (await self._look(group)).stored
        return [moved.move for moved in list(reversed(stored.moves))[:limit]] if stored is not None else []

    async def delete(self, group: Group) -> None:
        await self._check_once(writes=True)

        epochs = await self._epochs(group)

        def decide(current: GroupObject) -> tuple[GroupObject | None, GroupObject]:
            if current.stored is None and not epochs:
                return None, current
            deleted = current.deleted(epochs.values())
            return deleted, deleted

        deleted = await self._group_object(group).change(decide, trust=False)
        # The group may be created again meanwhile: objects above the floor, or newer ones, belong to the new group.
        records = await self._epochs(group)
        snapshots = await self._client.paths(wire.snapshots_path(group))
        await self._client.delete([path for path, epoch in records.items() if epoch < deleted.epoch_floor])
        await self._client.delete([path for path in snapshots if revision_of(path) <= deleted.revision])

    # --- for operators: changes
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        await self._check_once(writes=True)
        kept = rules.stamp_action(action, self._now())

        def decide(current: GroupObject) -> tuple[GroupObject, GroupState]:
            def change(new: GroupObject, stored: StoredGroup) -> None:
                stored.revision += 1
                stored.state = rules.steer(stored.state, steering, rules.request_of(kept))

            if current.stored is None:
                raise rules.no_such_group(group)
            new = current.after(change)
            assert new.stored is not None
            return new, new.stored.state

        state = await self._group_object(group).change(decide, trust=False, again=False)
        await self._actions(group).change(progress.keep(kept))
        return state

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        await self._check_once(writes=True)
        await self._actions(group).change(progress.keep(rules.stamp_action(action, self._now())))

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        await self._check_once()
        return [action for _, action in (await self._actions(group).look())[:limit]]

    # --- private
    def _now(self) -> float:
        return round(self._wall(), 3)

    def _group_object(self, group: Group) -> VersionedObject[GroupObject]:
        if (versioned := self._group_objects.get(group)) is None:
            format = GroupObjectFormat(self._client, group, self._wall)
            versioned = self._group_objects[group] = VersionedObject(
                self._client, wire.group_object_path(group), format
            )
        return versioned

    def _record(self, group: Group, partition: PartitionId) -> VersionedObject[progress.StoredCheckpoint]:
        if (versioned := self._records.get((group, partition))) is None:
            format = progress.CheckpointFormat(self._client, group, partition)
            versioned = self._records[group, partition] = VersionedObject(
                self._client, wire.record_path(group, partition), format
            )
        return versioned

    def _actions(self, group: Group) -> VersionedObject[progress.ActionLog]:
        if (versioned := self._acts.get(group)) is None:
            format = progress.ActionLogFormat(self._client, group)
            versioned = self._acts[group] = VersionedObject(self._client, wire.actions_path(group), format)
        return versioned

    async def _look(self, group: Group) -> GroupObject:
        await self._check_once()
        return await self._group_object(group).look()

    async def _bounds(self, group: Group, *, fresh: bool = False) -> progress.EpochBounds:
        """The limits as of this client's last heartbeat; with `fresh`, as they are now."""
        versioned = self._group_object(group)
        current = await versioned.look() if fresh or versioned.known is None else versioned.known
        return progress.EpochBounds(current.history_seen, current.epoch_floor)

    async def _epochs(self, group: Group) -> dict[str, int]:
        """Epochs of all checkpoints by path. An unreadable checkpoint counts as older than all others."""

        async def one(path: str) -> tuple[str, int]:
            try:
                body = await self._read_record(path)
            except Corrupt:
                body = None
            return path, body.record.epoch if body is not None else -1

        return dict(await self._all(one(path) for path in await self._client.paths(wire.records_path(group))))

    async def _read_record(self, path: str) -> wire.RecordBody | None:
        found = await self._client.get(path)
        return wire.unpack(found.data, wire.RecordBody, self._client.name(path)) if found is not None else None

    async def _folders(self) -> list[str]:
        """Folders of groups; the prefix may be shared with other applications."""
        return [folder for folder in await self._client.folders() if wire.is_folder(folder)]

    async def _group_in(self, folder: str) -> Group | None:
        """The group stored in this folder, or None if it was deleted. A group may consist of checkpoints only."""
        path = f"{folder}/{wire.GROUP_OBJECT}"
        found = await self._client.get(path)
        current = wire.unpack(found.data, wire.GroupObjectBody, self._client.name(path)) if found is not None else None
        if current is not None and not current.deleted:
            return current.group
        floor = current.epoch_floor if current is not None else 0
        for path in await self._client.paths(f"{folder}/{wire.RECORDS}"):
            if (body := await self._read_record(path)) is not None and body.record.epoch >= floor:
                return body.group
        return None

    async def _all(self, requests: Iterable[Awaitable[T]]) -> list[T]:
        """Runs all requests, a few at a time, and waits for all of them even if one fails."""

        async def one(request: Awaitable[T]) -> T:
            async with self._requests:
                return await request

        answers = await asyncio.gather(*map(one, requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    # --- the first request
    async def _check_once(self, *, writes: bool = False) -> None:
        if self._may_write or (self._is_checked and not writes):
            return
        async with self._check:
            if not self._is_checked and not self._create and not await self._folders():
                raise Misconfigured(
                    f"The store {self._client.options} contains no evenflow data. Check the bucket and the prefix in"
                    " its URL, and that an instance has run with it."
                )
            self._is_checked = True
            if writes and not self._may_write:
                await self._client.check_conditions()
                self._may_write = True
