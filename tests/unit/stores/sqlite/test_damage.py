"""Files of a SQLite store that are damaged, too new or not ours: an error says what to do, and nothing is touched."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Corrupt, Misconfigured
from evenflow.stores.sqlite.store import SQLiteStore
from tests.unit.stores.scenes import GROUP, LEASES, PROGRESS, execute, filled, join, start

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", [LEASES, PROGRESS])
@pytest.mark.parametrize("harm", ["truncated", "overwritten"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str, harm: str) -> None:
    async def scenario() -> None:
        me, since = await filled(tmp_path)
        path = tmp_path / name
        if harm == "truncated":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(b"not a database " * 1000)
        before = path.read_bytes()
        store = SQLiteStore(tmp_path)
        with pytest.raises(Corrupt, match=f"{name} is damaged.*restore") as raised:
            await store.heartbeat(GROUP, me, since)
        advice = "leases are created again" if name == LEASES else "`start` setting"
        assert str(raised.value).count(advice) == 1
        await store.aclose()
        assert path.read_bytes() == before, "what is left can still be saved"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [LEASES, PROGRESS])
def test_a_file_of_a_newer_version_is_refused(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        await filled(tmp_path)
        execute(tmp_path / name, "PRAGMA user_version=99")
        store = SQLiteStore(tmp_path)
        with pytest.raises(Misconfigured, match=rf"{name} was written by a newer evenflow.*99"):
            await join(store)
        await store.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [LEASES, PROGRESS])
def test_another_applications_database_is_left_alone(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        execute(tmp_path / name, "CREATE TABLE theirs (x)")
        store = SQLiteStore(tmp_path)
        with pytest.raises(Misconfigured, match=f"{name} is a database, but not one of evenflow's"):
            await join(store)
        await store.aclose()
        assert execute(tmp_path / name, "SELECT name FROM sqlite_schema") == [("theirs",)]

    asyncio.run(scenario())


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").write_text("mine")
        store = SQLiteStore(tmp_path / "file")
        with pytest.raises(Misconfigured, match="is a file"):
            await join(store)
        with pytest.raises(Misconfigured, match="is a file"):
            store.watch(GROUP, "a", lambda: None)
        await store.aclose()

    asyncio.run(scenario())


def test_who_only_looks_makes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path / "typo", create=False)
        with pytest.raises(Misconfigured, match=r"There is no store at .*typo"):
            await store.groups()
        await store.aclose()
        assert not (tmp_path / "typo").exists()
        await filled(tmp_path / "store")
        store = SQLiteStore(tmp_path / "store", create=False)
        assert list(await store.groups()) == [GROUP]
        await store.aclose()

    asyncio.run(scenario())


def test_after_a_repair_the_store_continues_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        await filled(tmp_path)
        os.rename(tmp_path / LEASES, tmp_path / "good")
        (tmp_path / LEASES).write_bytes(b"not a database " * 1000)
        store = SQLiteStore(tmp_path)
        with pytest.raises(Corrupt):
            await store.heartbeat(GROUP, start("a"), None)
        os.replace(tmp_path / "good", tmp_path / LEASES)
        assert [lease.partition for lease in (await store.heartbeat(GROUP, start("a"), None)).leases] == ["0"]
        await store.aclose()

    asyncio.run(scenario())
