"""The embedded hub as its users see it: make one, open one, send, look at it, let it grow, trim it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from threading import Lock, Thread
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.embedded.hub.facts import HubFacts
from evenflow.embedded.hub.making import make_hub
from evenflow.embedded.hub.opened import OpenHub
from evenflow.embedded.hub.producer import RETRY_S, Producer
from evenflow.embedded.hub.wall import wall_us as system_wall_us
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
"""How long a locked file is waited for; below the time-to-live of a lease, so that it shows as what it is."""


ID_MOST = 200


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """One partition as it stands. `problem` says why nothing else is known."""

    id: str
    oldest: int | None = None
    newest: int | None = None
    """Before `oldest` when the partition is empty; -1 when it never held an event."""
    count: int = 0
    size_bytes: int = 0
    newest_at: datetime | None = None
    problem: str = ""


class HubInfo(Struct, frozen=True, kw_only=True):
    """A hub as it stands."""

    name: str
    path: str
    made: str
    created_at: datetime
    retention_s: float | None
    retention_bytes: int | None
    partitions: tuple[PartitionInfo, ...]


class Hub:
    """A durable partitioned log in a folder. Any number of processes may open it, write and read at once.

    If the folder is deleted and made again, this object goes on with the new one; until it is there again, every
    use raises `SourceUnavailable`.
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
        self._open = self._opened_anew()
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
        """Make a hub and open it. It keeps everything, or what is younger than `retention_s` and in all no more
        than about `retention_bytes` (each partition has an even share of them). Its name is the folder's.
        """
        folder = Path(path)
        facts = HubFacts(
            name=name or folder.absolute().name,
            made=token_hex(8),
            created_us=wall_us(),
            partitions=partitions,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
        )
        make_hub(folder, facts, busy_timeout_s)
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
        """One that sends again for about `retry_s` what may work the next time; with an `id`, one whose sends the
        application numbers.
        """
        if not isinstance(id, str) or not id.isprintable() or len(id) > ID_MOST:
            raise Misconfigured(f"A producer's id is printable text of at most {ID_MOST} characters, not {id!r:.100}.")
        return Producer(self.opened, id, retry_s)

    def batch(
        self, events: Sendable | Iterable[Sendable], key: str | None = None, partition: int | str | None = None
    ) -> Batch:
        """Events as a value that may be sent again: however often, they are stored once. Nothing is sent yet."""
        return self._producer.batch(events, key, partition)

    async def send(
        self, events: Batch | Sendable | Iterable[Sendable], key: str | None = None, partition: int | str | None = None
    ) -> tuple[Sent, ...]:
        """As `Producer.send`, once: what fails is the caller's to send again, with the error's `batch`."""
        return await self._producer.send(events, key, partition)

    def info(self) -> HubInfo:
        """A look at all partitions. Blocks for milliseconds."""
        opened = self.opened()
        facts = opened.facts(fresh=True)
        return HubInfo(
            name=facts.name,
            path=str(self.path),
            made=facts.made,
            created_at=_moment(facts.created_us),
            retention_s=facts.retention_s,
            retention_bytes=facts.retention_bytes,
            partitions=tuple([_partition_info(opened, number) for number in range(facts.partitions)]),
        )

    def add_partitions(self, more: int) -> int:
        """Add partitions; how many there are now. From then on, keys may go to other partitions than before."""
        if more < 1:
            raise Misconfigured(f"A hub can only grow: {more} is no number of partitions to add.")
        opened = self.opened()
        opened.grow(more)
        return opened.facts().partitions

    def trim(self) -> None:
        """Remove now what retention no longer keeps; writers do so by themselves now and then."""
        opened = self.opened()
        for number in range(opened.facts(fresh=True).partitions):
            while opened.trim(opened.log(number)):
                pass

    def close(self) -> None:
        """Waits for what is being written. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._open.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def opened(self) -> OpenHub:
        """The hub that is at this path now. For sources; it is a look at a file's metadata when nothing has changed."""
        if self._closed:
            raise Misconfigured(f"The hub at {self.path} was closed by this program. Open it again.")
        if self._open.gone:
            with self._lock:
                if self._open.gone:
                    self._replace()
        return self._open

    def _replace(self) -> None:
        try:
            new = self._opened_anew()
        except NotAHub as error:
            raise SourceUnavailable(
                f"The hub at {self.path} was deleted while it was in use. Restore it, make it again, or stop."
            ) from error
        old, self._open = self._open, new
        # It waits for what is being written to files that are gone, which is nobody's business any more.
        Thread(target=old.close, daemon=True).start()

    def _opened_anew(self) -> OpenHub:
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
        newest_at=_moment(state.enqueued_us) if state.next else None,
    )


def _moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / MICROSECONDS, UTC)
