"""Entries as events, events as entries, and URLs."""

from __future__ import annotations

from typing import Any

import pytest

from evenflow.errors import Misconfigured
from evenflow.model import Event
from evenflow.sources.redis_streams.codec import EntryFields
from evenflow.sources.redis_streams.positions import Id, StreamPosition
from evenflow.sources.redis_streams.source import RedisStreamsServer, RedisStreamsSource, from_url

PLACE = StreamPosition(Id(1_731_000_000_000, 2), 5)


@pytest.mark.parametrize(
    "properties",
    [
        None,
        {"text": "Zürich", "number": 3, "none": None, "list": [1, "a"], "bytes": b"\xff\x00", "like text": b"text"},
        {"body": "not the body", "key": 7, "evenflow-kinds": "odd", "evenflow-property:x": "odd too"},
    ],
)
def test_an_event_comes_back_as_it_was(properties: dict[str, Any] | None) -> None:
    sent = Event(b"\x00body", "home-7", properties)
    found = EntryFields().event_of(EntryFields().fields_of(sent), PLACE)
    assert (found.body, found.key, found.properties) == (sent.body, sent.key, sent.properties)
    assert (found.offset, found.sequence, found.enqueued_us) == ("1731000000000-2", 4, 1_731_000_000_000_000)


def test_entries_of_others_have_their_fields_as_properties() -> None:
    found = EntryFields().event_of([b"sensor", b"12", b"raw", b"\xff"], PLACE)
    assert (found.body, found.key, found.properties) == (b"", None, {"sensor": "12", "raw": b"\xff"})


def test_the_fields_of_body_and_key_can_be_others() -> None:
    found = EntryFields("data", "id").event_of([b"data", b"{}", b"id", b"7\xff", b"key", b"x"], PLACE)
    assert (found.body, found.key, found.properties) == (b"{}", "7\\xff", {"key": "x"})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis-streams://host", "lacks a server or a name"),
        ("redis-streams:///homes", "lacks a server or a name"),
        ("redis-streams://host:port/homes", "invalid port"),
        ("redis-streams://host/homes?partitions=many", "give a whole number"),
        ("redis-streams://host/homes?partitions=0", "at least 1"),
        ("redis-streams://host/homes?db=x", "give a whole number"),
        ("redis-streams://host/homes?stream=homes", "must contain {partition} once"),
        ("redis-streams://host/homes?colour=red", "Redis streams: colour"),
        ("redis-streams://host/homes?cluster=on", "give yes or no"),
        ("redis-streams://host/homes?cluster=yes&db=3", "only database 0"),
        ("redis-streams://host/homes?ca=/nowhere.pem", "rediss-streams"),
        ("rediss-streams://host/homes?ca=/nowhere.pem", "the file does not exist"),
        ("redis-streams://host/homes?maxlen=0", "at least 1"),
        ("redis-streams://host/homes?timeout_s=soon", "number of seconds"),
        ("redis-streams://host/homes?timeout_s=nan", "number of seconds"),
        ("redis-streams://host/homes?body_field=", "two different field names"),
        ("redis-streams://host/homes?body_field=key", "two different field names"),
        ("redis-streams://me:se#cret@host/homes", "write %23"),
    ],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as refused:
        from_url(url)
    assert "cret" not in str(refused.value)


def test_an_id_that_is_no_time_is_the_latest_there_is() -> None:
    """Producers that choose their own ids may use any unit."""
    found = EntryFields().event_of([b"body", b""], StreamPosition(Id(17_310_000_000_000_001, 0)))
    assert found.enqueued_at.year == 9999


def test_nothing_shows_a_password() -> None:
    source = from_url("rediss-streams://user:pa55@host:7000/homes?db=2")
    assert repr(source) == "<RedisStreamsSource homes:{partition} at host:7000/2>"
    assert "pa55" not in repr(RedisStreamsServer("host", password="pa55"))
    assert isinstance(source, RedisStreamsSource)
