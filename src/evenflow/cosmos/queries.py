"""Queries, and lists of all documents: pages, with a continuation.

The server answers a query over all ranges by itself, in one order, so that clients need no plan of it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evenflow.container.query import read_query
from evenflow.container.search import Mark, Scope
from evenflow.cosmos import charges
from evenflow.cosmos.items import key_of, session_of
from evenflow.cosmos.wire import (
    CHARGE,
    CONTINUATION,
    END_EPK,
    ITEM_COUNT,
    RANGE_ID,
    SESSION,
    START_EPK,
    Answer,
    Refusal,
    Request,
    count_of,
    unsupported,
)

if TYPE_CHECKING:
    from evenflow.container import Container
    from evenflow.container.query import Query

ITEMS_MAX, ITEMS = 1_000, 100
MARK_BYTES_MAX = 8 * 1024
ALL = "SELECT * FROM c"


class _Parameter(Struct):
    name: str
    value: Any = None


class _Asked(Struct):
    query: str
    parameters: list[_Parameter] | None = None


def query(container: Container, request: Request) -> Answer:
    if request.flag("x-ms-cosmos-is-query-plan-request"):
        raise unsupported("plans of queries: it answers queries over all ranges by itself")
    try:
        asked = msgspec.json.decode(request.body, type=_Asked)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"A query is sent as JSON with query and parameters: {error}.") from error
    parameters = {one.name: one.value for one in asked.parameters or []}
    return _page(container, request, read_query(asked.query, parameters), cross=_may_cross(request))


def read_all(container: Container, request: Request) -> Answer:
    """All documents, of one partition key or of the container."""
    return _page(container, request, read_query(ALL), cross=True)


def _may_cross(request: Request) -> bool:
    return request.flag("x-ms-documentdb-query-enablecrosspartition")


def _page(container: Container, request: Request, query: Query, *, cross: bool) -> Answer:
    scope = _scope(container, request, cross=cross)
    count = count_of(request, ITEMS_MAX, ITEMS)
    found = container.page(query, scope, _mark(request), max_items=count)
    rid = container.opened().facts.rid_text
    body = msgspec.json.encode({"_rid": rid, "Documents": found.results, "_count": len(found.results)})
    headers = {
        CHARGE: f"{charges.query(found.looked_at, len(body)):.2f}",
        ITEM_COUNT: str(len(found.results)),
        SESSION: ",".join(session_of(one.id, one.lsn) for one in container.ranges()),
    }
    if found.mark is not None:
        headers[CONTINUATION] = _told(found.mark)
    return Answer(body=body, headers=headers)


def _scope(container: Container, request: Request, *, cross: bool) -> Scope:
    key, range_id = key_of(request), request.headers.get(RANGE_ID)
    low, high = request.headers.get(START_EPK), request.headers.get(END_EPK)
    scope = container.scope(key, range_id)
    if key is None and range_id is None and low is None and not cross:
        raise Refusal(
            400,
            "Cross partition query is required but disabled. Name a partition key, or set "
            "x-ms-documentdb-query-enablecrosspartition to true (enable_cross_partition_query=True).",
        )
    if low is None or high is None:
        return scope
    return Scope(max(low, scope.low), min(high, scope.high))


def _told(mark: Mark) -> str:
    encoded = msgspec.json.encode(mark)
    if len(encoded) > MARK_BYTES_MAX:
        raise unsupported(f"ORDER BY values of more than {MARK_BYTES_MAX:,} bytes over several pages")
    return urlsafe_b64encode(encoded).decode()


def _mark(request: Request) -> Mark:
    text = request.headers.get(CONTINUATION)
    if text is None:
        return Mark()
    try:
        return msgspec.json.decode(urlsafe_b64decode(text), type=Mark)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"{CONTINUATION} is none of a query of this server.") from error
