"""Changes of Cosmos DB's feed as events: unmodified bodies, keys as text, positions even inside an LSN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from evenflow.drivers.cosmos.positions import WHOLE, Range, Spot, place_at, place_of
from evenflow.errors import Misconfigured
from evenflow.model import Position
from evenflow.sources.cosmos.codec import CosmosFeedCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event

ALONE = Range("0", WHOLE)


def page(*documents: Any) -> bytes:
    return msgspec.json.encode({"_rid": "x", "Documents": documents, "_count": len(documents)})


def document(lsn: int, id: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": id, "k": f"key-{id}", "_ts": 1_700_000_000 + lsn, "_lsn": lsn, **more}


def events_of(codec: CosmosFeedCodec, *documents: Any, after: str = "0", ceiling: Spot | None = None) -> list[Event]:
    place = place_of(Position(after))
    piece, next_one = place.next()
    return codec.events(codec.changes(page(*documents)), place, piece, ceiling or next_one)


def offsets(events: Sequence[Event]) -> list[str]:
    return [event.offset for event in events]


def test_a_body_is_the_unmodified_document() -> None:
    text = b'{"Documents":[{"id": "a",\n "k":"x","_ts":1700000000,"_lsn":5, "n": 1.50}],"_count":1}'
    codec = CosmosFeedCodec(["/k"], whole=False)
    place = place_at(ALONE, 0)
    (event,) = codec.events(codec.changes(text), place, place.next()[0], None)
    assert event.body == b'{"id": "a",\n "k":"x","_ts":1700000000,"_lsn":5, "n": 1.50}'
    assert (event.key, event.sequence, event.offset) == ("x", 5, "5")
    assert event.enqueued_us == 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("paths", "document", "key"),
    [
        (["/k"], {"k": "text"}, "text"),
        (["/k"], {"k": 5}, "5"),
        (["/k"], {"k": None}, "null"),
        (["/k"], {"k": True}, "true"),
        (["/k"], {}, None),
        (["/home/id"], {"home": {"id": "h1"}}, "h1"),
        (["/home/id"], {"home": "h1"}, None),
        (['/"a/b"/c'], {"a/b": {"c": "deep"}}, "deep"),
        (["/tenant", "/user"], {"tenant": "t", "user": 7}, '["t",7]'),
        (["/tenant", "/user"], {"tenant": "t"}, '["t",null]'),
    ],
)
def test_a_key_is_text(paths: list[str], document: dict[str, Any], key: str | None) -> None:
    one = {"id": "a", "_ts": 1, "_lsn": 1, **document}
    assert [event.key for event in events_of(CosmosFeedCodec(paths, whole=False), one)] == [key]
    created = {"current": one, "metadata": {"lsn": 1, "crts": 1, "operationType": "create"}}
    assert [event.key for event in events_of(CosmosFeedCodec(paths, whole=True), created)] == [key]


@pytest.mark.parametrize(
    "deleted",
    [
        {"current": {}, "metadata": {"lsn": 3, "crts": 9, "id": "a", "partitionKey": {"k": "x"}}},
        {"current": {}, "previous": {"id": "a", "k": "x"}, "metadata": {"lsn": 3, "crts": 9}},
        {"current": None, "previous": {"id": "a", "k": "x"}, "metadata": {"lsn": 3, "crts": 9}},
        {"previous": {"id": "a", "k": "x"}, "metadata": {"lsn": 3, "crts": 9}},
    ],
)
def test_a_deleted_document_still_has_its_key(deleted: dict[str, Any]) -> None:
    (event,) = events_of(CosmosFeedCodec(["/k"], whole=True), deleted)
    assert (event.key, event.sequence, event.enqueued_us) == ("x", 3, 9_000_000)
    assert msgspec.json.decode(event.body) == deleted


def test_positions_include_their_range() -> None:
    events = events_of(CosmosFeedCodec(["/k"], whole=False), document(5), document(7, "b"), after="2@-1F")
    assert [(event.offset, event.sequence) for event in events] == [("5@-1F", 5), ("7@-1F", 7)]


@pytest.mark.parametrize("whole", [False, True])
def test_reading_can_continue_after_every_position_inside_an_lsn(whole: bool) -> None:
    """In the same order, in another order, and when a handled document has changed since."""
    codec = CosmosFeedCodec(["/k"], whole=whole)

    def made(lsn: int, id: str) -> dict[str, Any]:
        one = document(lsn, id)
        metadata = {"lsn": lsn, "crts": 1, "operationType": "create"}
        return {"current": one, "metadata": metadata} if whole else one

    group = [made(5, id) for id in "abcd"]
    events = events_of(codec, made(4, "z"), *group, made(6, "y"), after="3@-1F")
    assert [event.sequence for event in events] == [4, None, None, None, 5, 6]
    assert len(set(offsets(events))) == 6
    for number, event in enumerate(events[1:4], 2):
        spot = place_of(event.position).pieces[0].spot
        assert (spot.lsn, spot.passed) == (5, 4)
        again = events_of(codec, *reversed(group), made(6, "y"), after=event.offset)
        assert [one.body for one in again] == [one.body for one in events[number:]]
        assert offsets(again) == offsets(events[number:])
    handled = {bytes(event.body) for event in events[1:3]}
    left = [one for one in group if msgspec.json.encode(one) not in handled]
    rest = events_of(codec, *left, after=events[2].offset)
    assert [one.body for one in rest] == [one.body for one in events[3:5]]


def test_one_document_may_change_twice_in_an_lsn() -> None:
    metadata = {"lsn": 5, "crts": 1}
    twice = [
        {"current": document(5, v=1), "metadata": {**metadata, "operationType": "create"}},
        {"current": document(5, v=2), "metadata": {**metadata, "operationType": "replace"}},
    ]
    codec = CosmosFeedCodec(["/k"], whole=True)
    events = events_of(codec, *twice, after="4")
    assert [msgspec.json.decode(event.body)["current"]["v"] for event in events] == [1, 2]
    assert [event.sequence for event in events] == [None, 5]
    assert [one.body for one in events_of(codec, *twice, after=events[0].offset)] == [events[1].body]


def test_a_piece_is_read_up_to_where_the_next_one_is() -> None:
    place = "3@,5@1F-FF"
    events = events_of(
        CosmosFeedCodec(["/k"], whole=False), document(4), document(5, "b"), document(6, "c"), after=place
    )
    assert [(event.offset, event.sequence) for event in events] == [("4@,5@1F-FF", None), ("5@-FF", 5)]


def test_a_server_without_a_feed_is_detected() -> None:
    with pytest.raises(Misconfigured, match=r"not a change feed of Cosmos DB.*_lsn.*container serve"):
        CosmosFeedCodec(["/k"], whole=False).changes(page({"id": "a", "_ts": 1}))
    with pytest.raises(Misconfigured, match="not a change feed of Cosmos DB"):
        CosmosFeedCodec(["/k"], whole=False).changes(b"<html>")
