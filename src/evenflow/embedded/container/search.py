"""What a query finds: pages of results, and from where to go on. Documents are read in short transactions.

Without an order they come as they lie, by effective partition key and id. With one, a page is the first few of all that
come after the last page: whatever the query, no more is kept in memory than a page.
"""

from __future__ import annotations

import heapq
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from evenflow.embedded.container.documents import live
from evenflow.embedded.container.facts import all_rows
from evenflow.embedded.container.keys import EPK_MAX, EPK_MIN, MISSING
from evenflow.embedded.container.values import order
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import apsw

    from evenflow.embedded.container.query import Document, Query

READ_AT_ONCE = 256
LOOKED_AT_MAX = 10_000
"""After so many documents a page ends, however few of them match: whoever asks gets an answer in time."""

_ROWS = """
SELECT epk, id, body FROM documents
WHERE (epk, id) > (:epk, :id) AND epk >= :low AND epk < :high AND (expires_s IS NULL OR expires_s > :now)
    {only} ORDER BY epk, id LIMIT :count
"""
_ANY, _ONE_ID = _ROWS.format(only=""), _ROWS.format(only="AND id = :only")


class Mark(Struct, frozen=True, array_like=True):
    """Where a search stands: behind which document, and how many matches were passed over and answered."""

    epk: str = EPK_MIN
    id: str = ""
    passed: int = 0
    answered: int = 0
    ordered_by: list[Any] = []
    """What the last document has where the order looks: one value, or none."""


class Found(Struct, frozen=True):
    results: list[Any]
    mark: Mark | None
    """From where to go on; None: there is no more."""
    looked_at: int


class Scope(NamedTuple):
    """Where to look: from here to before there in the space of EPKs."""

    low: str = EPK_MIN
    high: str = EPK_MAX


class _Hit(NamedTuple):
    """A document that matches, by where it is, and what it has where the order looks."""

    epk: str
    id: str
    ordered_by: Any


class Search:
    """One page of one query."""

    def __init__(
        self, reading: Callable[[], AbstractContextManager[apsw.Connection]], query: Query, scope: Scope, now_us: int
    ) -> None:
        self._reading, self._query, self._scope, self._now_us = reading, query, scope, now_us
        self._looked_at = 0
        self._results: list[Any] = []
        self._room_bytes = 0
        self._passed = self._answered = 0

    def page(self, mark: Mark, max_items: int, max_bytes: int) -> Found:
        self._room_bytes = max_bytes
        self._passed, self._answered = mark.passed, mark.answered
        if self._query.is_count:
            return Found([sum(1 for _ in self._matching())], None, self._looked_at)
        if self._is_done:
            return Found([], None, 0)
        last = self._as_they_lie(mark, max_items) if self._query.order is None else self._in_order(mark, max_items)
        if last is not None and not self._is_done:
            ordered_by = [] if last.ordered_by is MISSING else [last.ordered_by]
            return Found(
                self._results, Mark(last.epk, last.id, self._passed, self._answered, ordered_by), self._looked_at
            )
        return Found(self._results, None, self._looked_at)

    def _as_they_lie(self, mark: Mark, max_items: int) -> _Hit | None:
        """Fill the page; where it ended, if there may be more."""
        for epk, id, document in self._rows(mark):
            if self._fits(document):
                self._take(document)
            if self._is_full(max_items) or self._looked_at >= LOOKED_AT_MAX:
                return _Hit(epk, id, MISSING)
        return None

    def _in_order(self, mark: Mark, max_items: int) -> _Hit | None:
        sorting = self._query.order
        assert sorting is not None

        def compare(one: _Hit, other: _Hit) -> int:
            found = order(one.ordered_by, other.ordered_by)
            ends = one[:2], other[:2]
            return (-found if sorting.descending else found) or (ends[0] > ends[1]) - (ends[0] < ends[1])

        hits = (_Hit(epk, id, sorting.value(document)) for epk, id, document in self._matching())
        if mark.id:
            behind = _Hit(mark.epk, mark.id, mark.ordered_by[0] if mark.ordered_by else MISSING)
            hits = (hit for hit in hits if compare(hit, behind) > 0)
        first = heapq.nsmallest(max_items, hits, cmp_to_key(compare))
        for number, hit in enumerate(first, 1):
            with self._reading() as connection:
                stored = live(connection, hit.epk, hit.id, self._now_us)
            # Somebody may have deleted it since it was found.
            if stored is not None:
                self._take(msgspec.json.decode(stored.body))
            if number == max_items or self._is_full(max_items):
                return hit
        return None

    def _take(self, document: Document) -> None:
        """Answer a match, or pass it over."""
        if self._passed < self._query.offset:
            self._passed += 1
        elif not self._is_done:
            self._answered += 1
            value = self._query.result(document)
            if value is not MISSING:
                self._results.append(value)
                self._room_bytes -= len(msgspec.json.encode(value))

    @property
    def _is_done(self) -> bool:
        return self._query.limit is not None and self._answered >= self._query.limit

    def _is_full(self, max_items: int) -> bool:
        return self._is_done or len(self._results) >= max_items or self._room_bytes <= 0

    def _matching(self) -> Iterator[tuple[str, str, Document]]:
        return (row for row in self._rows(Mark()) if self._fits(row[2]))

    def _fits(self, document: Document) -> bool:
        return self._query.matches is None or self._query.matches(document) is True

    def _rows(self, mark: Mark) -> Iterator[tuple[str, str, Document]]:
        values = {"low": self._scope.low, "high": self._scope.high, "count": READ_AT_ONCE, "only": self._query.id}
        values |= {"now": self._now_us // MICROSECONDS, "epk": mark.epk, "id": mark.id}
        text = _ANY if self._query.id is None else _ONE_ID
        while True:
            with self._reading() as connection:
                rows = all_rows(connection, text, values)
            for epk, id, body in rows:
                self._looked_at += 1
                yield epk, id, msgspec.json.decode(body)
            if len(rows) < READ_AT_ONCE:
                return
            values |= {"epk": rows[-1][0], "id": rows[-1][1]}
