"""Dead letters in a folder of JSON lines: one file for each partition of each group.

    FOLDER/NAMESPACE/HUB/GROUP/PARTITION.jsonl

Files are appended to under a lock, so that two processes never interleave, and synced before `file` returns. A line
without a line break at the end is an unconfirmed write that a crash interrupted: readers ignore it, and the next writer
truncates it. Any other line that is not a record is damage: readers report it after they have read all the rest
(`dead_letters/damage.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event as Pause
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from evenflow.errors import DeadLettersUnavailable, Misconfigured
from evenflow.local.database import sync_folder, translated
from evenflow.operate.dead_letters.damage import DamageReport
from evenflow.operate.dead_letters.encoding import decode, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from evenflow.model import DeadLetterRecord, Group, PartitionId
    from evenflow.operate.dead_letters.encoding import FiledRecord

T = TypeVar("T")

THREADS = 4
LOCK_TIMEOUT_S = 5.0
LOCK_RETRY_S = 0.005
READ_BYTES = 1 << 20
BACK_BYTES = 1 << 16
NAME_CHARS = 150
"""A longer name is cut and gets a checksum, because file systems have a limit. The records have the full names."""
SUFFIX = ".jsonl"


def from_url(url: str, *, create: bool = True) -> FolderDeadLetters:
    """`jsonl:FOLDER`. `create` makes a missing folder; readers do not."""
    folder = url.removeprefix("jsonl:")
    if not folder:
        raise Misconfigured("The URL jsonl: names no folder. Name one, for example jsonl:data/dead.")
    return FolderDeadLetters(folder, create=create)


class FolderDeadLetters:
    """Any number of processes may file and read at once."""

    def __init__(
        self, folder: str | os.PathLike[str], *, create: bool = True, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.folder = Path(folder)
        self._lock_timeout_s = lock_timeout_s
        with translated(self.folder, DeadLettersUnavailable):
            if create and not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
            if not self.folder.is_dir():
                raise Misconfigured(
                    f"There are no dead letters at {self.folder}: it is not a folder. Correct the path."
                )
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="evenflow-dead-letters")

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        lines = b"".join([encode(group, partition, record) + b"\n" for record in records])
        if lines:
            await self._on_thread(partial(self._append, self.path_of(group, partition), lines))

    async def read(self, group: Group, partition: PartitionId | None = None) -> AsyncIterator[DeadLetterRecord]:
        damage = DamageReport()
        for path in await self._on_thread(partial(self._paths, group, partition)):
            start = line = 0
            end = await self._on_thread(partial(self._end_of, path))
            while start < end:
                lines = await self._on_thread(partial(self._lines, path, start, end))
                for number, text in enumerate(lines, line + 1):
                    entry = _entry(path, number, text, damage)
                    if entry is not None and entry.group == group and partition in (None, entry.partition):
                        yield entry.record
                start += sum(map(len, lines))
                line += len(lines)
        damage.check()

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False)

    def path_of(self, group: Group, partition: PartitionId) -> Path:
        return self._folder_of(group) / f"{file_name(partition)}{SUFFIX}"

    def _folder_of(self, group: Group) -> Path:
        return self.folder / file_name(group.namespace) / file_name(group.hub) / file_name(group.name)

    def _paths(self, group: Group, partition: PartitionId | None) -> list[Path]:
        with translated(self.folder, DeadLettersUnavailable):
            self._check_there()
            if partition is None:
                return sorted(self._folder_of(group).glob(f"*{SUFFIX}"))
            path = self.path_of(group, partition)
            return [path] if path.exists() else []

    def _check_there(self) -> None:
        """A folder that disappears while in use is not created again: that would hide the loss of dead letters."""
        if not self.folder.is_dir():
            raise DeadLettersUnavailable(f"The folder {self.folder} no longer exists. Restore it, or correct the path.")

    def _append(self, path: Path, lines: bytes) -> None:
        with translated(path, DeadLettersUnavailable):
            self._check_there()
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as file:
                end = _end_of_lines(file)
                os.ftruncate(file, end)
                try:
                    _write(file, lines, end)
                    os.fsync(file)
                except BaseException:
                    # The write failed for the caller, so readers must not see it. If this fails, too, the next writer
                    # truncates the file.
                    os.ftruncate(file, end)
                    raise
            if end == 0:
                self._sync_names(path)

    def _sync_names(self, path: Path) -> None:
        """The first lines of a file are durable only when its name is, and the names of its parent folders."""
        for folder in path.parents:
            sync_folder(folder)
            if folder == self.folder.parent or folder == folder.parent:
                return

    def _end_of(self, path: Path) -> int:
        with (
            translated(path, DeadLettersUnavailable),
            self._locked(path, os.O_RDONLY, fcntl.LOCK_SH) as file,
        ):
            return _end_of_lines(file)

    def _lines(self, path: Path, start: int, end: int) -> list[bytes]:
        """Whole lines, about as many as one read should return. The file never changes before `end`."""
        lines, size_bytes = [], 0
        with translated(path, DeadLettersUnavailable), open(path, "rb") as file:
            file.seek(start)
            while size_bytes < min(READ_BYTES, end - start):
                line = file.readline()
                if not line.endswith(b"\n"):
                    raise DeadLettersUnavailable(f"{path} was truncated while it was read. Read it again.")
                lines.append(line)
                size_bytes += len(line)
        return lines

    @contextmanager
    def _locked(self, path: Path, flags: int, kind: int) -> Iterator[int]:
        file = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            self._lock(path, file, kind)
            yield file
        finally:
            # Closing the last handle releases the lock, also when the process is killed.
            os.close(file)

    def _lock(self, path: Path, file: int, kind: int) -> None:
        deadline_s = perf_counter() + self._lock_timeout_s
        pause = Pause()
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if perf_counter() >= deadline_s:
                    raise DeadLettersUnavailable(
                        f"{path} is locked by another process; gave up after {self._lock_timeout_s:g} s. Retrying; if "
                        "it persists, check whether that process is suspended or hangs."
                    ) from error
            pause.wait(LOCK_RETRY_S)

    async def _on_thread(self, call: Callable[[], T]) -> T:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, call)
        except RuntimeError as error:
            raise Misconfigured("These dead letters are closed. Open them again.") from error
        return await running


def file_name(name: str) -> str:
    """A name that every file system accepts, unique for each name (except for case, on some).

    Letters, digits and `_-~.` stay as they are; everything else, and a dot at the beginning, is percent-encoded.
    """
    safe = quote(name, safe="", errors="surrogatepass") or "%"
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) <= NAME_CHARS:
        return safe
    return f"{safe[:NAME_CHARS]}~{sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _end_of_lines(file: int) -> int:
    """Where the last whole line ends."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - BACK_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _write(file: int, lines: bytes, at: int) -> None:
    rest = memoryview(lines)
    while rest:
        written = os.pwrite(file, rest, at)
        rest, at = rest[written:], at + written


def _entry(path: Path, number: int, line: bytes, damage: DamageReport) -> FiledRecord | None:
    try:
        return decode(line)
    except ValueError as error:
        damage.found(f"{path}, line {number},", error)
        return None
