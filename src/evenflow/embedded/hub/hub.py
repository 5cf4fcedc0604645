"""The public API of the embedded hub: create, open, send, inspect, add partitions, trim."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from threading import Lock, Thread
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.embedded.hub.clock import wall_us as system_wall_us
from evenflow.embedded.hub.creation import create_hub
from evenflow.embedded.hub.metadata import HubMetadata
from evenflow.embedded.hub.open_hub import OpenHub
from evenflow.embedded.hub.producer import RETRY_S, Producer
from evenflow.errors import EvenflowError, Misconfigured, NotAHub, SourceUnavailable
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from evenflow.embedded.hub.batch import Batch
    from evenflow.embedded.hub.producer import Sendable
    from evenflow.embedded.hub.writer import Sent

BUSY_TIMEOUT_S = 5.0
"""How long to wait for a locked file. Below a lease's time-to-live, so that the lock is reported as the cause."""

PRODUCER_ID_CHARACTERS_MAX = 200


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """The current state of one partition. `problem` says why it could not be read."""

    id: str
    oldest: int | None = None
    newest: int | None = None
    """`oldest - 1` if the partition is empty; -1 if it never held an event."""
    count: int = 0
    size_bytes: int = 0
    newest_at: datetime | None = None
    problem: str = ""


class HubInfo(Struct, frozen=True, kw_only=True):
    """The current state of a hub."""

    name: str
    path: str
    made: str
    created_at: datetime
    retention_s: float | None
    retention_bytes: int | None
    partitions: tuple[PartitionInfo, ...]


class Hub:
    """A durable partitioned log in a folder. Any number of processes may open it, write and read concurrently.

    If the folder is deleted and created again, this object switches to the new hub. Until then, every call raises
    `SourceUnavailable`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        wall_us: Callable[[], int] = system_wall_us,
    ) -> None:
        self.path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._wall_us = wall_us
        self._lock = Lock()
        self._closed = False
        self._open = self._open_folder()
        self._producer = Producer(self.opened)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        partitions: int = 16,
        *,
        name: str | None = None,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        wall_us: Callable[[], int] = system_wall_us,
    ) -> Hub:
        """Create a hub and open it. Its name defaults to the folder's.

        By default it keeps all events. `retention_s` limits their age, and `retention_bytes` their total size,
        approximately: each partition may use an even share.
        """
        folder = Path(path)
        metadata = HubMetadata(
            name=name or folder.absolute().name,
            made=token_hex(8),
            created_us=wall_us(),
            partitions=partitions,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
        )
        create_hub(folder, metadata, busy_timeout_s)
        return cls(folder, busy_timeout_s=busy_timeout_s, wall_us=wall_us)

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Hub:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Hub({str(self.path)!r})"

    def producer(self, id: str = "", *, retry_s: float = RETRY_S) -> Producer:
        """A producer that retries transient failures for about `retry_s`. With an `id`, the application numbers its
        sends.
        """
        if not isinstance(id, str) or not id.isprintable() or len(id) > PRODUCER_ID_CHARACTERS_MAX:
            raise Misconfigured(
                f"A producer's id must be printable text of at most {PRODUCER_ID_CHARACTERS_MAX} characters, "
                f"not {id!r:.100}."
            )
        return Producer(self.opened, id, retry_s)

    def batch(
        self, events: Sendable | Iterable[Sendable], key: str | None = None, partition: int | str | None = None
    ) -> Batch:
        """A batch of these events, which can be sent any number of times and is stored once. Sends nothing yet."""
        return self._producer.batch(events, key, partition)

    async def send(
        self, events: Batch | Sendable | Iterable[Sendable], key: str | None = None, partition: int | str | None = None
    ) -> tuple[Sent, ...]:
        """Like `Producer.send`, without retries. After a failure, the caller may send the error's `batch` again."""
        return await self._producer.send(events, key, partition)

    def info(self) -> HubInfo:
        """Read the state of all partitions. Blocks for milliseconds."""
        opened = self.opened()
        metadata = opened.metadata(fresh=True)
        return HubInfo(
            name=metadata.name,
            path=str(self.path),
            made=metadata.made,
            created_at=_utc(metadata.created_us),
            retention_s=metadata.retention_s,
            retention_bytes=metadata.retention_bytes,
            partitions=tuple([_partition_info(opened, number) for number in range(metadata.partitions)]),
        )

    def add_partitions(self, more: int) -> int:
        """Add partitions and return the new count. From then on, keys may map to other partitions than before."""
        if more < 1:
            raise Misconfigured(f"Cannot add {more} partitions: a hub can only grow. Add 1 or more.")
        opened = self.opened()
        opened.grow(more)
        return opened.metadata().partitions

    def trim(self) -> None:
        """Remove what retention no longer keeps. Writers also do this periodically."""
        opened = self.opened()
        for number in range(opened.metadata(fresh=True).partitions):
            while opened.trim(opened.log(number)):
                pass

    def close(self) -> None:
        """Wait for writes in progress, then close. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._open.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def opened(self) -> OpenHub:
        """The hub that is at this path now. For sources; costs one look at a file's metadata if nothing has changed."""
        if self._closed:
            raise Misconfigured(f"The hub at {self.path} is closed. Open it again.")
        if self._open.is_deleted:
            with self._lock:
                if self._open.is_deleted:
                    self._replace()
        return self._open

    def _replace(self) -> None:
        try:
            new = self._open_folder()
        except NotAHub as error:
            raise SourceUnavailable(
                f"The hub at {self.path} was deleted while it was in use. Restore it, create it again, or stop."
            ) from error
        old, self._open = self._open, new
        # Closing waits for writes to files that are deleted. No caller needs to wait for those.
        Thread(target=old.close, daemon=True).start()

    def _open_folder(self) -> OpenHub:
        return OpenHub(self.path, busy_timeout_s=self._busy_timeout_s, wall_us=self._wall_us)


def _partition_info(opened: OpenHub, number: int) -> PartitionInfo:
    try:
        state = opened.log(number).state()
    except EvenflowError as error:
        return PartitionInfo(id=str(number), problem=str(error))
    return PartitionInfo(
        id=str(number),
        oldest=state.oldest,
        newest=state.next - 1,
        count=state.next - state.oldest,
        size_bytes=state.size_bytes,
        newest_at=_utc(state.enqueued_us) if state.next else None,
    )


def _utc(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / MICROSECONDS, UTC)
