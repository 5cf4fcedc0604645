"""Bad events in a stream, and processes that are killed: nothing good is lost, nothing bad is passed over."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from evenflow import Event, Hub
from evenflow.core.filed import fold
from evenflow.model import Action, DeadLetter, Group, Steering
from evenflow.operate.dead_letters.folder import FolderDeadLetters
from evenflow.stores.sqlite.store import SQLiteStore
from tests.integration.programs import PATIENCE_S, end, evenflow, started, wait_for
from tests.integration.trouble import LOG, MENDED, TRIED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.core.filed import Filed

pytestmark = pytest.mark.process

GROUP = Group("local", "homes", "alerts")
PARTITIONS = 6
EVENTS = 3_000
KEYS = 300
KILLS = 10
ROOT = Path(__file__).parents[2]
DEATHS_MOST = 8
"""Five owners that end near each other, and two that tried it alone; and one whom chance ended."""


class Done(NamedTuple):
    """A line of the log: handled."""

    partition: str
    sequence: int
    key: str


class Trouble:
    """A hub with bad events in it, and what became of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / TRIED).mkdir(parents=True)
        Hub.create(folder / "homes", PARTITIONS).close()
        self.sent: dict[tuple[str, int], Event] = {}

    def send(self, bodies: Sequence[bytes], rng: random.Random) -> None:
        events = [Event(body, f"home {rng.randrange(KEYS)}") for body in bodies]
        with Hub(self.folder / "homes") as hub:
            asyncio.run(hub.send(events))
        self.sent = asyncio.run(self._stored())

    async def _stored(self) -> dict[tuple[str, int], Event]:
        from evenflow.sources.hub.source import HubSource

        found = {}
        async with Hub(self.folder / "homes") as hub:
            source = HubSource(hub)
            for partition in await source.partitions():
                reader = await source.open(partition.id, await source.resolve(partition.id, "earliest"), epoch=1)
                while events := (await reader.read(1_000, 1 << 20, 0.0)).events:
                    found.update({(partition.id, event.sequence or 0): event for event in events})
                await reader.aclose()
        return found

    def places(self, *bodies: bytes) -> set[tuple[str, int]]:
        return {place for place, event in self.sent.items() if event.body in bodies}

    # --- what became of them
    def done(self) -> list[Done]:
        path = self.folder / LOG
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split(" ", 2) for line in lines]
        return [Done(partition, int(sequence), key) for partition, sequence, key in rows]

    def handled(self) -> set[tuple[str, int]]:
        return {(one.partition, one.sequence) for one in self.done()}

    def filed(self) -> list[Filed]:
        if not (self.folder / "dead").exists():
            return []

        async def read() -> list[Filed]:
            dead_letters = FolderDeadLetters(self.folder / "dead", create=False)
            try:
                return fold([record async for record in dead_letters.read(GROUP)])
            finally:
                await dead_letters.aclose()

        return asyncio.run(read())

    def dead_letters(self) -> dict[tuple[str, int], DeadLetter]:
        return {
            (one.dead_letter.partition, one.dead_letter.event.sequence or 0): one.dead_letter for one in self.filed()
        }

    def is_through(self) -> bool:
        """Each event is handled, or in the dead letters."""
        return set(self.sent) == self.handled() | set(self.dead_letters())

    def overtaken(self) -> list[str]:
        """Events of a key that were first handled before an earlier one of it."""
        newest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        seen, found = set(), []
        for one in self.done():
            if one in seen:
                continue
            seen.add(one)
            if one.sequence < newest[one.partition, one.key]:
                found.append(f"{one} after {newest[one.partition, one.key]}")
            newest[one.partition, one.key] = max(one.sequence, newest[one.partition, one.key])
        return found

    # --- somebody with tools
    def redrive_all(self) -> None:
        if evenflow("dead-letters", "redrive", "--help", folder=ROOT).returncode == 0:
            where = [f"{self.folder}/homes", f"jsonl:{self.folder}/dead", f"sqlite:{self.folder}/leases"]
            options = ["--source", f"hub:{where[0]}", "--dead-letters", where[1], "--store", where[2]]
            asked = evenflow("dead-letters", "redrive", "--all", "--yes", *options, "--group", "alerts", folder=ROOT)
            assert asked.returncode == 0, asked.stderr
        else:
            asyncio.run(self._ask_for_all())

    async def _ask_for_all(self) -> None:
        dead_letters, store = FolderDeadLetters(self.folder / "dead"), SQLiteStore(self.folder / "leases", create=False)
        filed = fold([record async for record in dead_letters.read(GROUP)])
        for one in filed:
            await dead_letters.file(GROUP, one.dead_letter.partition, [one.asked(by="ada", why="mended", at=0.0)])
        partitions = tuple(sorted({one.dead_letter.partition for one in filed}))
        action = Action(kind="redrive", by="ada", why="mended", what="all")
        await store.steer(GROUP, Steering(redrive=partitions), action)
        await dead_letters.aclose()
        await store.aclose()


