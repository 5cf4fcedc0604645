"""Messages and events: bodies of all kinds, keys, properties."""

from __future__ import annotations

from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp.message import Message, Properties
from azure.eventhub.amqp import AmqpMessageBodyType

from evenflow.errors import Misconfigured
from evenflow.model import Event, Position
from evenflow.sources.eventhubs.codec import annotated_event_of, check_sendable, event_of

ANNOTATIONS = {
    b"x-opt-offset": b"4294967296",
    b"x-opt-sequence-number": 7,
    b"x-opt-enqueued-time": 1_700_000_000_123,
    b"x-opt-partition-key": "home-7 Zürich".encode(),
}


def message(**sections: Any) -> Message:
    return Message(**{"message_annotations": dict(ANNOTATIONS), "data": [b"body"]} | sections)


def test_where_and_when() -> None:
    event = event_of(message())
    assert event.position == Position("4294967296", 7)
    assert event.enqueued_us == 1_700_000_000_123_000
    assert (event.body, event.key, event.properties) == (b"body", "home-7 Zürich", None)


@pytest.mark.parametrize(
    ("sections", "body"),
    [
        ({"data": [b"one"]}, b"one"),
        ({"data": [b"one ", b"two"]}, b"one two"),
        ({"data": [b""]}, b""),
        ({"data": None, "value": b"text"}, b"text"),
        ({"data": None, "value": "text"}, b"text"),
        ({"data": None, "value": 7}, b"7"),
        ({"data": None, "value": {b"door": [b"open", 1, None]}}, b'{"door":["open",1,null]}'),
        ({"data": None, "value": None}, b""),
        ({"data": None, "sequence": [[1, b"two"], [3.5]]}, b'[1,"two",3.5]'),
    ],
)
def test_bodies_of_all_kinds(sections: dict[str, Any], body: bytes) -> None:
    assert event_of(message(**sections)).body == body


def test_texts_are_text_and_what_is_none_stays_bytes() -> None:
    event = event_of(message(application_properties={b"place": "Zürich".encode(), b"raw": b"\xff\xfe", b"n": 3}))
    assert event.properties == {"place": "Zürich", "raw": b"\xff\xfe", "n": 3}


def test_system_properties_stand_beside_the_applications_own_which_win() -> None:
    event = event_of(
        message(
            message_annotations=ANNOTATIONS | {b"iothub-connection-device-id": b"sensor-1"},
            properties=Properties(message_id=b"m-1", content_type=b"application/json"),
            application_properties={b"message-id": b"mine"},
        )
    )
    assert event.properties == {
        "iothub-connection-device-id": "sensor-1",
        "message-id": "mine",
        "content-type": "application/json",
    }


def test_an_annotated_event_still_has_all_of_its_message() -> None:
    event = annotated_event_of(message(data=None, value={b"door": 1}, application_properties={b"n": 3}))
    assert isinstance(event, Event)
    assert event.position == Position("4294967296", 7)
    data = event.data
    assert isinstance(data, EventData)
    assert data.body_type == AmqpMessageBodyType.VALUE
    assert data.body == {b"door": 1}
    assert data.properties == {b"n": 3}
    assert (data.offset, data.sequence_number) == ("4294967296", 7)


def test_a_property_that_amqp_has_no_type_for_is_refused() -> None:
    check_sendable(Event(b"", None, {"n": 1, "text": "x", "raw": b"", "none": None}))
    with pytest.raises(Misconfigured, match="'list' has the type list"):
        check_sendable(Event(b"", None, {"list": [1]}))
