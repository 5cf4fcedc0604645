"""`evenflow import-checkpoints` from a folder of lease blobs: what it imports, and its errors of one line."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from evenflow import Event, Hub
from evenflow.cli.app import run
from evenflow.model import Group
from evenflow.stores.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = 10
FLAGS = ["--store", "sqlite:leases", "--source", "hub:homes", "--group", "alerts"]


def lease(partition: str, sequence: int) -> str:
    facts = {"PartitionId": partition, "Owner": "old-host", "Token": "t", "Epoch": 7}
    return json.dumps({**facts, "Offset": str(sequence), "SequenceNumber": sequence})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub of ten events in each partition; the command runs beside it."""

    async def fill() -> None:
        async with Hub(tmp_path / "homes") as hub:
            for partition in "01":
                await hub.send([Event(b"x")] * EVENTS, partition=partition)

    Hub.create(tmp_path / "homes", 2).close()
    asyncio.run(fill())
    (tmp_path / "copies").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the program."""
    monkeypatch.setattr(sys, "argv", ["evenflow", "import-checkpoints", *arguments, *FLAGS])
    with pytest.raises(SystemExit) as ended:
        run()
    return int(ended.value.code or 0)


def test_from_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition, sequence in (("0", 2), ("1", 9)):
        (folder / "copies" / partition).write_text(lease(partition, sequence))
    assert call(monkeypatch, "copies", "--yes") == 0
    assert asyncio.run(_offsets(folder)) == {"0": "2", "1": "9"}


async def _offsets(folder: Path) -> dict[str, str]:
    store = SQLiteStore(folder / "leases")
    try:
        return {
            one.partition: one.position.offset for one in await store.checkpoints(Group("local", "homes", "alerts"))
        }
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("where", "files", "reported"),
    [
        ("missing", {}, "There is no folder missing"),
        ("copies", {}, "There are no leases of a host"),
        ("copies", {"0": "no json"}, "is not a lease of an EventProcessorHost"),
        ("copies", {"0": lease("1", 2)}, "contains the lease of partition '1'"),
        ("copies", {"5": lease("5", 2)}, "There is no partition 5"),
        ("copies", {"0": lease("0", 4_000)}, "Is this the hub that the host read?"),
        ("copies", {"0": lease("0", 2).replace('"Offset": "2"', '"Offset": "3"')}, "this offset is event 3"),
        ("azblob://x/y", {}, "azblob"),
    ],
)
def test_an_error_is_reported_in_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
    files: dict[str, str],
    reported: str,
) -> None:
    for name, text in files.items():
        (folder / "copies" / name).write_text(text)
    assert call(monkeypatch, where, "--yes") == 1
    err = capsys.readouterr().err
    assert reported in err
    assert err.count("\n") == 1


def test_the_name_of_an_owner_cannot_control_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "copies" / "0").write_text(lease("0", 2).replace("old-host", "\\u001b[2Jhost"))
    assert call(monkeypatch, "copies", "--dry-run") == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "\\x1b[2Jhost" in shown.out
