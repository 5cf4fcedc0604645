"""Lease documents as the change feed processors of Cosmos DB write them: all five layouts in, that of .NET v3 out, and
that of Java's newer processors where they have leases, since they can read no other.

Pure. What is not known stays in a document when it is written. Continuations are read in every form there is, and
written in the form that a document has: the raw ETag of .NET, or the state of Java's newer processors.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import MsgspecError, json

from evenflow.drivers.cosmos.positions import WHOLE, Piece, Place, Spot
from evenflow.errors import Corrupt
from evenflow.model import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from evenflow.model import PartitionId

LATEST_MODE, ALL_MODE = "Incremental Feed", "Full-Fidelity Feed"
BY_ID, BY_RANGE = 0, 1
"""The versions of .NET v3's leases: named by the id of a range, or by where it begins and ends."""
SYSTEM = ("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn")
"""What the service adds to every document."""
BEGINNING_OFFSET = "0"
"""No change has a lower LSN than 1. Where there is no continuation at all, everybody begins by settings of its own."""
JAVAS_MODES = {"INCREMENTAL": LATEST_MODE, "FULL_FIDELITY": ALL_MODE}
"""What Java's newer processors call them, inside their continuations."""


class LeaseDocument(NamedTuple):
    """What any of the layouts says."""

    id: str
    etag: str
    partition_key: str
    """What the document is found by: its id, or what it has for `partitionKey`."""
    token: str
    owner: str
    """"": nobody."""
    continuation: str
    """As it stands there; "": none."""
    timestamp: str
    span: tuple[str, str] | None
    """Where its range begins and ends, as far as it says so."""
    mode: str
    properties: Mapping[str, str]
    written_at: float
    """By the service's clock, in seconds."""
    document: Mapping[str, Any]

    @property
    def is_by_range(self) -> bool:
        return self.document.get("version") == BY_RANGE

    @property
    def is_of_java(self) -> bool:
        """Of its newer processors, which can read no other leases under their prefix, and no other continuations."""
        return self.is_by_range and "feedRange" in self.document


def read(document: Mapping[str, Any], partition_key: str = "") -> LeaseDocument:
    """Corrupt when somebody has made something else of it, with the document and the field."""
    name = str(document.get("id", ""))
    token = _text(document, "LeaseToken") or _text(document, "PartitionId")
    if not token:
        raise damaged(name, "LeaseToken", "is missing")
    version = document.get("version", BY_ID)
    if version not in (BY_ID, BY_RANGE):
        raise damaged(name, "version", f"is {version!r}, and 0 and 1 are known")
    written_at, continuation = document.get("_ts", 0), _text(document, "ContinuationToken")
    return LeaseDocument(
        id=name,
        etag=str(document.get("_etag", "")),
        partition_key=partition_key or name,
        token=token,
        owner=_text(document, "Owner").strip(),
        continuation=continuation,
        timestamp=_text(document, "timestamp"),
        span=_span(document, token if version == BY_RANGE else ""),
        mode=_text(document, "Mode") or _mode_in(continuation),
        properties=_properties(document),
        written_at=float(written_at) if isinstance(written_at, int | float) else 0.0,
        document=document,
    )


def blank_of_java(leases: str, span: tuple[str, str]) -> LeaseDocument:
    """A lease that is not there yet, as Java's newer processors make them, whose ids begin like this."""
    token = f"{span[0]}-{span[1]}"
    bounds = {"min": span[0], "max": span[1], "isMinInclusive": True, "isMaxInclusive": False}
    return read({"id": leases + token, "LeaseToken": token, "version": BY_RANGE, "feedRange": {"Range": bounds}})


def part_for_java(leases: str, ended: LeaseDocument) -> dict[str, Any]:
    """A free lease that goes on where this one ended, as if Java had kept it through a merge."""
    assert ended.span is not None
    blank = blank_of_java(leases, ended.span)
    continuation = continuation_of(position_of(ended.continuation), blank, ended.mode)
    return {**blank.document, "Owner": None, "ContinuationToken": continuation or None, "timestamp": ended.timestamp}


def oddity(found: LeaseDocument, span: tuple[str, str] | None) -> Corrupt | None:
    """What makes no sense in a lease of a change feed that somebody else wrote last, whose range is there."""
    position = position_of(found.continuation)
    if position is not None and position.sequence is None:
        return damaged(found.id, "ContinuationToken", f"is {found.continuation!r:.60}, which is no place in the feed")
    if None not in (span, found.span) and span != found.span and not found.is_by_range:
        return damaged(found.id, "FeedRange", f"is {found.span}, and range {found.token!r} is {span}")
    return None


def written(
    name: str,
    *,
    partition: PartitionId,
    before: LeaseDocument | None,
    owner: str,
    continuation: str,
    timestamp: str,
    properties: Mapping[str, str],
    span: tuple[str, str] | None = None,
    mode: str = "",
) -> dict[str, Any]:
    """The document as .NET v3 would write it, with everything that stood in the one before and is not known here."""
    kept = {key: value for key, value in before.document.items() if key not in SYSTEM} if before is not None else {}
    span = span or (before.span if before is not None else None)
    told: dict[str, Any] = {
        "id": name,
        "version": BY_RANGE if before is not None and before.is_by_range else BY_ID,
        "LeaseToken": before.token if before is not None else partition,
        "Owner": owner or None,
        "ContinuationToken": continuation or None,
        "properties": {**(before.properties if before is not None else {}), **properties},
        "timestamp": timestamp,
        "Mode": mode or (before.mode if before is not None else "") or LATEST_MODE,
    }
    if span is not None:
        told["FeedRange"] = {"Range": {"min": span[0], "max": span[1]}}
    return {**kept, **told}


