"""The two requests to Cosmos DB that a feed needs: list the ranges, and read a page of a range's changes.

The official client's own change feed silently continues in the children of a range, and parses JSON into objects. Here
a page is one request for one range, and its body is kept as it came. Only this file uses the client's internals:
`QueryFeed` and `_ReadPartitionKeyRanges` of its connection. A test checks that they exist.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from evenflow.drivers.cosmos.positions import Range
from evenflow.errors import DocumentMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.drivers.cosmos.client import Link
    from evenflow.drivers.cosmos.positions import Span

NOW = -1
"""In place of an LSN: only changes from now on."""
RETRY_S = 30.0
"""How long a request is retried while the service is temporarily unable to answer, before that is an error."""

FEEDS = {False: "Incremental Feed", True: "Full-Fidelity Feed"}
"""The service's name of the feed, also used in leases, by whether it has all versions and deletes."""
_WIRE_FORMAT = "2021-09-15"


class PageRequest(NamedTuple):
    """Which page to read."""

    range: Range
    after: int
    """The LSN to continue after, or NOW."""
    within: Span
    max_items: int
    whole: bool
    """All versions and deletes."""
    rid: str
    """The container's id; the service refuses a recreated container of the same name."""
    since: datetime | None = None
    """Skips earlier changes. In a merged range, these are not simply all changes up to some LSN."""


class FeedPage(NamedTuple):
    body: bytes
    """The answer; empty if there is no new change."""
    after: int | None
    """The LSN to continue after."""
    end: int | None
    """The last LSN of the range at that moment."""


async def read_ranges(link: Link) -> list[Range]:
    """The ranges that can be read now, ordered by id."""

    async def listed(container: Any, watched: dict[str, Any]) -> list[dict[str, Any]]:
        pages = container.client_connection._ReadPartitionKeyRanges(container.container_link, {}, **watched)
        return [one async for one in pages]

    try:
        found = [_range(one) for one in await link.ask_patiently("read ranges", listed, RETRY_S)]
    except DocumentMissing as error:
        raise link.no_container() from error
    # While a split completes, both the range and its children may be listed.
    gone = {name for one in found for name in one.parents}
    return sorted((one for one in found if one.id not in gone), key=lambda one: int(one.id))


def _range(answer: Mapping[str, Any]) -> Range:
    return Range(answer["id"], (answer["minInclusive"], answer["maxExclusive"]), tuple(answer.get("parents") or ()))


async def read_page(link: Link, request: PageRequest) -> FeedPage:
    """One request, retried while the service is temporarily unable to answer.

    Raises `RangeGone` when the range was split or merged, `HubReplaced` when the container was recreated, `BadRequest`
    when the service cannot continue from there.
    """
    taken = _ResponseCapture()

    async def one_page(container: Any, watched: dict[str, Any]) -> None:
        hooks = {"raw_response_hook": taken.after(watched["raw_response_hook"]), "headers": _headers(request)}
        path = f"/{quote(container.container_link)}/docs/"
        # The client would continue with a recreated container of the same name; the headers prevent that.
        options = {"maxItemCount": request.max_items, "containerRID": request.rid}
        await container.client_connection.QueryFeed(
            path, container.container_link, None, options, request.range.id, **hooks
        )

    try:
        await link.ask_patiently("read feed", one_page, RETRY_S)
    except DocumentMissing as error:
        raise link.no_container() from error
    return FeedPage(taken.body, _number(taken.headers.get("etag")), _session_lsn(taken.headers))


def _headers(request: PageRequest) -> dict[str, str]:
    headers = {"A-IM": FEEDS[request.whole], "x-ms-cosmos-intended-collection-rid": request.rid}
    if request.whole:
        headers["x-ms-cosmos-changefeed-wire-format-version"] = _WIRE_FORMAT
    if request.within != request.range.span:
        headers["x-ms-read-key-type"] = "EffectivePartitionKeyRange"
        headers["x-ms-start-epk"], headers["x-ms-end-epk"] = request.within
    if request.since is not None:
        headers["If-Modified-Since"] = format_datetime(request.since.astimezone(UTC), usegmt=True)
    if request.after == NOW:
        headers["If-None-Match"] = "*"
    elif request.after or (request.whole and request.since is None):
        headers["If-None-Match"] = f'"{request.after}"'
    return headers


class _ResponseCapture:
    """Captures the response body before the client parses it; the client gets the headers only."""

    def __init__(self) -> None:
        self.body = b""
        self.headers: Mapping[str, str] = {}

    def after(self, counted: Any) -> Any:
        def take(response: Any) -> None:
            counted(response)
            answer = response.http_response
            self.headers = answer.headers
            self.body = b""
            if answer.status_code == 200:
                self.body = answer.body()
                response.http_response = _EmptyResponse(answer)

        return take


class _EmptyResponse:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def body(self) -> bytes:
        return b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)


def _number(etag: str | None) -> int | None:
    text = (etag or "").strip('"')
    return int(text) if text.isascii() and text.isdecimal() else None


def _session_lsn(headers: Mapping[str, str]) -> int | None:
    """The LSN in `RANGE:VERSION#LSN#...`, or in the older form `RANGE:LSN`."""
    parts = (headers.get("x-ms-session-token") or "").rpartition(":")[2].split("#")
    return _number(parts[1] if len(parts) > 1 else parts[0])
