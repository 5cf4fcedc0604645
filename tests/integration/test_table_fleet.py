"""Two real instances on a watched table, whose writers commit late and out of order: one is killed, the server is
restarted, and every change that was committed is handled, those of each row in order."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from contextlib import ExitStack
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest

from tests.integration.programs import PATIENCE_S, wait_for
from tests.integration.table_scene import TableScene
from tests.servers.postgres import Postgres, shared_or_skip

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

WRITERS, KEYS = 6, 20


class Line(NamedTuple):
    at_s: float
    partition: str
    key: int
    version: int


class Worker:
    def __init__(self, folder: Path, name: str, source: str) -> None:
        self._diary, self._log = folder / f"{name}.diary", folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.table_worker",
                    source,
                    f"sqlite:{folder}/leases",
                    self._diary,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    @property
    def lines(self) -> list[Line]:
        """All that it handled. Of one that was killed the last may be cut."""
        text = self._diary.read_text() if self._diary.exists() else ""
        found = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [Line(float(at), partition, int(key), int(version)) for at, partition, key, version in found]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        print(self._log.read_text())


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
        assert _out_of_order(sorted(one.lines + two.lines)) == []


async def _begin(scene: TableScene) -> None:
    await scene.make()
    await (await scene.hand()).execute(
        f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(0, {KEYS - 1}) g".encode()
    )
    await scene.watch(4, all_versions=True)
    await scene.aclose()


def _out_of_order(lines: list[Line]) -> list[Line]:
    """The versions of a row follow each other; what was handled since a checkpoint may come again, from there on."""
    last: dict[int, int] = {}
    wrong = []
    for line in lines:
        if line.version > last.get(line.key, -1) + 1:
            wrong.append(line)
        last[line.key] = line.version
    return wrong