# --- continuations
def position_of(continuation: str) -> Position | None:
    """Where to go on, whoever wrote it; None where there is none. Of several, the one that is furthest behind."""
    if not continuation:
        return None
    offsets = [_bare(token) for token in _tokens(continuation)]
    numbers = [int(offset) for offset in offsets if _is_number(offset)]
    if numbers and len(numbers) == len(offsets):
        return Position(str(min(numbers)), min(numbers))
    return Position(offsets[0])


def position_in(found: LeaseDocument) -> Position | None:
    """The same, with where its range is: who has to go on in a child of it may never have seen it."""
    position = position_of(found.continuation)
    if position is None or position.sequence is None or found.span in (None, WHOLE):
        return position
    assert found.span is not None
    return Place((Piece(*found.span, Spot(position.sequence)),), has_span=True).position


def continuation_of(position: Position | None, before: LeaseDocument | None, mode: str = "") -> str:
    """A position as others read it, in the form that the document has. It may be before the position, never after.

    `mode` is how the feed is read, for a document that does not say so yet.
    """
    if position is None:
        return ""
    # Of a change feed the sequence is the LSN up to which nothing is missing; the offset may say more.
    quoted = f'"{position.offset if position.sequence is None else max(0, position.sequence)}"'
    state = _state(before.continuation) if before is not None else None
    if state is None and before is not None and before.is_of_java:
        state = _new_state(before, mode or before.mode)
    if state is None:
        return quoted
    for one in _places(state):
        one["token"] = quoted
    return base64.b64encode(json.encode(state)).decode()


def _tokens(continuation: str) -> list[str]:
    state = _state(continuation)
    found = [str(one.get("token") or "") for one in _places(state)] if state is not None else []
    # A range that was never read is as far behind as can be.
    return [token or BEGINNING_OFFSET for token in found] or [continuation]


def _state(continuation: str) -> dict[str, Any] | None:
    """What Java's newer processors keep: JSON in base64. None when it is none."""
    try:
        state = json.decode(base64.b64decode(continuation, validate=True))
    except (binascii.Error, ValueError, MsgspecError):
        return None
    return state if isinstance(state, dict) and any(_places(state)) else None


def _new_state(before: LeaseDocument, mode: str) -> dict[str, Any]:
    """Of a lease that Java has made and never written a continuation to."""
    low, high = before.span or WHOLE
    rid = before.id.partition("..")[0].rpartition("_")[2]
    is_whole = mode == ALL_MODE
    here = {"min": low, "max": high}
    return {
        "V": 1,
        "Rid": rid,
        "Mode": "FULL_FIDELITY" if is_whole else "INCREMENTAL",
        # All versions can be had from now on alone, as a start; with a token, which there is, nobody goes by it.
        "StartFrom": {"Type": "NOW" if is_whole else "BEGINNING"},
        "Continuation": {"V": 1, "Rid": rid, "Continuation": [{"token": "", "range": here}], "Range": here},
    }


def _mode_in(continuation: str) -> str:
    state = _state(continuation)
    return JAVAS_MODES.get(str(state.get("Mode")), "") if state is not None else ""


def _places(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    inner = state.get("Continuation")
    places = inner.get("Continuation") if isinstance(inner, dict) else None
    yield from (one for one in places if isinstance(one, dict)) if isinstance(places, list) else ()


def _bare(token: str) -> str:
    return token.removeprefix("W/").strip('"')


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


# --- times
def timestamp(at: float) -> str:
    """As .NET writes it, in tenths of a microsecond."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")


# --- fields
def damaged(name: str, field: str, what: str) -> Corrupt:
    return Corrupt(
        f"The lease document {name!r} is damaged: {field} {what}. Put it back as it was; or delete it, and say where"
        " its partition goes on (`evenflow leases rewind`): otherwise it begins where the hosts' start says."
    )


def _text(document: Mapping[str, Any], field: str) -> str:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise damaged(str(document.get("id", "")), field, f"is {value!r:.60}, which is no text")
    return value or ""


def _properties(document: Mapping[str, Any]) -> dict[str, str]:
    found = document.get("properties")
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str | None) for value in found.values()):
        raise damaged(str(document.get("id", "")), "properties", "is no object of texts")
    return found


def _span(document: Mapping[str, Any], token: str) -> tuple[str, str] | None:
    """By FeedRange, as .NET calls it, or feedRange, as Java does; or by the name of a lease of this kind."""
    for field in ("FeedRange", "feedRange"):
        found = document.get(field)
        if found is None:
            continue
        bounds = found.get("Range") if isinstance(found, dict) else None
        if isinstance(bounds, dict) and isinstance(bounds.get("min"), str) and isinstance(bounds.get("max"), str):
            return bounds["min"], bounds["max"]
        if not isinstance(found, dict) or bounds is not None:
            raise damaged(str(document.get("id", "")), field, f"is {found!r:.80}, which is no range")
    low, dash, high = token.partition("-")
    return (low, high) if dash else None
