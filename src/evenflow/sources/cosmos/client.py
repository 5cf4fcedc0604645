"""What is asked of Cosmos DB about a feed: which ranges there are, and a page of a range's changes.

The official client's own change feed goes on by itself in the children of a range, and reads JSON into objects. Here a
page is one request, of one range, whose answer is taken as it came. What is used for that of the client's inside is in
this file: `QueryFeed` and `_ReadPartitionKeyRanges` of its connection. A test names them.
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
"""In place of an LSN: only what comes from now on."""
PATIENCE_S = 30.0
"""How long the service may say that it cannot do it now before somebody is told."""

FEEDS = {False: "Incremental Feed", True: "Full-Fidelity Feed"}
"""What the service, and leases, call the feed: without all versions and deletes, and with them."""
_WIRE_FORMAT = "2021-09-15"


class Ask(NamedTuple):
    """A page that somebody wants."""

    range: Range
    after: int
    """The LSN to go on after, or NOW."""
    within: Span
    max_items: int
    whole: bool
    """All versions and deletes."""
    rid: str
    """The container is this one; another one of the same name is refused."""
    since: datetime | None = None
    """Nothing that was changed before; in a range that was merged that is not all up to an LSN."""


class Page(NamedTuple):
    body: bytes
    """The answer; empty when there is nothing new."""
    after: int | None
    """The LSN to go on after."""
    end: int | None
    """The last one of the range, at the same moment."""


async def read_ranges(link: Link) -> list[Range]:
    """Those that can be read now, in the order of their ids."""

    async def listed(container: Any, watched: dict[str, Any]) -> list[dict[str, Any]]:
        pages = container.client_connection._ReadPartitionKeyRanges(container.container_link, {}, **watched)
        return [one async for one in pages]

    try:
        found = [_range(one) for one in await link.ask_patiently("read ranges", listed, PATIENCE_S)]
    except DocumentMissing as error:
        raise link.no_container() from error
    # While a split completes, both it and its children may be listed.
    gone = {name for one in found for name in one.parents}
    return sorted((one for one in found if one.id not in gone), key=lambda one: int(one.id))


def _range(told: Mapping[str, Any]) -> Range:
    return Range(told["id"], (told["minInclusive"], told["maxExclusive"]), tuple(told.get("parents") or ()))


async def read_page(link: Link, ask: Ask) -> Page:
    """One request, again in place while the service says that it cannot do it now.

    `RangeGone` when the range was split or merged, `HubReplaced` when it is another container's, `BadRequest` when the
    service does not go on from there.
    """
    taken = _Taken()

    async def one_page(container: Any, watched: dict[str, Any]) -> None:
        hooks = {"raw_response_hook": taken.after(watched["raw_response_hook"]), "headers": _headers(ask)}
        path = f"/{quote(container.container_link)}/docs/"
        # The client would go on with another container of the same name; the headers above see to it that it cannot.
        options = {"maxItemCount": ask.max_items, "containerRID": ask.rid}
        await container.client_connection.QueryFeed(
            path, container.container_link, None, options, ask.range.id, **hooks
        )

    try:
        await link.ask_patiently("read feed", one_page, PATIENCE_S)
    except DocumentMissing as error:
        raise link.no_container() from error
    return Page(taken.body, _number(taken.headers.get("etag")), _session_lsn(taken.headers))


def _headers(ask: Ask) -> dict[str, str]:
    headers = {"A-IM": FEEDS[ask.whole], "x-ms-cosmos-intended-collection-rid": ask.rid}
    if ask.whole:
        headers["x-ms-cosmos-changefeed-wire-format-version"] = _WIRE_FORMAT
    if ask.within != ask.range.span:
        headers["x-ms-read-key-type"] = "EffectivePartitionKeyRange"
        headers["x-ms-start-epk"], headers["x-ms-end-epk"] = ask.within
    if ask.since is not None:
        headers["If-Modified-Since"] = format_datetime(ask.since.astimezone(UTC), usegmt=True)
    if ask.after == NOW:
        headers["If-None-Match"] = "*"
    elif ask.after or (ask.whole and ask.since is None):
        headers["If-None-Match"] = f'"{ask.after}"'
    return headers


class _Taken:
    """Takes the answer on its way to the client, which is left with its headers."""

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
                response.http_response = _Emptied(answer)

        return take


class _Emptied:
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
    """Of `RANGE:VERSION#LSN#...`, or of `RANGE:LSN` as it was once written."""
    parts = (headers.get("x-ms-session-token") or "").rpartition(":")[2].split("#")
    return _number(parts[1] if len(parts) > 1 else parts[0])
