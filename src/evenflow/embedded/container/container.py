"""The embedded container as its users see it: make one, open one, write, read, query, follow changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from evenflow.embedded.container import documents, shape
from evenflow.embedded.container.documents import Written
from evenflow.embedded.container.facts import ContainerFacts, make_container, new_rid, one_row
from evenflow.embedded.container.feed import Ask, Page, range_of, ranges_in
from evenflow.embedded.container.following import checked_mode, rows_of
from evenflow.embedded.container.keys import key_paths
from evenflow.embedded.container.opened import OpenContainer, slot_of
from evenflow.embedded.container.query import Query, read_query
from evenflow.embedded.container.search import Found, Mark, Scope, Search
from evenflow.embedded.container.wall import wall_us as system_wall_us
from evenflow.errors import Misconfigured, NotAContainer, RangeGone, SourceUnavailable
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from evenflow.embedded.container.feed import Mode
    from evenflow.embedded.container.keys import Key
    from evenflow.embedded.container.pen import Turn
    from evenflow.embedded.container.ranges import Range

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
"""How long a locked file is waited for; below the time-to-live of a lease, so that it shows as what it is."""
RETENTION_S = 7 * 24 * 3600.0
"""How long all versions and deletes are kept, if nobody says."""
PAGE_ITEMS = 100
PAGE_BYTES = 4 * 1024 * 1024
TRIM_EVERY_US = 1_000_000
"""How much time passes between two looks at what retention no longer keeps."""
LOOK_EVERY_S = 1.0
"""How long who waits for a change trusts the bell's silence: a writer may be killed between its commit and its ring."""


class ContainerInfo(Struct, frozen=True, kw_only=True):
    """A container as it stands."""

    name: str
    path: str
    rid: str
    created_at: datetime
    partition_key: tuple[str, ...]
    default_ttl_s: int | None
    retention_s: float | None
    ranges: tuple[Range, ...]
    documents: int


