"""What a user gets wrong, or meets on a bad day, through a real `python app.py`: a clear line, and nothing lost."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from evenflow.core.failure import pause_s
from evenflow.embedded.hub import Hub
from tests.integration.programs import PATIENCE_S, wait_for
from tests.servers import processes
from tests.servers.processes import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.process

PARTITIONS, EVENTS = 3, 400
APP = """
import logging
from evenflow import Hub, Position, Processor

{log}

processor = Processor({arguments}, heartbeat_s=0.3, ttl_s=1.5, margin_s=0.3)

@processor.on_event
async def handle(event, partition):
    print(partition.id, event.sequence, flush=True)

processor.run({run})
"""
GOOD = "source='hub:homes', store='sqlite:leases', group='alerts'"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Hub.create(tmp_path / "homes", PARTITIONS).close()
    send_to_all(tmp_path)
    return tmp_path


def send_to_all(folder: Path) -> None:
    """Some more events to each partition."""

    async def send() -> None:
        async with Hub(folder / "homes") as hub:
            for partition in range(PARTITIONS):
                await hub.send([bytes(1000)] * EVENTS, partition=partition)

    asyncio.run(send())


def write_app(folder: Path, arguments: str = GOOD, *, run: str = "", log: str = "") -> None:
    (folder / "app.py").write_text(APP.format(arguments=arguments, run=run, log=log))


def run_app(folder: Path) -> subprocess.CompletedProcess[str]:
    """Until it ends by itself."""
    return subprocess.run(
        [sys.executable, "app.py"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


class App:
    """One that runs meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen([sys.executable, "app.py"], cwd=folder, stdout=out, stderr=err)

    @property
    def handled(self) -> set[tuple[str, ...]]:
        return handled(self._out.read_text())

    @property
    def complaints(self) -> list[str]:
        return self._err.read_text().splitlines()

    def wait_for(self, events: set[tuple[str, ...]]) -> None:
        wait_for(lambda: self.handled >= events, "everything to be handled")

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextmanager
def started_app(folder: Path) -> Iterator[App]:
    app = App(folder)
    try:
        yield app
    finally:
        app.process.kill()
        app.process.wait(PATIENCE_S)


def all_events(partitions: Sequence[int] = range(PARTITIONS), lots: int = 1) -> set[tuple[str, ...]]:
    return {(str(partition), str(sequence)) for partition in partitions for sequence in range(lots * EVENTS)}


def handled(output: str) -> set[tuple[str, ...]]:
    return {tuple(line.split()) for line in output.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        (GOOD.replace("hub:homes", "hub:nope"), "NotAHub: There is no hub at nope", "correct the path"),
        (
            GOOD + ", start=Position('9999', 9999)",
            "PositionOutOfRange: Position 9999 is beyond the end of homes/partitions/0000",
            'or start at "latest"',
        ),
    ],
    ids=["when it is made", "when it runs"],
)
def test_a_mistake_ends_it_with_one_line_that_says_what_to_do(
    folder: Path, arguments: str, error: str, advice: str
) -> None:
    """Other mistakes are in tests/unit/runtime/test_on_a_hub.py."""
    write_app(folder, arguments)
    done = run_app(folder)
    *before, last_line = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert sum(error in line for line in before) <= 1, "it is logged once, and raised"
    assert last_line.startswith(f"evenflow.errors.{error}")
    assert advice in last_line
    if (folder / "leases").exists():
        write_app(folder, run="until='caught_up'")
        assert handled(run_app(folder).stdout) == all_events(), "nothing is lost by it"


def test_a_truncated_partition_stops_alone_until_it_is_restored(folder: Path) -> None:
    path = folder / "homes" / "partitions" / "00001.sqlite"
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    write_app(folder, log="logging.basicConfig(format='%(created)f %(message)s')")
    with started_app(folder) as app:
        app.wait_for(all_events([0, 2]))
        wait_for(lambda: len(app.complaints) >= 5, "it to be told of some more often")
        complaints = [line.split(" ", 1) for line in app.complaints]
        restored = path.with_suffix(".restored")
        restored.write_bytes(whole)
        restored.rename(path)
        app.wait_for(all_events())
        assert app.end() == 0
    for number, (_, line) in enumerate(complaints, 1):
        assert line.startswith(f"partition 1: source: Corrupt: {path.relative_to(folder)} is damaged")
        assert "restore it" in line
        assert f"(attempt {number}); retrying in " in line
    for number, ((earlier, _), (later, _)) in enumerate(pairwise(complaints), 1):
        assert float(later) - float(earlier) >= pause_s(number, chance=0.0), "no pause, but a flood"


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    with processes.small_disk(folder / "small", "4m") as place:
        yield place


def test_a_full_disk_of_the_store_stops_it_until_there_is_room(folder: Path, small_disk: Path) -> None:
    write_app(folder, GOOD.replace("sqlite:leases", "sqlite:small/leases"))
    with started_app(folder) as app:
        app.wait_for(all_events())
        fill(small_disk / "ballast")
        send_to_all(folder)
        wait_for(lambda: any("lease was not renewed" in line for line in app.complaints), "it to stop")
        send_to_all(folder)
        (small_disk / "ballast").unlink()
        app.wait_for(all_events(lots=3))
        assert app.end() == 0
    full = [line for line in app.complaints if "StorageFull" in line]
    clear = re.compile(
        r"StorageFull: The disk of small/leases/\S+ is full\. .*: free some disk space, then try again\."
    )
    assert full
    assert all(clear.search(line) for line in full)
    assert not [line for line in app.complaints if "Traceback" in line]
