"""A message comes into the hub as an event that a processor reads as any other, and leaves it as it came."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenflow.amqp import sections as parts
from evenflow.amqp import types
from evenflow.amqp.conditions import DecodeError
from evenflow.amqp.types import decode, described
from evenflow.embedded.hub.records import WireEvent, decode_stored, encode
from evenflow.embedded.hub.records import decode as decode_events
from evenflow.emulators.eventhubs.messages import BATCH_FORMAT, decode_delivery, decode_message, encode_message
from evenflow.model import Event

HEADER = described(parts.HEADER, types.list_([types.TRUE, types.ubyte(4)]))
PROPERTIES = described(parts.PROPERTIES, types.list_([types.string("id-1"), types.NULL, types.NULL, types.string("s")]))


def annotated(**named: bytes) -> bytes:
    pairs = [(types.symbol(name.replace("_", "-")), value) for name, value in named.items()]
    return described(parts.MESSAGE_ANNOTATIONS, types.map_(pairs))


def application(**named: bytes) -> bytes:
    pairs = [(types.string(name), value) for name, value in named.items()]
    return described(parts.APPLICATION_PROPERTIES, types.map_(pairs))


def value(encoded: bytes) -> bytes:
    return described(parts.VALUE, encoded)


def served(event: Event, metric: bytes = b"") -> bytes:
    """The event through the hub: written as a row, read again, and served."""
    row = encode([event], 7, 5_000_000)
    return encode_message(decode_stored(row)[0], metric)


def seen(message: bytes) -> dict[int, Any]:
    return {section.code: parts.value_of(message, section) for section in parts.sections(message)}


OURS = {"x-opt-sequence-number": 7, "x-opt-offset": "7", "x-opt-enqueued-time": 5_000}


def test_body_key_and_properties_are_the_events_own() -> None:
    key = annotated(x_opt_partition_key=types.string("home-7"))
    event = decode_message(key + application(n=types.long(3)) + parts.data(b"open"))
    assert (event.body, event.key, event.properties) == (b"open", "home-7", {"n": 3})
    row = encode([event], 0, 1)
    assert decode_events(row) == [Event(b"open", "home-7", {"n": 3}, 0, 1)]


def test_what_leaves_is_what_came_with_where_and_when() -> None:
    head = HEADER + annotated(own=types.string("note"))
    came = head + PROPERTIES + application(n=types.ubyte(3)) + parts.data(b"x")
    assert seen(served(decode_message(came))) == seen(came) | {parts.MESSAGE_ANNOTATIONS: {"own": "note", **OURS}}


def test_types_of_properties_are_kept_to_the_bit() -> None:
    numbers = {"b": types.ubyte(1), "i": types.int_(1), "l": types.long(1), "f": b"\x72\x3f\x80\x00\x00"}
    exact = application(**numbers, t=types.timestamp(1))
    assert exact in served(decode_message(exact + parts.data(b"")))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (value(types.string("text")), b"text"),
        (value(types.binary(b"\x00\x01")), b"\x00\x01"),
        (value(types.NULL), b""),
        (value(types.plain({"a": [1, 2]})), b'{"a":[1,2]}'),
        (value(described(5, types.string("d"))), b"d"),
        (described(parts.SEQUENCE, types.plain([1])) + described(parts.SEQUENCE, types.plain([2])), b"[1,2]"),
        (parts.data(b"ab") + parts.data(b"cd"), b"abcd"),
        (parts.data(b"ab") + described(parts.FOOTER, types.map_([])), b"ab"),
        (b"", b""),
        (parts.data(b"x" * 300), b"x" * 300),
    ],
)
def test_every_kind_of_body_has_bytes_for_a_processor_and_stays_what_it_was(body: bytes, wanted: bytes) -> None:
    event = decode_message(PROPERTIES + body)
    assert event.body == wanted
    assert served(event).endswith(PROPERTIES + body)


def test_what_hub_send_wrote_is_served_as_a_message() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    message = served(Event(b"door", "home-7", {"n": 1, "at": moment, "list": [1, "a"]}))
    found = seen(message)
    assert found[parts.DATA] == b"door"
    assert found[parts.MESSAGE_ANNOTATIONS] == OURS | {"x-opt-partition-key": "home-7"}
    assert found[parts.APPLICATION_PROPERTIES] == {"n": 1, "at": round(moment.timestamp() * 1000), "list": [1, "a"]}
    assert parts.APPLICATION_PROPERTIES not in seen(served(Event(b"door")))


def test_a_sender_cannot_say_where_its_event_is() -> None:
    lies = annotated(x_opt_sequence_number=types.long(99), x_opt_offset=types.string("99"), own=types.long(1))
    assert seen(served(decode_message(lies + parts.data(b""))))[parts.MESSAGE_ANNOTATIONS] == OURS | {"own": 1}


def test_the_metric_goes_where_delivery_annotations_go() -> None:
    metric = described(parts.DELIVERY_ANNOTATIONS, types.map_([(types.symbol("last"), types.long(5))]))
    came = HEADER + described(parts.DELIVERY_ANNOTATIONS, types.map_([])) + parts.data(b"x")
    found = seen(served(decode_message(came), metric))
    assert found[parts.DELIVERY_ANNOTATIONS] == {"last": 5}
    assert list(found) == sorted(found)


def test_a_batch_has_a_key_for_all_and_each_message_its_own_things() -> None:
    one = application(n=types.long(1)) + parts.data(b"one")
    batch = annotated(x_opt_partition_key=types.string("k")) + parts.data(one) + parts.data(parts.data(b"two"))
    key, events = decode_delivery(batch, BATCH_FORMAT)
    assert key == "k"
    found = [(event.body, event.key, event.properties) for event in events]
    assert found == [(b"one", "k", {"n": 1}), (b"two", "k", None)]
    assert decode_delivery(parts.data(one), BATCH_FORMAT)[0] is None
    assert decode_delivery(b"", BATCH_FORMAT) == (None, [])


def test_what_the_system_knows_is_among_the_properties() -> None:
    own = application(subject=types.string("mine"))
    event = decode_message(annotated(origin=types.symbol("sensor")) + PROPERTIES + own + parts.data(b""))
    assert event.properties == {"origin": "sensor", "message-id": "id-1", "subject": "mine"}


def test_properties_become_what_python_has_for_them() -> None:
    several = application(
        t=types.timestamp(1_000),
        far=types.timestamp(1 << 62),
        u=b"\x98" + UUID(int=1).bytes,
        s=types.symbol("sym"),
        d=described(3, types.long(4)),
        m=types.plain({"x": [1]}),
        big=types.ulong((1 << 64) - 1),
    )
    assert decode_message(several + parts.data(b"")).properties == {
        "t": datetime.fromtimestamp(1, UTC),
        "far": 1 << 62,
        "u": str(UUID(int=1)),
        "s": "sym",
        "d": 4,
        "m": {"x": [1]},
        "big": (1 << 64) - 1,
    }


def test_names_that_read_the_same_are_all_kept() -> None:
    """A symbol and a text, a number and a truth: to AMQP they are different, to Python they are equal."""
    pairs = [
        (types.symbol("a"), types.long(1)),
        (types.string("a"), types.long(2)),
        (types.symbol("x-opt-offset"), types.string("not yours")),
        (types.ulong(1), types.long(3)),
        (types.TRUE, types.long(4)),
    ]
    came = described(parts.MESSAGE_ANNOTATIONS, types.map_(pairs)) + parts.data(b"x")
    left = served(decode_message(came))
    kept = b"".join(name + one for name, one in pairs if name != types.symbol("x-opt-offset"))
    assert kept in left
    assert b"not yours" not in left


def named(name: str, encoded: bytes) -> bytes:
    """A section as it may be written, too: by a name and not by a number."""
    return b"\x00" + types.symbol(name) + encoded


def at_length(code: int, encoded: bytes) -> bytes:
    """By a number of eight bytes."""
    return b"\x00\x80" + code.to_bytes(8, "big") + encoded


NOTE = types.map_([(types.symbol("own"), types.string("note"))])
OWN = types.map_([(types.string("n"), types.long(3))])
SUBJECT = types.list_([types.string("id-1"), types.NULL, types.NULL, types.string("s")])


@pytest.mark.parametrize(
    ("came", "same"),
    [
        (named("amqp:data:binary", types.binary(b"x")), parts.data(b"x")),
        (at_length(parts.DATA, types.binary(b"x")), parts.data(b"x")),
        (
            named("amqp:header:list", types.list_([types.TRUE]))
            + named("amqp:message-annotations:map", NOTE)
            + named("amqp:properties:list", SUBJECT)
            + named("amqp:application-properties:map", OWN)
            + named("amqp:amqp-value:*", types.string("v"))
            + named("amqp:footer:map", NOTE),
            described(parts.HEADER, types.list_([types.TRUE]))
            + described(parts.MESSAGE_ANNOTATIONS, NOTE)
            + described(parts.PROPERTIES, SUBJECT)
            + described(parts.APPLICATION_PROPERTIES, OWN)
            + value(types.string("v"))
            + described(parts.FOOTER, NOTE),
        ),
        (
            named("amqp:amqp-sequence:list", types.list_([types.TRUE])) * 2,
            described(parts.SEQUENCE, types.list_([types.TRUE])) * 2,
        ),
        (
            b"".join(described(code, types.NULL) for code in range(parts.HEADER, parts.DATA)) + parts.data(b"x"),
            parts.data(b"x"),
        ),
        (parts.data(b"x") + described(parts.FOOTER, types.NULL), parts.data(b"x")),
    ],
)
def test_what_may_be_written_in_another_way_leaves_as_clients_understand_it(came: bytes, same: bytes) -> None:
    event, plain = decode_message(came), decode_message(same)
    assert (event.body, event.key, event.properties) == (plain.body, plain.key, plain.properties)
    assert served(event) == served(plain)


def test_a_batch_may_name_its_sections() -> None:
    inner = parts.data(b"one")
    key, events = decode_delivery(
        named("amqp:message-annotations:map", types.NULL) + named("amqp:data:binary", types.binary(inner)) * 2,
        BATCH_FORMAT,
    )
    assert (key, [event.body for event in events]) == (None, [b"one", b"one"])


@pytest.mark.parametrize(
    "message",
    [
        parts.data(b"x") + PROPERTIES,
        named("amqp:nothing:list", types.NULL),
        described(parts.DATA, types.NULL),
        PROPERTIES + PROPERTIES,
        parts.data(b"x") + value(types.NULL),
        described(parts.HEADER, types.map_([])),
        described(parts.APPLICATION_PROPERTIES, types.list_([])),
        described(parts.DATA, types.string("no bytes")),
        described(0x79, types.NULL),
        b"plain bytes",
        application(a=types.long(1))[:-3],
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_message(message)


@given(st.binary(max_size=120), st.sampled_from([0, BATCH_FORMAT]))
@example(b"\x00\x53\x75\xa0\x05\x00\x53\x75\xa0\x09", BATCH_FORMAT)
@example(b"\x00\x53\x74\xc1\x04\x02\x40\x40\x40", 0)
@example(b"\x00\x53\x77\x00\x00\x40\x40", 0)
@example(b"\x00\x53\x72\xc1\x03\x02\xa0\x00\x40", 0)
def test_whatever_is_sent_is_stored_and_served_or_refused(payload: bytes, message_format: int) -> None:
    store_and_serve(payload, message_format)


def store_and_serve(payload: bytes, message_format: int) -> None:
    try:
        _, events = decode_delivery(payload, message_format)
    except DecodeError:
        return
    for event in events:
        assert isinstance(event, WireEvent)
        message = served(event)
        assert seen(message)[parts.MESSAGE_ANNOTATIONS]["x-opt-offset"] == "7"
        assert decode(message)[1] > 0


@given(st.sampled_from(range(0x70, 0x79)), st.binary(max_size=60), st.binary(max_size=20))
def test_the_same_for_what_begins_well(code: int, inside: bytes, rest: bytes) -> None:
    for kind in (0xA0, 0xC0, 0xC1):
        size = bytes((kind, len(inside)))
        store_and_serve(bytes((0, 0x53, code)) + size + inside + rest, 0)