class Container:
    """A durable container of JSON documents in a folder. Any number of processes may open it, write and read at once.

    All calls block for milliseconds and may be made from any thread; what is written at the same time shares a commit.
    A write is durable when it returns. If the folder is deleted and made again, this object goes on with the new one;
    until it is there again, every use raises `SourceUnavailable`.
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
        self._trim_at_us = 0
        self._open = self._opened_anew()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        partition_key: str | Sequence[str] = "/id",
        ranges: int = 1,
        *,
        name: str | None = None,
        default_ttl_s: int | None = None,
        retention_s: float | None = RETENTION_S,
        properties: Mapping[str, Any] | None = None,
        database_rid: bytes = b"",
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        wall_us: Callable[[], int] = system_wall_us,
    ) -> Container:
        """Make a container and open it. Its name is the folder's.

        With a `default_ttl_s` documents expire so long after their last change, or after their own `ttl`; -1 lets only
        those expire that have a `ttl`. All versions and deletes are kept for `retention_s`; 0 keeps no log of them,
        None all. `properties` and `database_rid` are for whoever serves containers.
        """
        folder = Path(path)
        facts = ContainerFacts(
            name=name or folder.absolute().name,
            rid=new_rid(database_rid),
            created_us=wall_us(),
            keys=key_paths(partition_key),
            default_ttl_s=default_ttl_s,
            retention_s=retention_s,
            properties=properties or {},
        )
        make_container(folder, facts, ranges, busy_timeout_s)
        return cls(folder, busy_timeout_s=busy_timeout_s, wall_us=wall_us)

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Container({str(self.path)!r})"

    # Documents

    def insert(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Write a document that is not there yet; it as it is stored. `DocumentExists` when it is."""
        return self.put(documents.checked(document), "create").document

    def upsert(self, document: Mapping[str, Any], *, if_match: str | None = None) -> dict[str, Any]:
        """Write a document, whether or not it is there; it as it is stored.

        With an ETag, one that is there must have it still: otherwise `DocumentChanged`.
        """
        return self.put(documents.checked(document), "upsert", if_match).document

    def upsert_many(self, many: Iterable[Mapping[str, Any]]) -> int:
        """Write documents, whether or not they are there, all together or none; how many it were."""
        facts = self.opened().facts
        steps = [documents.put(documents.drafted(facts, documents.checked(one)), "upsert", None) for one in many]
        return self._write(lambda turn: len([step(turn) for step in steps]))

    def replace(self, document: Mapping[str, Any], *, if_match: str | None = None) -> dict[str, Any]:
        """Write a document that is there already; it as it is stored. `DocumentMissing` when it is not."""
        return self.put(documents.checked(document), "replace", if_match).document

    def delete(self, id: str, key: Key, *, if_match: str | None = None) -> None:
        """Delete a document. `DocumentMissing` when it is not there."""
        self.remove(id, key, if_match)

    def read(self, id: str, key: Key) -> dict[str, Any]:
        """The document. `DocumentMissing` when it is not there."""
        return self.get(id, key).document

    def query(
        self,
        query: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        key: Key | Sequence[Any] = (),
        range: str | None = None,
    ) -> Iterator[Any]:
        """All that a query finds, in the whole container, of one partition key (or a prefix of one), or in one range.

        Pages are read as the results are taken. `Unsupported` says what is more than this container can do.
        """
        opened = self.opened()
        read = read_query(query, parameters)
        scope = self.scope(key if key != () else None, range)
        return self._all(opened, read, scope)

    def feed(
        self,
        range: str,
        after: int | None = None,
        *,
        since: datetime | None = None,
        within: tuple[str, str] | None = None,
        mode: Mode = "latest",
        max_items: int = PAGE_ITEMS,
        max_bytes: int = PAGE_BYTES,
    ) -> Page:
        """A page of a range's changes after an LSN; None is the beginning.

        With `since`, only those since that time; with `within`, only those of a part of the range's EPKs. The mode
        "latest" tells the latest version of each document, "all" every version and every delete. `RangeGone` when the
        range was split or merged, `PositionGone` when retention has removed what comes next.
        """
        opened = self.opened()
        if max_items < 1:
            raise Misconfigured(f"max_items is at least 1, not {max_items}.")
        ask = Ask(
            range=range,
            after=after,
            within=within,
            since_us=0 if since is None else _microseconds(since),
            mode=checked_mode(opened.facts, mode),
            max_items=max_items,
            max_bytes=max_bytes,
        )
        return rows_of(opened, ask).page

    async def wait(self, range: str, after: int, timeout_s: float) -> bool:
        """Whether the range has changes after an LSN, or is gone; waits for it, woken by writers in any process."""
        opened = self.opened()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        if await asyncio.to_thread(self._has_news, range, after):
            return True
        rung = asyncio.Event()
        opened.bell.grow(slot_of(int(range)) + 1)
        end = opened.bell.watch(rung.set, slot_of(int(range)))
        try:
            while True:
                rung.clear()
                if await asyncio.to_thread(self._has_news, range, after):
                    return True
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    return False
                try:
                    async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                        await rung.wait()
                except TimeoutError:
                    pass
        finally:
            end()

    # Ranges

    def ranges(self) -> tuple[Range, ...]:
        """All ranges, in the order of the EPK space, which they cover without gaps."""
        with self.opened().reading() as connection:
            return tuple(ranges_in(connection))

    def split(self, range: str, at: str | None = None) -> tuple[Range, Range]:
        """Cut a range in two, in the middle of its hashes or at an EPK; the two that are there instead."""
        return self._write(shape.signed(self.opened().sign, shape.split(range, at)))

    def merge(self, first: str, second: str) -> Range:
        """Make one of two ranges that are neighbours; the one that is there instead."""
        return self._write(shape.signed(self.opened().sign, shape.merge(first, second)))

    def info(self) -> ContainerInfo:
        opened = self.opened()
        facts = opened.facts
        with opened.reading() as connection:
            (count,) = one_row(connection, "SELECT count(*) FROM documents")
            ranges = tuple(ranges_in(connection))
        return ContainerInfo(
            name=facts.name,
            path=str(self.path),
            rid=facts.rid_text,
            created_at=datetime.fromtimestamp(facts.created_us / MICROSECONDS, UTC),
            partition_key=facts.keys.paths,
            default_ttl_s=facts.default_ttl_s,
            retention_s=facts.retention_s,
            ranges=ranges,
            documents=count,
        )

    def trim(self) -> None:
        """Remove now what has expired and what retention no longer keeps; writers do so by themselves now and then."""
        while self._write(documents.expire) or self._write(documents.trim):
            pass

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._open.close()

    # For those who serve a container, or make a source of it

    def opened(self) -> OpenContainer:
        """The container that is at this path now. A look at a file's metadata when nothing has changed."""
        if self._closed:
            raise Misconfigured(f"The container at {self.path} was closed by this program. Open it again.")
        if self._open.gone:
            with self._lock:
                if self._open.gone:
                    self._replace()
        return self._open

    def put(self, document: Mapping[str, Any], way: documents.Way, if_match: str | None = None) -> Written:
        """Write a document that is JSON; as it is stored."""
        return self._write(documents.put(documents.drafted(self.opened().facts, document), way, if_match))

    def remove(self, id: str, key: Key, if_match: str | None = None) -> Written:
        """Delete a document; as it was."""
        return self._write(documents.delete(self._epk(key), id, if_match))

    def get(self, id: str, key: Key) -> Written:
        opened = self.opened()
        epk = self._epk(key)
        with opened.reading() as connection:
            stored = documents.live(connection, epk, id, self._wall_us())
        if stored is None:
            raise documents.missing(id)
        return Written(body=stored.body, etag=stored.etag, lsn=stored.lsn, range=str(stored.range))

    def id_of(self, rid: str) -> str:
        """The id of the document that has this `_rid`."""
        number = documents.number_of(self.opened().facts, rid)
        with self.opened().reading() as connection:
            row = connection.execute("SELECT id FROM documents WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise documents.missing(rid)
        return str(row[0])

    def scope(self, key: Key | None = None, range: str | None = None) -> Scope:
        """Where a query looks. `RangeGone` when the range was split or merged."""
        opened = self.opened()
        if range is not None:
            with opened.reading() as connection:
                found = range_of(connection, range)
            return Scope(found.min, found.max)
        return Scope() if key is None else Scope(*opened.facts.keys.within(opened.facts.keys.parts(key)))

    def page(
        self, query: Query, scope: Scope, mark: Mark, *, max_items: int = PAGE_ITEMS, max_bytes: int = PAGE_BYTES
    ) -> Found:
        """A page of what a query finds."""
        return Search(self.opened().reading, query, scope, self._wall_us()).page(mark, max_items, max_bytes)

    def _all(self, opened: OpenContainer, query: Query, scope: Scope) -> Iterator[Any]:
        mark: Mark | None = Mark()
        while mark is not None:
            found = Search(opened.reading, query, scope, self._wall_us()).page(mark, PAGE_ITEMS, PAGE_BYTES)
            yield from found.results
            mark = found.mark

    def _epk(self, key: Key) -> str:
        keys = self.opened().facts.keys
        parts = keys.parts(key)
        if len(parts) < len(keys.paths):
            raise Misconfigured(f"A document is named by its whole partition key: {', '.join(keys.paths)}.")
        return keys.epk(parts)

    def _write(self, step: Callable[[Turn], T]) -> T:
        opened = self.opened()
        written = opened.pen.write(step)
        now_us = self._wall_us()
        if now_us >= self._trim_at_us:
            self._trim_at_us = now_us + TRIM_EVERY_US
            opened.pen.write(documents.expire)
            if opened.pen.write(documents.trim):
                # There may be more, which the next write goes on with.
                self._trim_at_us = 0
        return written

    def _has_news(self, range: str, after: int) -> bool:
        try:
            with self.opened().reading() as connection:
                return range_of(connection, range).lsn > after
        except RangeGone:
            return True

    def _replace(self) -> None:
        try:
            new = self._opened_anew()
        except NotAContainer as error:
            raise SourceUnavailable(
                f"The container at {self.path} was deleted while it was in use. Restore it, make it again, or stop."
            ) from error
        old, self._open = self._open, new
        old.close()

    def _opened_anew(self) -> OpenContainer:
        return OpenContainer(self.path, busy_timeout_s=self._busy_timeout_s, wall_us=self._wall_us)


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise Misconfigured(f"The time {moment} has no time zone. Give it one, for instance tzinfo=UTC.")
    return round(moment.timestamp() * MICROSECONDS)
