"""JSON lines: what a crash, a neighbour or a disk may do to them, and where they are."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import DeadLettersUnavailable, Misconfigured, StorageFull
from evenflow.model import DeadLetter, Event, Group
from evenflow.operate.dead_letters import folder as folder_module
from evenflow.operate.dead_letters.folder import NAME_CHARS, FolderDeadLetters, file_name
from evenflow.testing.dead_letters_contract import ODD_NAMES, numbered, read
from tests.unit.operate.dead_letters.damage import until_damage

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.model import DeadLetterRecord

GROUP = Group("local", "homes", "alerts")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dead"


def file(folder: Path, *records: DeadLetterRecord, partition: str = "0") -> None:
    async def main() -> None:
        dead_letters = FolderDeadLetters(folder)
        await dead_letters.file(GROUP, partition, records)
        await dead_letters.aclose()

    asyncio.run(main())


def found(folder: Path, partition: str | None = None) -> list[DeadLetterRecord]:
    async def main() -> list[DeadLetterRecord]:
        dead_letters = FolderDeadLetters(folder, create=False)
        try:
            return await read(dead_letters, GROUP, partition)
        finally:
            await dead_letters.aclose()

    return asyncio.run(main())


def test_a_file_a_group_and_partition_that_people_can_read(folder: Path) -> None:
    event = Event("Tür auf".encode(), "home-7", {"n": 1}, 5, 1_700_000_000_000_001)
    file(folder, DeadLetter(partition="0", event=event, reason="poison", error="no"))
    (line,) = (folder / "local/homes/alerts/0.jsonl").read_text().splitlines()
    assert line.startswith('{"record": "dead_letter", "group": ["local", "homes", "alerts"], "partition": "0"')
    known = json.loads(line)
    assert (known["body"], known["enqueued_at"]) == ("Tür auf", "2023-11-14T22:13:20.000001Z")
    assert "Tür auf" in line


def test_a_torn_line_is_passed_over_and_cut_off_by_the_next_writer(folder: Path) -> None:
    file(folder, *numbered(0, 2))
    path = folder / "local/homes/alerts/0.jsonl"
    whole = path.read_bytes()
    for torn in (whole[:30], whole.splitlines()[0], b"\x00" * 200_000):
        path.write_bytes(whole + torn)
        assert found(folder) == numbered(0, 2)
    file(folder, *numbered(2, 3))
    assert found(folder) == numbered(0, 3)
    assert [json.loads(line)["sequence"] for line in path.read_bytes().splitlines()] == [0, 1, 2]


def test_a_file_that_is_all_torn_is_empty(folder: Path) -> None:
    file(folder, *numbered(0, 1))
    path = folder / "local/homes/alerts/0.jsonl"
    path.write_bytes(path.read_bytes()[:50])
    assert found(folder) == []
    file(folder, *numbered(1, 2))
    assert found(folder) == numbered(1, 2)


@pytest.mark.parametrize(
    "damage", [b"nonsense", b"", b"[1]", b'{"record": "dead_letter"}', b"\xff\xfe", b'{"record": 7}']
)
def test_a_damaged_line_is_reported_after_all_the_rest(folder: Path, damage: bytes) -> None:
    file(folder, *numbered(0, 3))
    file(folder, *numbered(3, 4, "1"), partition="1")
    path = folder / "local/homes/alerts/0.jsonl"
    first, _, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage, third, b""]))

    async def main() -> list[DeadLetterRecord]:
        dead_letters = FolderDeadLetters(folder)
        try:
            return await until_damage(dead_letters, r"alerts/0\.jsonl, line 2, is damaged")
        finally:
            await dead_letters.aclose()

    assert asyncio.run(main()) == [*numbered(0, 1), *numbered(2, 3), *numbered(3, 4, "1")]
    file(folder, *numbered(4, 5))
    assert found(folder, "1") == numbered(3, 4, "1"), "a neighbour's damage is none of ours"


def test_a_record_of_a_later_version_is_passed_over(folder: Path) -> None:
    file(folder, *numbered(0, 1))
    path = folder / "local/homes/alerts/0.jsonl"
    known = json.loads(path.read_bytes())
    lines = [known | {"mood": "grim"}, {"record": "postcard", "to": "you"}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert found(folder) == numbered(0, 1)


WRITER = """
import asyncio, sys
from evenflow.operate.dead_letters.folder import FolderDeadLetters
from evenflow.model import Group
from evenflow.testing.dead_letters_contract import numbered

