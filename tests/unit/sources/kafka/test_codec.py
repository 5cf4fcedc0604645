"""Messages as events and back, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Message

from evenflow.model import Event
from evenflow.sources.kafka import codec as kafka_events
from evenflow.sources.kafka.codec import TOMBSTONE, LazyEvents, body_of, events_of, headers_of


def message(
    value: bytes | None = b"body",
    key: bytes | None = None,
    headers: Any = None,
    offset: int = 7,
    timestamp: tuple[int, int] = (1, 1_700_000_000_123),
) -> Message:
    return Message("homes", 0, offset, key, value, headers, None, timestamp)


def test_an_event_has_all_of_its_message() -> None:
    [event] = events_of([message(b"body", b"k", [("a", b"x")])])
    assert event == Event(b"body", "k", {"a": "x"}, 7, 1_700_000_000_123_000)
    assert event.offset == "7"


def test_a_message_without_a_time_has_none() -> None:
    assert events_of([message(timestamp=(0, -1))])[0].enqueued_us == 0


@pytest.mark.parametrize("time", [1_700_000_000_000_123, 1_700_000_000_000_000_123])
def test_a_time_that_is_no_date_is_the_last_one(time: int) -> None:
    """As producers send it that count in microseconds or nanoseconds."""
    good, far = events_of([message(), message(timestamp=(1, time))])
    assert good.enqueued_us == 1_700_000_000_123_000
    assert far.enqueued_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "encoding", "text"),
    [
        (None, "utf-8", None),
        (b"", "utf-8", ""),
        ("Zürich".encode(), "utf-8", "Zürich"),
        (b"\xff\x00a", "utf-8", "\\xff\x00a"),
        (b"\xff\x00a", "latin-1", "ÿ\x00a"),
    ],
)
def test_keys_are_texts_whatever_bytes_they_are(key: bytes | None, encoding: str, text: str | None) -> None:
    assert [event.key for event in events_of([message(key=b"ok"), message(key=key)], encoding)] == ["ok", text]


@pytest.mark.parametrize(
    "properties",
    [
        None,
        {"text": "Zürich", "number": 5, "real": 0.5, "yes": True, "nothing": None, "raw": b"\x00text"},
        {"list": [1, "two"], "map": {"a": 1}},
        {"raw": b"\xff"},
    ],
)
def test_properties_come_back_as_they_were(properties: dict[str, Any] | None) -> None:
    headers = headers_of(Event(b"body", None, properties))
    assert events_of([message(headers=headers)])[0].properties == properties


def test_headers_of_other_producers_are_text_where_possible() -> None:
    headers = [("text", b"plain"), ("raw", b"\xff"), ("none", None), ("twice", b"1"), ("twice", b"2"), ("twice", b"3")]
    [event] = events_of([message(headers=headers)])
    assert event.properties == {"text": "plain", "raw": b"\xff", "none": None, "twice": ["1", "2", "3"]}


def test_a_damaged_kinds_header_loses_no_event() -> None:
    [event] = events_of([message(headers=[("n", b"5"), (kafka_events.KINDS, b"{")])])
    assert event.properties == {"n": "5"}


def test_a_tombstone_differs_from_an_empty_body_and_can_be_sent() -> None:
    empty, tombstone = events_of([message(b""), message(None)])
    assert (empty.body, empty.properties) == (b"", None)
    assert (tombstone.body, tombstone.properties) == (b"", {TOMBSTONE: True})
    assert (body_of(empty), body_of(tombstone)) == (b"", None)
    assert headers_of(tombstone) == []


def test_a_batch_is_a_sequence_that_makes_its_events_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events = LazyEvents([message(offset=number) for number in range(5)], "utf-8")
    made: list[int] = []
    make = kafka_events.events_of

    def counted(messages: list[Message], encoding: str) -> list[Event]:
        made.append(len(messages))
        return make(messages, encoding)

    monkeypatch.setattr(kafka_events, "events_of", counted)
    assert len(events) == 5
    assert made == []
    assert (events[0].sequence, events[-1].sequence) == (0, 4)
    assert made == [1, 1]
    assert [event.sequence for event in events[1:3]] == [1, 2]
    assert [event.sequence for event in events] == [0, 1, 2, 3, 4]
    assert list(events) == list(events)
    assert made == [1, 1, 2, 5]
    assert events[2] is events[2]
    assert list(events[5:]) == list(LazyEvents([], "utf-8")) == []
    with pytest.raises(IndexError):
        events[5]
