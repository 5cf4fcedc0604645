"""One open incarnation of a hub: its metadata, its bell, and for each partition a log to read and a writer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from evenflow.embedded.hub.buffers import Buffers
from evenflow.embedded.hub.log import PartitionLog, create_log
from evenflow.embedded.hub.metadata import HubMetadataFile, bell_path, partition_path
from evenflow.embedded.hub.writer import PartitionWriter
from evenflow.errors import SourceUnavailable
from evenflow.local.bell import Bell
from evenflow.local.database import translated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from evenflow.embedded.hub.metadata import HubMetadata

HUB_SLOT = 0
"""The bell's slot for the hub's metadata. Partition n has slot n + 1."""

WRITING_THREADS = 32


class OpenHub:
    """The open files of a hub. Once the folder is deleted or replaced, `is_deleted` is true and `Hub` opens another."""

    def __init__(self, folder: Path, *, busy_timeout_s: float, wall_us: Callable[[], int]) -> None:
        self.folder = folder
        self._busy_timeout_s = busy_timeout_s
        self._wall_us = wall_us
        self._file = HubMetadataFile(folder, busy_timeout_s)
        with translated(bell_path(folder), SourceUnavailable):
            self.bell = Bell(bell_path(folder), HUB_SLOT + 1)
        # Read the ring count before the metadata, so that a change in between is noticed later.
        self._heard = self.bell.value(HUB_SLOT)
        self._known = self._file.read()
        self.bell.grow(self._known.partitions + 1)
        self._lock = Lock()
        self._buffers = Buffers()
        self._threads = ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="evenflow-hub-write")
        self._logs: dict[int, PartitionLog] = {}
        self._writers: dict[int, tuple[PartitionWriter, PartitionLog]] = {}

    @property
    def is_deleted(self) -> bool:
        return self.bell.gone()

    def metadata(self, *, fresh: bool = False) -> HubMetadata:
        """The current metadata. Reads the file only if the hub's slot was rung, or if `fresh`."""
        heard = self.bell.value(HUB_SLOT)
        if fresh or heard != self._heard:
            with self._lock:
                self._known = self._file.read()
                self._heard = heard
                self.bell.grow(self._known.partitions + 1)
        return self._known

    def slot(self, number: int) -> int:
        return number + 1

    def log(self, number: int) -> PartitionLog:
        """The log of a partition, shared by all readers in this process."""
        with self._lock:
            if number not in self._logs:
                self._logs[number] = self._new_log(number)
            return self._logs[number]

    def writer(self, number: int) -> PartitionWriter:
        """The writer of a partition. It has its own log, so that readers never wait for the write lock."""
        found = self._writers.get(number)
        if found is None:
            with self._lock:
                log = self._new_log(number)
                found = self._writers.setdefault(number, (self._new_writer(number, log), log))
        return found[0]

    def trim(self, log: PartitionLog) -> bool:
        """Remove some of what retention no longer keeps. Returns whether there may be more."""
        metadata = self._known
        if metadata.retention_s is None and metadata.retention_bytes is None:
            return False
        before_us = None if metadata.retention_us is None else self._wall_us() - metadata.retention_us
        return log.trim(before_us, metadata.share_bytes)

    def grow(self, more: int) -> None:
        with self._lock:
            self._file.grow(more, self._create_log)
        self.bell.ring(HUB_SLOT)
        self.metadata(fresh=True)

    def close(self) -> None:
        """Wait for writes in progress, then close."""
        self._threads.shutdown(wait=True)
        for log in (*self._logs.values(), *(log for _, log in self._writers.values())):
            log.close()
        self.bell.close()
        self._file.close()

    def _create_log(self, number: int) -> None:
        create_log(partition_path(self.folder, number), self._known.made, number, self._busy_timeout_s)

    def _new_log(self, number: int) -> PartitionLog:
        path = partition_path(self.folder, number)
        return PartitionLog(path, self._known.made, number, self._busy_timeout_s, self._buffers)

    def _new_writer(self, number: int, log: PartitionLog) -> PartitionWriter:
        return PartitionWriter(
            str(number),
            log,
            self._threads,
            wall_us=self._wall_us,
            ring=lambda: self.bell.ring(self.slot(number)),
            trim=lambda: self.trim(log),
        )
