"""Document operations with ETags, LSNs and query positions: what a server of containers needs beyond `Container`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.embedded.container import documents
from evenflow.embedded.container.documents import WriteResult
from evenflow.embedded.container.feed import range_of
from evenflow.embedded.container.query_execution import EpkInterval, QueryExecution, QueryPage, QueryPosition
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import apsw

    from evenflow.embedded.container.handle import ContainerHandle
    from evenflow.embedded.container.keys import Key
    from evenflow.embedded.container.query import Query

    ReadTransactions: TypeAlias = Callable[[], AbstractContextManager[apsw.Connection]]

PAGE_ITEMS = 100
PAGE_BYTES = 4 * 1024 * 1024


class DocumentOperations:
    """Reads, writes and queries the documents of one container. Calls block for milliseconds."""

    def __init__(self, handle: ContainerHandle) -> None:
        self._handle = handle

    def put(self, document: Mapping[str, Any], mode: documents.WriteMode, if_match: str | None = None) -> WriteResult:
        """Write a JSON document and return it as it is stored."""
        draft = documents.draft_of(self._handle.opened().metadata, document)
        return self._handle.write(documents.put(draft, mode, if_match))

    def remove(self, id: str, key: Key, if_match: str | None = None) -> WriteResult:
        """Delete a document and return it as it was."""
        return self._handle.write(documents.delete(self._epk(key), id, if_match))

    def get(self, id: str, key: Key) -> WriteResult:
        """The stored document. `DocumentMissing` if there is none."""
        opened = self._handle.opened()
        epk = self._epk(key)
        with opened.reading() as connection:
            stored = documents.live(connection, epk, id, self._handle.wall_us())
        if stored is None:
            raise documents.missing(id)
        return WriteResult(body=stored.body, etag=stored.etag, lsn=stored.lsn, range=str(stored.range))

    def id_of(self, rid: str) -> str:
        """The id of the document with this `_rid`."""
        opened = self._handle.opened()
        number = documents.number_of(opened.metadata, rid)
        with opened.reading() as connection:
            row = connection.execute("SELECT id FROM documents WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise documents.missing(rid)
        return str(row[0])

    def interval(self, key: Key | None = None, range: str | None = None) -> EpkInterval:
        """The part of the EPK space to query. `RangeGone` if the range was split or merged."""
        opened = self._handle.opened()
        if range is not None:
            with opened.reading() as connection:
                found = range_of(connection, range)
            return EpkInterval(found.min, found.max)
        keys = opened.metadata.keys
        return EpkInterval() if key is None else EpkInterval(*keys.within(keys.parts(key)))

    def page(
        self,
        query: Query,
        interval: EpkInterval,
        position: QueryPosition,
        *,
        max_items: int = PAGE_ITEMS,
        max_bytes: int = PAGE_BYTES,
    ) -> QueryPage:
        """The next page of a query's results after a position."""
        execution = QueryExecution(self._handle.opened().reading, query, interval, self._handle.wall_us())
        return execution.page(position, max_items, max_bytes)

    def results(self, query: Query, interval: EpkInterval) -> Iterator[Any]:
        """All results of a query, read page by page from the container that is open now."""
        return self._results(self._handle.opened().reading, query, interval)

    def _results(self, reading: ReadTransactions, query: Query, interval: EpkInterval) -> Iterator[Any]:
        position: QueryPosition | None = QueryPosition()
        while position is not None:
            execution = QueryExecution(reading, query, interval, self._handle.wall_us())
            page = execution.page(position, PAGE_ITEMS, PAGE_BYTES)
            yield from page.results
            position = page.position

    def _epk(self, key: Key) -> str:
        keys = self._handle.opened().metadata.keys
        parts = keys.parts(key)
        if len(parts) < len(keys.paths):
            raise Misconfigured(
                f"The partition key {key!r} has {len(parts)} of {len(keys.paths)} parts. A document needs all of them: "
                f"{', '.join(keys.paths)}."
            )
        return keys.epk(parts)
