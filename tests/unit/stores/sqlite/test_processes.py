"""Files that are deleted under several processes at once: all of them end up on the same new ones."""

from __future__ import annotations

import asyncio
import multiprocessing
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest

from evenflow.errors import EvenflowError, LeaseLost, StoreUnavailable
from evenflow.model import next_epoch
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import PATIENCE_S, at
from tests.unit.stores.scenes import GROUP, known, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

    from evenflow.model import Cursor

PROCESSES = 3
FILES = ("leases.sqlite", "progress.sqlite")
LOSSES = FILES * 6


@pytest.mark.process
def test_files_that_are_deleted_under_running_processes(tmp_path: Path) -> None:
    with _workers(tmp_path) as (workers, ends):
        history = _agreed_above(ends, -1)
        for name in LOSSES:
            (tmp_path / name).unlink()
            history = _agreed_above(ends, history)
        assert history == len(LOSSES), "each loss was noticed once, and nothing else was lost"
        for end in ends:
            end.send("stop")
        for worker in workers:
            worker.join(PATIENCE_S)
            assert worker.exitcode == 0
    for name in FILES:
        connection = apsw.Connection(str(tmp_path / name))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


@contextmanager
def _workers(folder: Path) -> Iterator[tuple[list[SpawnProcess], list[Connection]]]:
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(PROCESSES)]
    workers = [
        spawn.Process(target=_work, args=(folder, f"worker {number}", theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    try:
        yield workers, [mine for mine, _ in pipes]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _agreed_above(ends: list[Connection], history: int) -> int:
    """The history that all processes have reached, once it is above this one and the same for all."""
    reached = [history] * len(ends)
    while min(reached) <= history or len(set(reached)) > 1:
        behind = reached.index(min(reached))
        assert ends[behind].poll(PATIENCE_S), f"no process may hang: {reached}"
        report = ends[behind].recv()
        assert isinstance(report, int), report
        reached[behind] = report
    return reached[0]


def _work(folder: Path, name: str, end: Connection) -> None:
    asyncio.run(_heartbeat_and_commit(SQLiteStore(folder), name, end))


async def _heartbeat_and_commit(store: SQLiteStore, name: str, end: Connection) -> None:
    """Report every new history, and every error that is none of those that pass by themselves."""
    me, since = start(name), None
    while not end.poll():
        try:
            ledger = await store.heartbeat(GROUP, me, since)
            if since is None or ledger.cursor.history != since.history:
                end.send(ledger.cursor.history)
            me, since = known(ledger), ledger.cursor
            await _progress(store, name, since)
        except (StoreUnavailable, LeaseLost):
            continue
        except EvenflowError as error:
            end.send(str(error))
    await store.aclose()


async def _progress(store: SQLiteStore, name: str, now: Cursor) -> None:
    epoch = next_epoch(0, now.history)
    record = await store.seal(GROUP, name, epoch, at(0, partition=name))
    await store.commit(GROUP, [at(record.ordinal + 1, epoch=epoch, partition=name)])
