"""The store for those who want no database: a bucket of objects on S3, or a server like it. What each port method does.

All that the instances of a group agree on is in one small object, its heart: a heartbeat reads it and puts it back,
whatever the number of partitions, and a takeover, a pass or a leave is one step because it is one object. What is
decided follows `room` and `rules`. Checkpoints are objects of their own.
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
from evenflow.stores.objects.cell import Cell
from evenflow.stores.objects.client import Link
from evenflow.stores.objects.group_record import Heart, HeartShape, revision_of, tenths
from evenflow.stores.objects.options import POLL_S, PREFIX, TIMEOUT_S, address
from evenflow.stores.objects.wakeups import Watcher

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
"""What was put or read so lately is decided on without another look: mostly nobody was faster."""
OWN_KEPT = 64
REQUESTS_MOST = 16
"""At once, of one store, for checkpoints."""


def from_url(url: str, *, create: bool = True) -> ObjectsStore:
    """`s3://BUCKET[/PREFIX][?endpoint=...&region=...]`; also gs, az and azure."""
    return ObjectsStore(url, create=create)


class ObjectsStore:
    """The contracts of Store, Watchable, Operable and Steerable, on a bucket.

    `where` is a URL, or a store of obstore's own (`S3Store`, `GCSStore`, `AzureStore`) with whatever credentials and
    options it was made with. Nothing is opened before the first operation. With `create=False` a bucket in which
    nothing was ever stored under this prefix is an error, for tools that only look.
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
        there = address(where) if isinstance(where, str) else where
        self._link = Link(there, prefix=prefix, timeout_s=timeout_s, poll_s=poll_s)
        self._create = create
        self._wall = wall or time.time  # noqa: TID251
        self._is_checked = False
        self._may_write = False
        self._check = asyncio.Lock()
        self._requests = asyncio.Semaphore(REQUESTS_MOST)
        self._hearts: dict[Group, Cell[Heart]] = {}
        self._records: dict[tuple[Group, PartitionId], Cell[progress.Kept]] = {}
        self._acts: dict[Group, Cell[progress.Actions]] = {}
        self._own: dict[Group, deque[int]] = {}
        """Revisions that this client's own swaps made: nobody need be woken for those."""
        self._watchers: set[Watcher] = set()

    def __repr__(self) -> str:
        return f"ObjectsStore({str(self._link.address)!r})"

    # --- the ledger
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        await self._check_once(writes=True)

        def decide(heart: Heart) -> tuple[Heart | None, Ledger]:
            if heart.room is not None and member.nonce in heart.room.departed:
                return None, heart.room.ledger(heart.cursor, None, since)
            me: Member | None = None

            def change(new: Heart, room: StoredGroup) -> None:
                nonlocal me
                new.history = rules.history_after(since, new.cursor)
                me = room.heartbeat(member, since, new.history, tenths(self._wall()) / 10)

            new = heart.after(change)
            assert new.room is not None
            new.note_mark(member, me)
            return new, new.room.ledger(new.cursor, me, since)

        cell = self._heart(group)
        return await cell.change(decide, trust=cell.is_quiet)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        await self._check_once(writes=True)

        def decide(heart: Heart) -> tuple[Heart | None, list[Outcome]]:
            outcomes: list[Outcome] = []

            def change(new: Heart, room: StoredGroup) -> None:
                room.revision += 1
                at = round(self._wall(), 3)
                outcomes.extend(room.swap(change, new.history, at) for change in changes)

            if heart.room is None:
                return None, [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
            new = heart.after(change)
            new.swapped |= {done.partition: done.lease.revision for done in outcomes if done.ok and done.lease}
            return new if any(outcome.ok for outcome in outcomes) else None, outcomes

        cell = self._heart(group)
        outcomes = await cell.change(decide, trust=cell.is_quiet or cell.is_fresh(FRESH_S), again=False)
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
        cell, default = self._record(group, partition), wire.own(default)

        async def sealed(bounds: progress.Bounds, *, makes: bool) -> Checkpoint | None:
            return await progress.seal(
                cell, bounds, partition, epoch, default, self._now(), unplanned=unplanned, makes=makes
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

        async def one(checkpoint: Checkpoint, bounds: progress.Bounds, *, restores: bool) -> Outcome | None:
            cell = self._record(group, checkpoint.partition)
            return await progress.commit(cell, bounds, checkpoint, self._now(), restores=restores)

        bounds = await self._bounds(group)
        outcomes = dict(enumerate(await self._all(one(wish, bounds, restores=False) for wish in checkpoints)))
        if left := [number for number, outcome in outcomes.items() if outcome is None]:
            bounds = await self._bounds(group, fresh=True)
            found = await self._all(one(checkpoints[number], bounds, restores=True) for number in left)
            outcomes |= zip(left, found, strict=True)
        return [outcome for outcome in outcomes.values() if outcome is not None]

    async def aclose(self) -> None:
        self._link.close()
        watchers = list(self._watchers)
        for watcher in watchers:
            watcher.task.cancel()
        await asyncio.gather(*(watcher.task for watcher in watchers), return_exceptions=True)

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Nobody can call here: it looks now and then (`poll_s`), oftener while leases move."""
        if not self._link.address.poll_s:
            return lambda: None
        own = self._own.setdefault(group, deque(maxlen=OWN_KEPT))
        watcher = Watcher(self._link, group, instance, wake, own, self._link.address.poll_s)
        self._watchers.add(watcher)
        watcher.task.add_done_callback(lambda _: self._watchers.discard(watcher))
        return watcher.end

    # --- for people
    async def groups(self) -> Sequence[Group]:
        await self._check_once()
        found = await self._all(self._group_in(folder) for folder in await self._folders())
        return sorted((group for group in found if group is not None), key=str)

    async def peek(self, group: Group) -> Ledger | None:
        heart = await self._look(group)
        return heart.room.ledger(heart.cursor, None, None) if heart.room is not None else None

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        floor = (await self._look(group)).epoch_floor
        paths = await self._link.paths(wire.records_path(group))
        found = await self._all(self._read_record(path) for path in paths)
        return [body.record for body in found if body is not None and body.record.epoch >= floor]

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        room = (await self._look(group)).room
        return [moved.move for moved in list(reversed(room.moves))[:limit]] if room is not None else []

    async def delete(self, group: Group) -> None:
        await self._check_once(writes=True)

        epochs = await self._epochs(group)

        def decide(heart: Heart) -> tuple[Heart | None, Heart]:
            if heart.room is None and not epochs:
                return None, heart
            deleted = heart.deleted(epochs.values())
            return deleted, deleted

        deleted = await self._heart(group).change(decide, trust=False)
        # Somebody may make the group again meanwhile: what is above the floor, or newer, is not of the deleted one.
        records = await self._epochs(group)
        snapshots = await self._link.paths(wire.snapshots_path(group))
        await self._link.delete([path for path, epoch in records.items() if epoch < deleted.epoch_floor])
        await self._link.delete([path for path in snapshots if revision_of(path) <= deleted.revision])

    # --- for people who steer
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        await self._check_once(writes=True)
        kept = rules.stamp_action(action, self._now())

        def decide(heart: Heart) -> tuple[Heart, GroupState]:
            def change(new: Heart, room: StoredGroup) -> None:
                room.revision += 1
                room.state = rules.steer(room.state, steering, rules.request_of(kept))

            if heart.room is None:
                raise rules.no_such_group(group)
            new = heart.after(change)
            assert new.room is not None
            return new, new.room.state

        state = await self._heart(group).change(decide, trust=False, again=False)
        await self._actions(group).change(progress.keep(kept))
        return state

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        await self._check_once(writes=True)
        await self._actions(group).change(progress.keep(rules.stamp_action(action, self._now())))

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        await self._check_once()
        return [action for _, action in (await self._actions(group).look())[:limit]]

    # --- inside
    def _now(self) -> float:
        return round(self._wall(), 3)

    def _heart(self, group: Group) -> Cell[Heart]:
        if (cell := self._hearts.get(group)) is None:
            shape = HeartShape(self._link, group, self._wall)
            cell = self._hearts[group] = Cell(self._link, wire.heart_path(group), shape)
        return cell

    def _record(self, group: Group, partition: PartitionId) -> Cell[progress.Kept]:
        if (cell := self._records.get((group, partition))) is None:
            shape = progress.RecordShape(self._link, group, partition)
            cell = self._records[group, partition] = Cell(self._link, wire.record_path(group, partition), shape)
        return cell

    def _actions(self, group: Group) -> Cell[progress.Actions]:
        if (cell := self._acts.get(group)) is None:
            shape = progress.ActionsShape(self._link, group)
            cell = self._acts[group] = Cell(self._link, wire.actions_path(group), shape)
        return cell

    async def _look(self, group: Group) -> Heart:
        await self._check_once()
        return await self._heart(group).look()

    async def _bounds(self, group: Group, *, fresh: bool = False) -> progress.Bounds:
        """As the last heartbeat of this client has shown them, or as they are now."""
        cell = self._heart(group)
        heart = await cell.look() if fresh or cell.known is None else cell.known
        return progress.Bounds(heart.history_seen, heart.epoch_floor)

    async def _epochs(self, group: Group) -> dict[str, int]:
        """Of all checkpoints, by their paths. One that cannot be read counts as older than all."""

        async def one(path: str) -> tuple[str, int]:
            try:
                body = await self._read_record(path)
            except Corrupt:
                body = None
            return path, body.record.epoch if body is not None else -1

        return dict(await self._all(one(path) for path in await self._link.paths(wire.records_path(group))))

    async def _read_record(self, path: str) -> wire.RecordBody | None:
        found = await self._link.get(path)
        return wire.unpack(found.data, wire.RecordBody, self._link.name(path)) if found is not None else None

    async def _folders(self) -> list[str]:
        """Of groups; a prefix may be shared with others."""
        return [folder for folder in await self._link.folders() if wire.is_folder(folder)]

    async def _group_in(self, folder: str) -> Group | None:
        """The group that is kept there; None when it was deleted. One may have nothing but checkpoints."""
        path = f"{folder}/{wire.HEART}"
        found = await self._link.get(path)
        heart = wire.unpack(found.data, wire.HeartBody, self._link.name(path)) if found is not None else None
        if heart is not None and not heart.deleted:
            return heart.group
        floor = heart.epoch_floor if heart is not None else 0
        for path in await self._link.paths(f"{folder}/{wire.RECORDS}"):
            if (body := await self._read_record(path)) is not None and body.record.epoch >= floor:
                return body.group
        return None

    async def _all(self, requests: Iterable[Awaitable[T]]) -> list[T]:
        """A few at a time. Whatever fails, all have ended when this does."""

        async def one(request: Awaitable[T]) -> T:
            async with self._requests:
                return await request

        answers = await asyncio.gather(*map(one, requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    # --- the first look
    async def _check_once(self, *, writes: bool = False) -> None:
        if self._may_write or (self._is_checked and not writes):
            return
        async with self._check:
            if not self._is_checked and not self._create and not await self._folders():
                raise Misconfigured(
                    f"The store {self._link.address} holds nothing of evenflow: see the bucket and the prefix in its"
                    " URL, and whether anything has run with it yet."
                )
            self._is_checked = True
            if writes and not self._may_write:
                await self._link.check_conditions()
                self._may_write = True
