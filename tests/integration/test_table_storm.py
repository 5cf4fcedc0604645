"""Writers do all that can be done to a table, in transactions of any shape, also while the server crashes: whoever has
followed its feed knows in the end what is in it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest

from evenflow.errors import SourceUnavailable
from tests.integration.table_scene import MUCH, TableScene, scene_of
from tests.servers.postgres import careless_or_skip

if TYPE_CHECKING:
    from evenflow.model import Event
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process

WRITERS, STEPS, KEYS, PARTITIONS, CRASHES = 6, 25, 15, 3, 2


@pytest.fixture
def server() -> Postgres:
    """What is committed may be lost in a crash, for long: so numbers may be given again."""
    return careless_or_skip()


class Writer:
    """Each row that it writes has a version that no other has."""

    def __init__(self, scene: TableScene, seed: int) -> None:
        self._scene, self._random, self._seed = scene, random.Random(seed), seed
        self._made = 0
        self._prepared: str | None = None
        """A transaction that may be prepared and not committed."""
        self.ended = 0

    async def run(self) -> None:
        while self.ended < STEPS:
            with suppress(psycopg.Error):
                hand = await psycopg.AsyncConnection.connect(self._scene.server.url())
                try:
                    await self._commit_prepared(hand)
                    await self._transaction(hand)
                    self.ended += 1
                finally:
                    await hand.close()
            await asyncio.sleep(self._random.choice([0, 0.005, 0.02]))

    async def _commit_prepared(self, hand: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        """One that a crash left prepared has its locks until its owner ends it: all others would wait for them."""
        if self._prepared is None:
            return
        await hand.set_autocommit(True)
        found = await hand.execute("SELECT gid FROM pg_prepared_xacts WHERE gid = %s", (self._prepared,))
        if await found.fetchall():
            await hand.execute(f"COMMIT PREPARED '{self._prepared}'".encode())
        await hand.set_autocommit(False)
        self._prepared = None

    async def _transaction(self, hand: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        for _ in range(self._random.randrange(1, 5)):
            is_in_vain = self._random.random() < 0.2
            await hand.execute("SAVEPOINT one")
            try:
                await self._change(hand)
            except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                is_in_vain = True
            await hand.execute("ROLLBACK TO one" if is_in_vain else "RELEASE one")
            await asyncio.sleep(self._random.choice([0, 0, 0.002, 0.02]))
        chance = self._random.random()
        if chance < 0.15:
            await hand.rollback()
        elif chance < 0.3:
            self._prepared = f"{self._scene.table}-{self._seed}-{self._made}"
            await hand.execute(f"PREPARE TRANSACTION '{self._prepared}'".encode())
            await hand.commit()
            await self._commit_prepared(hand)
        else:
            await hand.commit()

    async def _change(self, hand: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        table, key, version = self._scene.table, self._random.randrange(KEYS), self._version()
        what = self._random.choices(["upsert", "update", "delete", "move", "copy", "empty"], [30, 30, 15, 15, 10, 1])
        if what == ["upsert"]:
            tail = "ON CONFLICT (id) DO UPDATE SET version = excluded.version"
            await hand.execute(f"INSERT INTO {table} VALUES ({key}, '{version}') {tail}".encode())
        elif what == ["update"]:
            await hand.execute(f"UPDATE {table} SET version = '{version}' || id WHERE id % 5 = {key % 5}".encode())
        elif what == ["delete"]:
            await hand.execute(f"DELETE FROM {table} WHERE id = {key}".encode())
        elif what == ["move"]:
            other = self._random.randrange(KEYS)
            await hand.execute(f"UPDATE {table} SET id = {other} WHERE id = {key}".encode())
        elif what == ["empty"]:
            await hand.execute(f"TRUNCATE {table}".encode())
        else:
            async with hand.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for number in range(3):
                    await copy.write_row((KEYS + self._seed * 10_000 + self._made * 10 + number, version))

    def _version(self) -> str:
        self._made += 1
        return f"{self._seed}.{self._made}."


class Follower:
    """Reads all partitions. `has` is what it believes to be in the table."""

    def __init__(self, scene: TableScene, mode: str) -> None:
        self._scene, self._mode = scene, mode
        self._places: list[dict[str, str]] = [{} for _ in range(PARTITIONS)]
        self.taken = 0
        self.ended = asyncio.Event()

    @property
    def has(self) -> dict[str, str]:
        return {key: version for place in self._places for key, version in place.items()}

    async def run(self) -> None:
        await asyncio.gather(*(self._follow(place) for place in range(PARTITIONS)))

    async def _follow(self, place: int) -> None:
        source, after = self._scene.source(self._mode), None
        while True:
            try:
                after = after or await source.resolve(str(place), "earliest")
                reader = await source.open(str(place), after, epoch=1)
                while True:
                    was_over = self.ended.is_set()
                    batch = await reader.read(7, MUCH, 0.2)
                    after = batch.resume
                    for event in batch.events:
                        self._take(self._places[place], event)
                    if was_over and not batch.events:
                        return
            except SourceUnavailable:
                await asyncio.sleep(0.05)

    def _take(self, place: dict[str, str], event: Event) -> None:
        self.taken += 1
        found = msgspec.json.decode(event.body)
        kind = "replace" if self._mode == "latest" else found["metadata"]["operationType"]
        if kind == "truncate":
            place.clear()
        elif kind == "delete":
            assert event.key is not None
            assert place.pop(event.key) == found["previous"]["version"]
        else:
            row = found if self._mode == "latest" else found["current"]
            before = found.get("previous")
            assert event.key is not None
            assert self._mode == "latest" or place.get(event.key) == (before and before["version"])
            place[event.key] = row["version"]


def test_who_has_followed_a_feed_knows_what_is_in_the_table(server: Postgres) -> None:
    async def main() -> None:
        async with scene_of(server) as scene:
            await scene.make("id bigint PRIMARY KEY, version text")
            await scene.watch(PARTITIONS, all_versions=True)
            server.sql("CHECKPOINT")  # so that no crash undoes this
            followers = [Follower(scene, mode) for mode in ("all", "latest")]
            following = [asyncio.create_task(follower.run()) for follower in followers]
            writers = [Writer(scene, seed) for seed in range(WRITERS)]
            writing = asyncio.gather(*(writer.run() for writer in writers))
            for crash in range(1, CRASHES + 1):
                enough = crash * WRITERS * STEPS // (CRASHES + 1)
                while sum(writer.ended for writer in writers) < enough:  # noqa: ASYNC110 - each writer counts its own
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.restart)
            await writing
            for follower in followers:
                follower.ended.set()
            await asyncio.gather(*following)
            table = {str(key): version for key, version in server.sql(f"SELECT id, version FROM {scene.table}")}
            whole, latest = (follower.has for follower in followers)
            assert whole == table
            assert sum(follower.taken for follower in followers) > WRITERS * STEPS
            assert {key: latest.get(key) for key in table} == table, "it may also have what was deleted"

    asyncio.run(main())