@contextmanager
def instance(trouble: Trouble, name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.integration.trouble", str(trouble.folder), name]
    with (trouble.folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log)
    with process:
        try:
            yield process
        finally:
            process.kill()


class Fleet:
    """Instances that are killed and come back under their names."""

    def __init__(self, trouble: Trouble, *names: str) -> None:
        self._trouble = trouble
        self._instances = {name: instance(trouble, name) for name in names}
        self.processes = {name: one.__enter__() for name, one in self._instances.items()}

    def replace(self, name: str) -> None:
        self._instances[name].__exit__(None, None, None)
        self._instances[name] = instance(self._trouble, name)
        self.processes[name] = self._instances[name].__enter__()

    def close(self) -> None:
        for one in self._instances.values():
            one.__exit__(None, None, None)


@pytest.fixture
def trouble(tmp_path: Path) -> Trouble:
    return Trouble(tmp_path / "scene")


@pytest.fixture
def fleet(trouble: Trouble) -> Iterator[Fleet]:
    fleet = Fleet(trouble, "one", "two", "three")
    yield fleet
    fleet.close()


@pytest.mark.slow
def test_one_percent_is_poison_five_fail_once_and_processes_are_killed(trouble: Trouble, fleet: Fleet) -> None:
    rng = random.Random(11)
    kinds = [b"poison"] * (EVENTS // 100) + [b"once"] * (EVENTS // 20)
    bodies = kinds + [b"good"] * (EVENTS - len(kinds))
    rng.shuffle(bodies)
    trouble.send(bodies, rng)
    for number in range(KILLS):
        enough = number * EVENTS // (KILLS + 2)
        wait_for(lambda least=enough: len(trouble.done()) > least or trouble.is_through(), "progress")  # type: ignore[misc]
        fleet.replace(rng.choice(["one", "two", "three"]))
    wait_for(trouble.is_through, "everything to be handled or filed", 2 * PATIENCE_S)

    poison, dead_letters = trouble.places(b"poison"), trouble.dead_letters()
    assert not poison & trouble.handled()
    assert poison <= set(dead_letters), "each is there, once: a dead letter's identity is its event's"
    for place, dead_letter in dead_letters.items():
        if place in poison and dead_letter.reason == "poison":
            assert dead_letter.attempts == 3
        else:
            assert dead_letter.reason == "parked", dead_letter
            assert has_an_earlier_one(dead_letter, dead_letters), "it follows another one of its key"
    assert trouble.overtaken() == []

    (trouble.folder / MENDED).touch()
    trouble.redrive_all()
    wait_for(lambda: {one.state for one in trouble.filed()} == {"redriven"}, "all dead letters to be redriven")
    assert trouble.handled() == set(trouble.sent)
    assert trouble.overtaken() == []


def has_an_earlier_one(dead_letter: DeadLetter, dead_letters: dict[tuple[str, int], DeadLetter]) -> bool:
    return any(
        one.partition == dead_letter.partition
        and one.event.key == dead_letter.event.key
        and (one.event.sequence or 0) < (dead_letter.event.sequence or 0)
        for one in dead_letters.values()
    )


@pytest.mark.parametrize("kind", ["kill", "exit"])
def test_an_event_that_ends_its_process_ends_a_few_and_is_filed(trouble: Trouble, kind: str) -> None:
    rng = random.Random(5)
    bodies = [b"good"] * 300
    bodies[120] = kind.encode()
    trouble.send(bodies, rng)
    (deadly,) = trouble.places(kind.encode())
    with started(
        "run", "tests.integration.trouble:processor", "--workers", "3", folder=ROOT, TROUBLE=str(trouble.folder)
    ) as run:
        wait_for(trouble.is_through, "everything to be handled or filed", 2 * PATIENCE_S)
        code, _, _ = end(run, signal.SIGTERM)
    assert code == 0
    dead_letters = trouble.dead_letters()
    assert dead_letters[deadly].reason == "killed"
    assert all(
        has_an_earlier_one(dead_letter, dead_letters) for place, dead_letter in dead_letters.items() if place != deadly
    )
    assert deadly not in trouble.handled()
    deaths = len(list(trouble.folder.glob(f"{deadly[0]}-{deadly[1]}.died-*")))
    assert 5 <= deaths <= DEATHS_MOST
