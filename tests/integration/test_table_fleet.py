"""Two real instances on a watched table, whose writers commit late and out of order: one is killed, the server is
restarted, and every change that was committed is handled, those of each row in order."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from threading import Event, Thread
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.feed_workers import Worker, out_of_order
from tests.integration.programs import PATIENCE_S, wait_for
from tests.integration.table_scene import TableScene
from tests.servers.postgres import Postgres, shared_or_skip

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

WRITERS, KEYS = 6, 20


def write(scene: TableScene, seed: int, end: Event, committed: list[tuple[int, int]]) -> None:
    """Transactions that stay open for a while. One whose end is in doubt is asked for afterwards, in the table."""
    chance = random.Random(seed)
    while not end.is_set():
        try:
            with psycopg.connect(scene.server.url(), connect_timeout=2) as hand:
                while not end.is_set():
                    changes = []
                    for _ in range(chance.randrange(1, 4)):
                        cursor = hand.execute(
                            f"UPDATE {scene.table} SET version = version + 1 WHERE id = {chance.randrange(KEYS)}"
                            " RETURNING id, version".encode()
                        )
                        changes += cursor.fetchall()
                        end.wait(chance.choice([0, 0, 0.01, 0.1]))
                    hand.commit()
                    committed += changes
        except psycopg.Error:
            end.wait(0.05)


def test_every_committed_change_is_handled_in_order(tmp_path: Path) -> None:
    shared_or_skip()
    server = Postgres(deadlock_timeout="20ms")
    with ExitStack() as ends:
        ends.callback(server.remove)
        scene = TableScene(server)
        asyncio.run(_begin(scene))
        one, two = (Worker(tmp_path, name, scene.url("all")) for name in ("one", "two"))
        ends.callback(one.close)
        ends.callback(two.close)
        committed: list[tuple[int, int]] = []
        end = Event()
        writers = [Thread(target=write, args=(scene, seed, end, committed)) for seed in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            wait_for(lambda: len(one.lines) > 100 and len(two.lines) > 100, "both to handle something")
            one.process.kill()
            before = len(two.lines)
            wait_for(lambda: len({line.partition for line in two.lines[before:]}) == 4, "the other one to take over")
            server.restart()
            before = len(two.lines)
            wait_for(lambda: len(two.lines) > before + 100, "it to go on with the server that was restarted")
        finally:
            end.set()
            for writer in writers:
                writer.join(PATIENCE_S)
        latest = dict(server.sql(f"SELECT id, version FROM {scene.table}"))
        wanted = {(key, version) for key, last in latest.items() for version in range(last + 1)}
        assert set(committed) <= wanted
        wait_for(lambda: wanted <= {line[2:] for line in one.lines + two.lines}, "every change to be handled")
        assert out_of_order(sorted(one.lines + two.lines)) == []


async def _begin(scene: TableScene) -> None:
    await scene.make()
    await (await scene.hand()).execute(
        f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(0, {KEYS - 1}) g".encode()
    )
    await scene.watch(4, all_versions=True)
    await scene.aclose()
