"""Queries and lists of all documents, in pages with a continuation.

The server executes a query over all ranges itself, so clients need no query plan. Clients that request one anyway then
query range by range. They get a plan only for queries whose results need no merging.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evenflow.embedded.container.query import read_query
from evenflow.embedded.container.query_execution import EpkInterval, QueryPosition
from evenflow.emulators.cosmos import charges
from evenflow.emulators.cosmos.http import (
    CHARGE,
    CONTINUATION,
    END_EPK,
    ITEM_COUNT,
    PARTITION_KEY,
    RANGE_ID,
    SESSION,
    START_EPK,
    CosmosError,
    CosmosRequest,
    CosmosResponse,
    count_of,
    json_answer,
    unsupported,
)
from evenflow.emulators.cosmos.items import key_of, session_of

if TYPE_CHECKING:
    from evenflow.embedded.container import Container
    from evenflow.embedded.container.query import Query

ITEMS_MAX, ITEMS = 1_000, 100
POSITION_BYTES_MAX = 8 * 1024
ALL = "SELECT * FROM c"


class _Parameter(Struct):
    name: str
    value: Any = None


class _QueryBody(Struct):
    query: str
    parameters: list[_Parameter] | None = None


class _Continuation(Struct, array_like=True):
    position: QueryPosition
    of: str
    """A digest of the query. A continuation of another query would skip results."""


def query(container: Container, request: CosmosRequest) -> CosmosResponse:
    return _page(container, request, _parsed_query(request), cross=_may_cross(request))


def plan(container: Container, request: CosmosRequest) -> CosmosResponse:
    """The query plan, with which a client sends the unchanged query to every range."""
    asked = _parsed_query(request)
    if asked.is_count or asked.order is not None or asked.offset:
        raise unsupported(
            "plans of queries with COUNT, ORDER BY or OFFSET, whose results would have to be merged "
            "across ranges: the server executes them over all ranges, for clients that request no plan"
        )
    key, keys = key_of(request), container.opened().metadata.keys
    low, high = ("", "FF") if key is None else keys.within(keys.parts(key))
    return json_answer(
        {
            "partitionedQueryExecutionInfoVersion": 2,
            "queryInfo": {"distinctType": "None", "rewrittenQuery": "", "top": asked.limit},
            "queryRanges": [{"min": low, "max": high, "isMinInclusive": True, "isMaxInclusive": False}],
        }
    )


def _parsed_query(request: CosmosRequest) -> Query:
    try:
        asked = msgspec.json.decode(request.body, type=_QueryBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CosmosError(400, f"The body must be JSON with query and parameters: {error}.") from error
    return read_query(asked.query, {one.name: one.value for one in asked.parameters or []})


def read_all(container: Container, request: CosmosRequest) -> CosmosResponse:
    """All documents of one partition key or of the container."""
    return _page(container, request, read_query(ALL), cross=True)


def _may_cross(request: CosmosRequest) -> bool:
    return request.flag("x-ms-documentdb-query-enablecrosspartition")


def _page(container: Container, request: CosmosRequest, query: Query, *, cross: bool) -> CosmosResponse:
    interval = _interval(container, request, cross=cross)
    count = count_of(request, ITEMS_MAX, ITEMS)
    digest = _query_digest(request)
    found = container.documents.page(query, interval, _position(request, digest), max_items=count)
    rid = container.opened().metadata.rid_text
    body = msgspec.json.encode({"_rid": rid, "Documents": found.results, "_count": len(found.results)})
    headers = {
        CHARGE: f"{charges.query(found.scanned, len(body)):.2f}",
        ITEM_COUNT: str(len(found.results)),
        SESSION: ",".join(session_of(one.id, one.lsn) for one in container.ranges() if one.overlaps(*interval)),
    }
    if found.position is not None:
        headers[CONTINUATION] = _encoded(_Continuation(found.position, digest))
    return CosmosResponse(body=body, headers=headers)


def _interval(container: Container, request: CosmosRequest, *, cross: bool) -> EpkInterval:
    key, range_id = key_of(request), request.headers.get(RANGE_ID)
    low, high = request.headers.get(START_EPK), request.headers.get(END_EPK)
    interval = container.documents.interval(key, range_id)
    if key is None and range_id is None and low is None and not cross:
        raise CosmosError(
            400,
            "Cross partition query is required but disabled. Name a partition key, or set "
            "x-ms-documentdb-query-enablecrosspartition to true (enable_cross_partition_query=True).",
        )
    if low is None or high is None:
        return interval
    return EpkInterval(max(low, interval.low), min(high, interval.high))


def _query_digest(request: CosmosRequest) -> str:
    """A digest of the query and the partition key. Without the range, which may be split between two pages."""
    key = request.headers.get(PARTITION_KEY, "")
    return blake2b(b"\0".join([key.encode(), request.body]), digest_size=6).hexdigest()


def _encoded(continuation: _Continuation) -> str:
    encoded = msgspec.json.encode(continuation)
    if len(encoded) > POSITION_BYTES_MAX:
        raise unsupported(f"ORDER BY values of more than {POSITION_BYTES_MAX:,} bytes over several pages")
    return urlsafe_b64encode(encoded).decode()


def _position(request: CosmosRequest, digest: str) -> QueryPosition:
    text = request.headers.get(CONTINUATION)
    if not text:
        # Java's client starts with an empty continuation.
        return QueryPosition()
    try:
        found = msgspec.json.decode(urlsafe_b64decode(text), type=_Continuation)
    except (ValueError, RecursionError) as error:
        raise CosmosError(400, f"{CONTINUATION} is not a continuation of this server.") from error
    if found.of != digest:
        raise CosmosError(
            400,
            f"{CONTINUATION} is that of another query, of other parameters, or of another partition key. "
            "Send the same query, or start without a continuation.",
        )
    return found.position
