"""The change feed and the partition key ranges.

A continuation is the LSN to continue after, as an ETag. The status 304 means that there are no new changes; it carries
the ETag too.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec

from evenflow.embedded.container import change_json
from evenflow.emulators.cosmos import charges
from evenflow.emulators.cosmos.http import (
    CHARGE,
    END_EPK,
    ITEM_COUNT,
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
    from datetime import datetime
    from typing import Any

    from evenflow.embedded.container import ChangeFeedPage, Container, PartitionKeyRange
    from evenflow.embedded.container.feed import Mode

FEED_HEADER = "a-im"
FORM_HEADER = "x-ms-cosmos-changefeed-wire-format-version"
INCREMENTAL, FULL_FIDELITY = "incremental feed", "full-fidelity feed"
ITEMS_MAX, ITEMS = 1_000, 100


def pkranges(container: Container, request: CosmosRequest) -> CosmosResponse:
    """All ranges, or only those created since the ETag of an earlier response."""
    metadata = container.opened().metadata
    ranges = container.ranges()
    newest = max(one.revision for one in ranges)
    seen = request.headers.get("if-none-match", "").strip('"')
    news = [one for one in ranges if not seen.isdecimal() or one.revision > int(seen)]
    headers = {"etag": f'"{newest}"', CHARGE: "1.00", ITEM_COUNT: str(len(news))}
    if not news:
        return CosmosResponse(status=304, headers=headers)
    items = [_range_resource(one, metadata.rid_text, len(ranges)) for one in news]
    body = {"_rid": metadata.rid_text, "PartitionKeyRanges": items, "_count": len(items)}
    return CosmosResponse(body=msgspec.json.encode(body), headers=headers)


def split(container: Container, request: CosmosRequest) -> CosmosResponse:
    wanted = request.json() if request.body else {}
    at = wanted.get("at") if isinstance(wanted, dict) else None
    if at is not None and not isinstance(at, str):
        raise CosmosError(400, "`at` must be an effective partition key, as text.")
    return _created_ranges(container, container.split(request.steps[-2], at))


def merge(container: Container, request: CosmosRequest) -> CosmosResponse:
    wanted = request.json() if request.body else {}
    other = wanted.get("with") if isinstance(wanted, dict) else None
    if not isinstance(other, str):
        raise CosmosError(400, 'Name the range to merge with: {"with": "1"}.')
    return _created_ranges(container, (container.merge(request.steps[-2], other),))


def _created_ranges(container: Container, made: tuple[PartitionKeyRange, ...]) -> CosmosResponse:
    metadata = container.opened().metadata
    count = len(container.ranges())
    return json_answer({"PartitionKeyRanges": [_range_resource(one, metadata.rid_text, count) for one in made]}, 201)


def _range_resource(one: PartitionKeyRange, rid: str, count: int) -> dict[str, Any]:
    return {
        "id": one.id,
        "_rid": rid,
        "_etag": f'"{one.revision}"',
        "minInclusive": one.min,
        "maxExclusive": one.max,
        "ridPrefix": int(one.id),
        "_self": f"pkranges/{one.id}/",
        "throughputFraction": 1 / count,
        "status": "online",
        "parents": list(one.parents),
        "_lsn": one.lsn,
    }


def changes(container: Container, request: CosmosRequest) -> CosmosResponse:
    mode = _mode(request)
    range_id, within = _requested_range(container, request)
    after = _start_after(container, request, range_id, mode)
    page = container.feed(
        range_id,
        after,
        since=_modified_since(request),
        within=within,
        mode=mode,
        max_items=count_of(request, ITEMS_MAX, ITEMS),
    )
    items = _documents(container, page, mode, with_metadata=FORM_HEADER in request.headers)
    return _page_response(container, page, range_id, items)


def _documents(container: Container, page: ChangeFeedPage, mode: Mode, *, with_metadata: bool) -> list[bytes]:
    if mode == "all":
        paths = container.opened().metadata.keys.paths
        return [change_json.all_versions(one, paths) for one in page.changes]
    if with_metadata:
        return [change_json.latest_with_metadata(one) for one in page.changes]
    return [change_json.latest(one.body or b"{}", one.lsn) for one in page.changes]


def _page_response(container: Container, page: ChangeFeedPage, range_id: str, items: list[bytes]) -> CosmosResponse:
    rid = container.opened().metadata.rid_text
    body = b'{"_rid":"%s","Documents":[%s],"_count":%d}' % (rid.encode(), b",".join(items), len(items))
    headers = {
        "etag": f'"{page.after}"',
        SESSION: session_of(range_id, page.lsn),
        CHARGE: f"{charges.page(len(items), len(body)):.2f}",
        ITEM_COUNT: str(len(items)),
    }
    return CosmosResponse(body=body, headers=headers) if items else CosmosResponse(status=304, headers=headers)


def _mode(request: CosmosRequest) -> Mode:
    wanted = request.headers.get(FEED_HEADER, "").lower()
    if wanted == INCREMENTAL:
        return "latest"
    if wanted == FULL_FIDELITY:
        return "all"
    raise CosmosError(400, f"A-IM must be Incremental feed or Full-Fidelity Feed, not {wanted!r:.40}.")


def _requested_range(container: Container, request: CosmosRequest) -> tuple[str, tuple[str, str] | None]:
    """The range to read, and the part of it."""
    range_id = request.headers.get(RANGE_ID)
    low, high = request.headers.get(START_EPK), request.headers.get(END_EPK)
    within = None if low is None or high is None else (low, high)
    key = key_of(request)
    if key is not None and within is None:
        keys = container.opened().metadata.keys
        within = keys.within(keys.parts(key))
    if range_id is None:
        ranges = container.ranges()
        held = [one for one in ranges if (one.holds(*within) if within is not None else len(ranges) == 1)]
        if not held:
            raise unsupported(
                f"changes of several ranges in one response, and the header {RANGE_ID} is missing. Read range by "
                "range, with feed_range= of azure-cosmos, which does not send its partition_key_range_id="
            )
        range_id = held[0].id
    return range_id, within


def _start_after(container: Container, request: CosmosRequest, range_id: str, mode: Mode) -> int | None:
    """The LSN to continue after. As in the service, the feed of all versions cannot start in the past."""
    text = request.headers.get("if-none-match")
    if text is None:
        if mode == "all" and _modified_since(request) is None:
            raise CosmosError(400, "The feed of all versions and deletes starts from now on, or from a continuation.")
        return None
    if text == "*":
        # A range that was split or merged has no LSN; the read then raises the error.
        return next((one.lsn for one in container.ranges() if one.id == range_id), None)
    digits = text.strip('"')
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise CosmosError(400, f"{text!r:.60} is not a continuation of this feed.")
    return int(digits)


def _modified_since(request: CosmosRequest) -> datetime | None:
    text = request.headers.get("if-modified-since")
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError):
        raise CosmosError(400, f"If-Modified-Since must be a date, not {text!r:.60}.") from None
