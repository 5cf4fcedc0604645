"""Executes a query page by page, in short read transactions.

Without ORDER BY, documents come in the order of their effective partition key and id. With ORDER BY, each page selects
the next documents after the last page, so memory never holds more than a page.
"""

from __future__ import annotations

import heapq
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from evenflow.embedded.container.documents import live
from evenflow.embedded.container.keys import EPK_MAX, EPK_MIN, MISSING
from evenflow.embedded.container.metadata import all_rows
from evenflow.embedded.container.values import order
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import apsw

    from evenflow.embedded.container.expressions import Document
    from evenflow.embedded.container.query import Query

READ_AT_ONCE = 256
SCANNED_MAX = 10_000
"""A page ends after scanning this many documents, even if few match, so that the caller gets a response in time."""

_ROWS = """
SELECT epk, id, body FROM documents
WHERE (epk, id) > (:epk, :id) AND epk >= :low AND epk < :high AND (expires_s IS NULL OR expires_s > :now)
    {only} ORDER BY epk, id LIMIT :count
"""
_ANY, _ONE_ID = _ROWS.format(only=""), _ROWS.format(only="AND id = :only")


class QueryPosition(Struct, frozen=True, array_like=True):
    """Where the next page continues: after this document, with this many matches skipped and returned so far."""

    epk: str = EPK_MIN
    id: str = ""
    passed: int = 0
    answered: int = 0
    ordered_by: list[Any] = []
    """The last document's value of the ORDER BY path, as a list of one value, or empty if it is missing."""


class QueryPage(Struct, frozen=True):
    results: list[Any]
    position: QueryPosition | None
    """Where the next page continues; None if this was the last."""
    scanned: int


class EpkInterval(NamedTuple):
    """An interval of EPKs: inclusive lower bound, exclusive upper bound."""

    low: str = EPK_MIN
    high: str = EPK_MAX


class _Match(NamedTuple):
    """The location of a matching document, and its value of the ORDER BY path."""

    epk: str
    id: str
    ordered_by: Any


class QueryExecution:
    """Produces one page of a query's results."""

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[apsw.Connection]],
        query: Query,
        interval: EpkInterval,
        now_us: int,
    ) -> None:
        self._reading, self._query, self._interval, self._now_us = reading, query, interval, now_us
        self._scanned = 0
        self._results: list[Any] = []
        self._bytes_left = 0
        self._passed = self._answered = 0

    def page(self, position: QueryPosition, max_items: int, max_bytes: int) -> QueryPage:
        self._bytes_left = max_bytes
        self._passed, self._answered = position.passed, position.answered
        if self._query.is_count:
            return QueryPage([sum(1 for _ in self._all_matches())], None, self._scanned)
        if self._is_done:
            return QueryPage([], None, 0)
        last = (
            self._fill_in_key_order(position, max_items)
            if self._query.order is None
            else self._fill_in_query_order(position, max_items)
        )
        if last is not None and not self._is_done:
            ordered_by = [] if last.ordered_by is MISSING else [last.ordered_by]
            return QueryPage(
                self._results, QueryPosition(last.epk, last.id, self._passed, self._answered, ordered_by), self._scanned
            )
        return QueryPage(self._results, None, self._scanned)

    def _fill_in_key_order(self, position: QueryPosition, max_items: int) -> _Match | None:
        """Fill the page. Returns where it ended, or None if there is no more."""
        for epk, id, document in self._rows(position):
            if self._is_match(document):
                self._add_match(document)
            if self._is_full(max_items) or self._scanned >= SCANNED_MAX:
                return _Match(epk, id, MISSING)
        return None

    def _fill_in_query_order(self, position: QueryPosition, max_items: int) -> _Match | None:
        sorting = self._query.order
        assert sorting is not None

        def compare(one: _Match, other: _Match) -> int:
            found = order(one.ordered_by, other.ordered_by)
            ends = one[:2], other[:2]
            return (-found if sorting.descending else found) or (ends[0] > ends[1]) - (ends[0] < ends[1])

        hits = (_Match(epk, id, sorting.value(document)) for epk, id, document in self._all_matches())
        if position.id:
            behind = _Match(position.epk, position.id, position.ordered_by[0] if position.ordered_by else MISSING)
            hits = (hit for hit in hits if compare(hit, behind) > 0)
        first = heapq.nsmallest(max_items, hits, cmp_to_key(compare))
        for number, hit in enumerate(first, 1):
            with self._reading() as connection:
                stored = live(connection, hit.epk, hit.id, self._now_us)
            # The document may have been deleted since the scan.
            if stored is not None:
                self._add_match(msgspec.json.decode(stored.body))
            if number == max_items or self._is_full(max_items):
                return hit
        return None

    def _add_match(self, document: Document) -> None:
        """Add a match to the results, unless OFFSET skips it."""
        if self._passed < self._query.offset:
            self._passed += 1
        elif not self._is_done:
            self._answered += 1
            value = self._query.result(document)
            if value is not MISSING:
                self._results.append(value)
                self._bytes_left -= len(msgspec.json.encode(value))

    @property
    def _is_done(self) -> bool:
        return self._query.limit is not None and self._answered >= self._query.limit

    def _is_full(self, max_items: int) -> bool:
        return self._is_done or len(self._results) >= max_items or self._bytes_left <= 0

    def _all_matches(self) -> Iterator[tuple[str, str, Document]]:
        return (row for row in self._rows(QueryPosition()) if self._is_match(row[2]))

    def _is_match(self, document: Document) -> bool:
        return self._query.matches is None or self._query.matches(document) is True

    def _rows(self, position: QueryPosition) -> Iterator[tuple[str, str, Document]]:
        values = {"low": self._interval.low, "high": self._interval.high, "count": READ_AT_ONCE, "only": self._query.id}
        values |= {"now": self._now_us // MICROSECONDS, "epk": position.epk, "id": position.id}
        text = _ANY if self._query.id is None else _ONE_ID
        while True:
            with self._reading() as connection:
                rows = all_rows(connection, text, values)
            for epk, id, body in rows:
                self._scanned += 1
                yield epk, id, msgspec.json.decode(body)
            if len(rows) < READ_AT_ONCE:
                return
            values |= {"epk": rows[-1][0], "id": rows[-1][1]}
