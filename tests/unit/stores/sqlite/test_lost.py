"""Files of a SQLite store that are deleted or replaced, while it runs and while it does not."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.errors import LeaseLost, StoreUnavailable
from evenflow.local.database import connect
from evenflow.model import Cursor, next_epoch
from evenflow.stores.sqlite import folder as sqlite_folder
from evenflow.stores.sqlite.folder import LeasesMeta, ProgressMeta, next_history
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import PATIENCE_S, after, at, first, granted
from tests.unit.stores.scenes import GROUP, LEASES, PROGRESS, cursor, execute, filled, join, known

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import apsw


@pytest.mark.parametrize(
    ("leases", "progress", "at_least", "history"),
    [
        (None, None, 0, 0),
        (None, None, 5, 5),
        (None, ProgressMeta("p", 3), 0, 4),
        (LeasesMeta("l", 3, "p"), None, 0, 4),
        (LeasesMeta("l", 3, "p"), ProgressMeta("p", 3), 0, 3),
        (LeasesMeta("l", 3, "p"), ProgressMeta("p", 3), 9, 9),
        (LeasesMeta("l", 3, "p"), ProgressMeta("other", 3), 0, 4),
        (LeasesMeta("l", 3, "p"), ProgressMeta("other", 7), 0, 8),
        (LeasesMeta("l", 7, "p"), ProgressMeta("other", 3), 0, 8),
        (LeasesMeta("l", 3, "p"), ProgressMeta("p", 4), 0, 4),  # killed between the two writes
        (LeasesMeta("l", 4, "p"), ProgressMeta("p", 3), 0, 5),  # an older copy of progress
    ],
)
def test_the_history_of_a_pair(
    leases: LeasesMeta | None, progress: ProgressMeta | None, at_least: int, history: int
) -> None:
    assert next_history(leases, progress, at_least) == history


# --- while no instance runs
def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        me, since = await filled(tmp_path)
        store = SQLiteStore(tmp_path)
        ledger = await store.heartbeat(GROUP, me, since)
        assert (ledger.whole, ledger.cursor.lineage, ledger.cursor.history) == (False, since.lineage, 0)
        assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 3
        await store.aclose()

    asyncio.run(scenario())


def _lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _empty(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, 0)


@pytest.mark.parametrize("harm", [_lose(LEASES), _empty(LEASES)], ids=["deleted", "emptied"])
def test_lost_leases_raise_the_history_and_keep_progress(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    async def scenario() -> None:
        _, since = await filled(tmp_path)
        for history in (1, 2):
            harm(tmp_path)
            store = SQLiteStore(tmp_path)
            now = await cursor(store, await join(store))
            assert now.lineage != since.lineage
            assert now.history == history
            assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 3
            await store.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("harm", [_lose(PROGRESS), _empty(PROGRESS)], ids=["deleted", "emptied"])
def test_lost_progress_raises_the_history_and_keeps_leases(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    async def scenario() -> None:
        me, since = await filled(tmp_path)
        harm(tmp_path)
        store = SQLiteStore(tmp_path)
        ledger = await store.heartbeat(GROUP, me, since)
        assert (ledger.cursor.lineage != since.lineage, ledger.cursor.history) == (True, 1)
        assert (ledger.whole, [lease.partition for lease in ledger.leases]) == (True, ["0"])
        assert list(await store.checkpoints(GROUP)) == []
        await store.aclose()

    asyncio.run(scenario())


def test_progress_of_another_store_raises_the_history(tmp_path: Path) -> None:
    async def scenario() -> None:
        me, since = await filled(tmp_path / "mine")
        await filled(tmp_path / "other")
        shutil.copy(tmp_path / "other" / PROGRESS, tmp_path / "mine" / PROGRESS)
        store = SQLiteStore(tmp_path / "mine")
        assert (await store.heartbeat(GROUP, me, since)).cursor.history == 1
        await store.aclose()

    asyncio.run(scenario())


def test_a_raised_history_outlives_the_leases(tmp_path: Path) -> None:
    """The history that a foreign cursor proved is in both files, so that losing one of them does not lose it."""

    async def scenario() -> None:
        me, since = await filled(tmp_path)
        store = SQLiteStore(tmp_path)
        elsewhere = type(since)("elsewhere", 6, 1)
        assert (await store.heartbeat(GROUP, me, elsewhere)).cursor.history == 7
        await store.aclose()
        (tmp_path / LEASES).unlink()
        store = SQLiteStore(tmp_path)
        assert (await cursor(store, await join(store))).history == 8
        await store.aclose()

    asyncio.run(scenario())


# --- while it runs
def test_leases_that_are_deleted_while_running_are_created_again_for_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        clients = [SQLiteStore(tmp_path), SQLiteStore(tmp_path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        since = await cursor(clients[0], members[0])
        await clients[0].swap(GROUP, [first("0", members[0].owner)])
        await clients[0].seal(GROUP, "0", 1, at(3))
        (tmp_path / LEASES).unlink()
        ledgers = [await clients[turn % 2].heartbeat(GROUP, members[turn % 2], since) for turn in range(4)]
        assert {ledger.cursor.lineage for ledger in ledgers} == {ledgers[0].cursor.lineage} != {since.lineage}
        assert {ledger.cursor.history for ledger in ledgers} == {1}
        assert [member.id for member in ledgers[-1].members] == ["a", "b"]
        assert [known(ledger).incarnation for ledger in ledgers[:2]] == [member.incarnation for member in members]
        assert ledgers[-1].leases == ()
        assert (await clients[1].seal(GROUP, "0", 1, at(0))).ordinal == 3
        await _close_and_check(tmp_path, *clients)

    asyncio.run(scenario())


def test_progress_that_is_deleted_while_running_is_noticed_by_a_heartbeat_and_by_a_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        clients = [SQLiteStore(tmp_path), SQLiteStore(tmp_path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        since = await cursor(clients[0], members[0])
        await clients[0].seal(GROUP, "0", 1, at(3))
        (tmp_path / PROGRESS).unlink()
        assert (await clients[1].heartbeat(GROUP, members[1], since)).cursor.history == 1
        assert (await clients[0].commit(GROUP, [at(4)]))[0].ok, "it restores what was lost"
        (tmp_path / PROGRESS).unlink()
        with pytest.raises(LeaseLost, match="lost writes"):
            await clients[0].seal(GROUP, "0", 2, at(99))
        assert (await clients[0].commit(GROUP, [at(5)]))[0].ok
        assert [record.ordinal for record in await clients[1].checkpoints(GROUP)] == [5]
        now = [(await c.heartbeat(GROUP, m, since)).cursor for c, m in zip(clients, members, strict=True)]
        assert [one.history for one in now] == [2, 2]
        assert now[0].lineage == now[1].lineage != since.lineage, "each learns that what it has seen was lost"
        await _close_and_check(tmp_path, *clients)

    asyncio.run(scenario())


def test_a_folder_that_is_deleted_while_running_is_created_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "store"
        clients = [SQLiteStore(path), SQLiteStore(path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        since = await cursor(clients[0], members[0])
        woken = asyncio.Event()
        clients[1].watch(GROUP, "b", woken.set)
        shutil.rmtree(path)
        histories = [(await c.heartbeat(GROUP, m, since)).cursor.history for c, m in zip(clients, members, strict=True)]
        assert histories == [since.history + 1, since.history + 1]
        # The bell was deleted too, which wakes everybody; the new one must be heard all the same.
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()
        woken.clear()
        lease = granted((await clients[0].swap(GROUP, [first("0", members[0].owner, history=1)]))[0])
        await clients[0].swap(GROUP, [after(lease, members[1].owner)])
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()
        await _close_and_check(path, *clients)

    asyncio.run(scenario())


def test_a_seal_that_was_on_its_way_when_all_was_deleted_makes_nothing(tmp_path: Path) -> None:
    """No instance has sent a heartbeat to the new files. The default of this seal may be the end of the log."""

    async def scenario() -> None:
        path = tmp_path / "store"
        clients = [SQLiteStore(path), SQLiteStore(path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        since = await cursor(clients[0], members[0])
        for client in clients:
            await client.seal(GROUP, "0", 1, at(3))
        shutil.rmtree(path)
        for client in clients:
            with pytest.raises(LeaseLost, match="lost writes"):
                await client.seal(GROUP, "0", 2, at(99))
        assert (await clients[1].commit(GROUP, [at(4)]))[0].ok, "what is remembered is restored"
        histories = [(await c.heartbeat(GROUP, m, since)).cursor.history for c, m in zip(clients, members, strict=True)]
        assert histories == [1, 1], "the loss was noticed once"
        await _close_and_check(path, *clients)

    asyncio.run(scenario())


def test_a_copy_that_takes_the_place_of_progress_raises_the_history_at_once(tmp_path: Path) -> None:
    """It is the same progress by its name, and no heartbeat can detect that it is older."""

    async def scenario() -> None:
        clients = [SQLiteStore(tmp_path), SQLiteStore(tmp_path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        since = await cursor(clients[0], members[0])
        await clients[0].seal(GROUP, "0", 1, at(3))
        execute(tmp_path / PROGRESS, f"VACUUM INTO '{tmp_path / 'backup'}'")
        assert (await clients[0].commit(GROUP, [at(9)]))[0].ok
        os.replace(tmp_path / "backup", tmp_path / PROGRESS)
        now = [(await c.heartbeat(GROUP, m, since)).cursor for c, m in zip(clients, members, strict=True)]
        assert [one.history for one in now] == [1, 1]
        assert now[0].lineage == now[1].lineage != since.lineage
        assert (await clients[0].commit(GROUP, [at(9)]))[0].ok
        later = next_epoch(1, 1)
        assert (await clients[1].seal(GROUP, "0", later, at(0, epoch=later))).ordinal == 9
        await _close_and_check(tmp_path, *clients)

    asyncio.run(scenario())


def test_who_comes_first_to_a_new_store_sees_no_loss(tmp_path: Path) -> None:
    """It began something there that those of before may still handle: it must not have that back at once."""

    async def scenario() -> None:
        path = tmp_path / "store"
        old, newcomer = SQLiteStore(path), SQLiteStore(path)
        member = await join(old)
        since = await cursor(old, member)
        await old.seal(GROUP, "0", 1, at(3))
        shutil.rmtree(path)
        first_one = await join(newcomer, "b")
        seen = await cursor(newcomer, first_one)
        assert (seen.history, seen.lineage != since.lineage) == (0, True)
        assert (await old.heartbeat(GROUP, member, since)).cursor.history == 1
        now = await cursor(newcomer, first_one)
        assert (now.history, now.lineage) == (1, seen.lineage)
        await _close_and_check(path, old, newcomer)

    asyncio.run(scenario())


def test_a_raised_history_that_another_process_raised_is_outdone_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "store"
        clients = [SQLiteStore(path), SQLiteStore(path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        elsewhere = Cursor("elsewhere", 6, 1)
        assert (await clients[0].heartbeat(GROUP, members[0], elsewhere)).cursor.history == 7
        assert (await clients[1].heartbeat(GROUP, members[1], None)).cursor.history == 7
        shutil.rmtree(path)
        assert (await cursor(clients[1], members[1])).history == 8
        await _close_and_check(path, *clients)

    asyncio.run(scenario())


def test_a_group_is_deleted_whole_or_its_checkpoints_stay(tmp_path: Path) -> None:
    """Another process writes to progress for too long: nothing happens, to either file."""

    async def scenario() -> None:
        store, writer = SQLiteStore(tmp_path, busy_timeout_s=0.05), SQLiteStore(tmp_path)
        me = await join(store)
        await store.swap(GROUP, [first("0", me.owner)])
        await store.seal(GROUP, "0", 1, at(3))
        await writer.seal(GROUP, "1", 1, at(0, partition="1"))
        wanted = at(1, partition="1")
        async with writer.transaction(GROUP, wanted, committed=0, start=0, limit_s=PATIENCE_S):
            with pytest.raises(StoreUnavailable, match=r"progress.sqlite is locked"):
                await store.delete(GROUP)
        ledger = await store.peek(GROUP)
        assert ledger is not None
        assert (len(ledger.leases), len(await store.checkpoints(GROUP))) == (1, 2)
        await store.delete(GROUP)
        assert list(await store.groups()) == []
        with pytest.raises(LeaseLost, match="deleted"):
            await writer.seal(GROUP, "0", 1, at(3))
        await _close_and_check(tmp_path, store, writer)

    asyncio.run(scenario())


def test_leases_that_are_replaced_by_an_older_copy_are_noticed(tmp_path: Path) -> None:
    """A backup is moved over the file in use, whose log must not be taken for that of the backup."""

    async def scenario() -> None:
        clients = [SQLiteStore(tmp_path), SQLiteStore(tmp_path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        execute(tmp_path / LEASES, f"VACUUM INTO '{tmp_path / 'backup'}'")
        for number in range(300):
            await clients[0].swap(GROUP, [first(str(number), members[0].owner, reason="x" * 100)])
        since = await cursor(clients[0], members[0])
        os.replace(tmp_path / "backup", tmp_path / LEASES)
        for client, member in zip(clients, members, strict=True):
            ledger = await client.heartbeat(GROUP, member, since)
            assert (ledger.cursor.lineage, ledger.cursor.history) == (since.lineage, 1)
            assert (ledger.leases, len(ledger.members)) == ((), 2)
        await _close_and_check(tmp_path, *clients)

    asyncio.run(scenario())


def test_leases_that_are_deleted_while_they_are_opened_are_not_made_beside_their_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = connect

    def too_late(path: Path, **settings: Any) -> apsw.Connection:
        monkeypatch.setattr(sqlite_folder, "connect", real)
        path.unlink()
        return real(path, **settings)

    async def scenario() -> None:
        running, newcomer = SQLiteStore(tmp_path), SQLiteStore(tmp_path)
        since = await cursor(running, await join(running))
        monkeypatch.setattr(sqlite_folder, "connect", too_late)
        with pytest.raises(StoreUnavailable, match="does not exist"):
            await join(newcomer, "b")
        assert not (tmp_path / LEASES).exists()
        now = await cursor(newcomer, await join(newcomer, "b"))
        assert (now.history, now.lineage != since.lineage) == (1, True)
        await _close_and_check(tmp_path, running, newcomer)

    asyncio.run(scenario())


def test_a_log_that_is_deleted_while_running_costs_no_more_than_a_few_errors(tmp_path: Path) -> None:
    """Each would go on writing into a log of its own, and not see the other."""

    async def scenario() -> None:
        clients = [SQLiteStore(tmp_path), SQLiteStore(tmp_path)]
        members = [await join(client, name) for client, name in zip(clients, "ab", strict=True)]
        await clients[0].swap(GROUP, [first("0", members[0].owner)])
        (tmp_path / f"{LEASES}-wal").unlink()
        for client, member in [*zip(clients, members, strict=True)] * 3:
            with suppress(StoreUnavailable):
                await client.heartbeat(GROUP, member, None)
        since = await cursor(clients[0], members[0])
        await clients[1].heartbeat(GROUP, members[1], None)
        ledger = await clients[0].heartbeat(GROUP, members[0], since)
        assert (ledger.roster, ledger.members) == (False, ()), "they see each other's heartbeats"
        await _close_and_check(tmp_path, *clients)

    asyncio.run(scenario())


async def _close_and_check(folder: Path, *clients: SQLiteStore) -> None:
    for client in clients:
        await client.aclose()
    for name in (LEASES, PROGRESS):
        assert execute(folder / name, "PRAGMA integrity_check") == [("ok",)]
