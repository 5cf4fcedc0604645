"""A store for many processes on one machine: a folder with two SQLite files, and a bell file for wake-ups.

Leases and progress are separate files with one thread each. So a long transaction in `progress.sqlite`, where
applications may keep effects of their own, never delays a heartbeat. This module decides which thread runs what; the
operations on the files are in the modules beside it.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from evenflow.errors import Misconfigured, StoreUnavailable
from evenflow.local.database import translated
from evenflow.stores import rules
from evenflow.stores.sqlite import checkpoints as sqlite_progress
from evenflow.stores.sqlite import deletion as sqlite_deletion
from evenflow.stores.sqlite import leases as sqlite_leases
from evenflow.stores.sqlite.channel import WriterChannel
from evenflow.stores.sqlite.file import StoreFile
from evenflow.stores.sqlite.folder import StoreFolder
from evenflow.stores.sqlite.schema import LEASES, PROGRESS
from evenflow.stores.sqlite.transactions import ProgressTurns, SQLiteTransactions
from evenflow.stores.sqlite.wakeups import ALL_INSTANCES, SQLiteWakeups, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    import apsw

    from evenflow.model import (
        Action,
        Change,
        Checkpoint,
        Cursor,
        Group,
        GroupState,
        Ledger,
        Member,
        Move,
        Outcome,
        PartitionId,
        Steering,
    )
    from evenflow.stores.sqlite.transactions import SQLiteTransaction

Result = TypeVar("Result")

BUSY_TIMEOUT_S = 2.0
"""Far below a time-to-live, so that a heartbeat that hits a lock can be retried in time."""

BELL = "bell"


def from_url(url: str, *, create: bool = True) -> SQLiteStore:
    """`sqlite:FOLDER`."""
    path = url.removeprefix("sqlite:").removeprefix("//")
    if not path:
        raise Misconfigured(f"The folder is missing in store {url!r}. Use sqlite:FOLDER, such as sqlite:data/leases.")
    if "?" in path:
        raise Misconfigured(f"A SQLite store has no options: {url!r}. Use sqlite:FOLDER, without a '?'.")
    return SQLiteStore(path, create=create)


class SQLiteStore:
    """The contracts of Store, Transactional, Watchable, Operable and Steerable, in the folder `path`.

    The first operation opens it, and creates it if it is missing. With `create=False`, for read-only tools, a missing
    store is an error.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        create: bool = True,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self._folder = StoreFolder(Path(path), busy_timeout_s=busy_timeout_s, create=create)
        self._leases = _FileThread(self._folder, LEASES)
        self._progress = _FileThread(self._folder, PROGRESS)
        self._turns = ProgressTurns()
        self._transactions = SQLiteTransactions(self._turns, self._make_channel, self._in_progress_thread)
        self._busy_timeout_s = busy_timeout_s
        self._wakes = SQLiteWakeups(self._folder.path / BELL)
        self._wall = wall or time.time  # noqa: TID251

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._folder.path)!r})"

    # --- the ledger
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        # A heartbeat needs no sync of its own, which would be most of its cost: if the machine loses power, every
        # process that saw the heartbeat is gone too. A new incarnation is synced, because it must never be assigned
        # twice.
        known = member.incarnation != 0
        ledger = await self._leases.run(partial(self._heartbeat, group, member, since), full_sync=not known)
        self._wakes.renew()
        return ledger

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        return await self._leases.run(partial(self._swap, group, changes))

    # --- progress
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        at = self._wall()
        return await self._write_progress(
            lambda file: sqlite_progress.seal(file, group, partition, epoch, default, at, unplanned=unplanned)
        )

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        at = self._wall()
        return await self._write_progress(lambda file: sqlite_progress.commit(file, group, checkpoints, at))

    def transaction(
        self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float
    ) -> AbstractAsyncContextManager[SQLiteTransaction]:
        rules.check_group(group)
        return self._transactions.open(
            group, checkpoint, committed=committed, start=start, limit_s=limit_s, at=self._wall()
        )

    async def aclose(self) -> None:
        self._transactions.shut()
        await self._leases.aclose()
        await self._progress.aclose(self._transactions.end)
        self._wakes.close()

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        self._folder.make()
        with translated(self._folder.path / BELL, StoreUnavailable):
            return self._wakes.watch(group, instance, wake)

    # --- for operators: reads
    async def groups(self) -> Sequence[Group]:
        running = await self._leases.run(sqlite_leases.groups)
        recorded = await self._progress.run(sqlite_progress.groups)
        return sorted({*running, *recorded}, key=str)

    async def peek(self, group: Group) -> Ledger | None:
        return await self._leases.run(lambda file: sqlite_leases.peek(file, group))

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        return await self._progress.run(lambda file: sqlite_progress.checkpoints(file, group))

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        return await self._leases.run(lambda file: sqlite_leases.moves(file, group, limit))

    async def delete(self, group: Group) -> None:
        """Deletes the group from both files in one step. If this process is killed meanwhile, the checkpoints may
        remain, but epochs still continue above the old ones."""
        await self._leases.run(lambda _: sqlite_deletion.delete(self._folder, group))
        self._wakes.ring(ALL_INSTANCES)

    # --- for operators: changes
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        return await self._leases.run(partial(self._steer, group, steering, action))

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        at = self._wall()
        await self._leases.run(lambda file: sqlite_leases.record(file, group, action, at))

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        return await self._leases.run(lambda file: sqlite_leases.actions(file, group, limit))

    # --- private
    async def _write_progress(self, work: Callable[[apsw.Connection], Result]) -> Result:
        async with self._turns.mine():
            return await self._progress.run(work)

    def _make_channel(self) -> WriterChannel:
        return WriterChannel(self._folder.path, self._busy_timeout_s)

    async def _in_progress_thread(self, work: Callable[[], None]) -> None:
        """Opens the file first, so that an unusable store is reported before a process is started."""
        await self._progress.run(lambda _: work())

    # --- in the thread of leases.sqlite
    def _heartbeat(self, group: Group, member: Member, since: Cursor | None, file: apsw.Connection) -> Ledger:
        ledger, state_changed = sqlite_leases.heartbeat(file, group, member, since, self._wall())
        self._folder.saw_history(ledger.cursor.history)
        if state_changed:
            self._wakes.ring(ALL_INSTANCES)
        return ledger

    def _swap(self, group: Group, changes: Sequence[Change], file: apsw.Connection) -> Sequence[Outcome]:
        outcomes, heirs = sqlite_leases.swap(file, group, changes, self._wall())
        self._wakes.ring(*{slot_of(group, heir) for heir in heirs})
        return outcomes

    def _steer(self, group: Group, steering: Steering, action: Action, file: apsw.Connection) -> GroupState:
        state = sqlite_leases.steer(file, group, steering, action, self._wall())
        self._wakes.ring(ALL_INSTANCES)
        return state


class _FileThread:
    """One file, and the only thread that uses it."""

    def __init__(self, folder: StoreFolder, name: str) -> None:
        self._file = StoreFile(folder, name)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"evenflow-{name}")
        self._closed = False

    async def run(self, work: Callable[[apsw.Connection], Result], *, full_sync: bool = True) -> Result:
        """A cancelled caller returns at once; work that has started is completed, as the contract says."""
        if self._closed:
            raise StoreUnavailable(f"The store in {self._file.path.parent} was closed.")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(self._file.do, work, full_sync=full_sync))

    async def aclose(self, last: Callable[[], None] = lambda: None) -> None:
        """`last` runs in the thread, after the file is closed."""
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._executor, self._file.close)
                await loop.run_in_executor(self._executor, last)
            finally:
                self._executor.shutdown(wait=False)