async def main(folder, start):
    dead_letters = FolderDeadLetters(folder)
    for number in range(start, start + 300, 3):
        more = numbered(number, number + 3, traceback="x" * 9000)
        await dead_letters.file(Group("local", "homes", "alerts"), "0", more)
    await dead_letters.aclose()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.process
def test_processes_never_interleave(folder: Path) -> None:
    starts = range(0, 900, 300)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(start)]) for start in starts]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    numbers = [record.event.sequence or 0 for record in found(folder) if isinstance(record, DeadLetter)]
    assert len(numbers) == 900
    assert all(numbers[at : at + 3] == list(range(numbers[at], numbers[at] + 3)) for at in range(0, 900, 3))
    for start in starts:
        mine = [number for number in numbers if start <= number < start + 300]
        assert mine == sorted(mine)


def test_it_is_durable_before_it_returns_and_so_are_new_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), folder.parent))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    file(folder, *numbered(0, 1))
    group = "dead/local/homes/alerts"
    assert synced == [f"{group}/0.jsonl", group, "dead/local/homes", "dead/local", "dead", "."]
    synced.clear()
    file(folder, *numbered(1, 2))
    assert synced == [f"{group}/0.jsonl"]


def test_what_did_not_fit_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file(folder, *numbered(0, 1))
    before = (folder / "local/homes/alerts/0.jsonl").read_bytes()
    pwrite = os.pwrite

    def half(descriptor: int, data: bytes, at: int) -> int:
        if at > len(before):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data[: len(data) // 2], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(StorageFull, match="is full"):
            file(folder, *numbered(1, 5))
    assert (folder / "local/homes/alerts/0.jsonl").read_bytes() == before
    file(folder, *numbered(1, 2))
    assert found(folder) == numbered(0, 2)


def test_a_held_lock_is_waited_for_and_then_reported(folder: Path) -> None:
    file(folder, *numbered(0, 1))
    path = folder / "local/homes/alerts/0.jsonl"

    async def main() -> None:
        dead_letters = FolderDeadLetters(folder, lock_timeout_s=0.05)
        with path.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(DeadLettersUnavailable, match="is locked by another process"):
                await dead_letters.file(GROUP, "0", numbered(1, 2))
            with pytest.raises(DeadLettersUnavailable, match="is locked by another process"):
                await read(dead_letters, GROUP)
        await dead_letters.file(GROUP, "0", numbered(1, 2))
        await dead_letters.aclose()

    asyncio.run(main())
    assert found(folder) == numbered(0, 2)


def test_a_folder_that_goes_away_is_waited_for_and_not_made_again(folder: Path) -> None:
    async def main() -> None:
        dead_letters = FolderDeadLetters(folder)
        folder.rename(folder.with_name("elsewhere"))
        with pytest.raises(DeadLettersUnavailable, match="no longer exists"):
            await dead_letters.file(GROUP, "0", numbered(0, 1))
        with pytest.raises(DeadLettersUnavailable, match="no longer exists"):
            await read(dead_letters, GROUP)
        assert not folder.exists()
        await dead_letters.aclose()
        with pytest.raises(Misconfigured, match="closed"):
            await dead_letters.file(GROUP, "0", numbered(0, 1))

    asyncio.run(main())


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for given in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Misconfigured):
            FolderDeadLetters(given)
    with pytest.raises(Misconfigured, match="There are no dead letters at"):
        FolderDeadLetters(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()


def test_file_names_are_safe_and_unique() -> None:
    names = [file_name(name) for name in ODD_NAMES]
    assert len(set(names)) == len(names)
    for name in names:
        assert name
        assert not name.startswith(".")
        assert name.isascii()
        assert not set(name) & set('/\\\0:*?"<>| ')
        assert len(name) <= NAME_CHARS + 17
    assert file_name("home-7_x.y") == "home-7_x.y"


def test_lines_longer_than_a_look_back_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "BACK_BYTES", 7)
    monkeypatch.setattr(folder_module, "READ_BYTES", 11)
    file(folder, *numbered(0, 5))
    path = folder / "local/homes/alerts/0.jsonl"
    path.write_bytes(path.read_bytes() + b"torn")
    file(folder, *numbered(5, 6))
    assert found(folder) == numbered(0, 6)
