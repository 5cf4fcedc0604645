"""Frames come in pieces of any size, and what is no frame is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenflow.amqp import performatives as say
from evenflow.amqp.conditions import AmqpError
from evenflow.amqp.frames import AMQP_HEADER, FRAME_BYTES_MAX, HEARTBEAT, Frame, FrameBuffer, framed
from evenflow.amqp.performatives import Attach, Close, Flow, Open, Transfer, parse
from evenflow.amqp.types import NULL, decode


def frames_of(inbox: FrameBuffer) -> list[Frame]:
    found = []
    while (frame := inbox.frame()) is not None:
        found.append(frame)
    return found


@example([b""], [1, 1])
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=10), st.lists(st.integers(1, 400), max_size=50))
def test_frames_are_the_same_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(framed(number, body) for number, body in enumerate(bodies))
    inbox, found = FrameBuffer(), []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        if piece:
            inbox.feed(piece)
            found += frames_of(inbox)
    assert [(frame.channel, frame.body) for frame in found] == list(enumerate(bodies))


def test_a_header_may_come_byte_by_byte() -> None:
    inbox = FrameBuffer()
    for byte in AMQP_HEADER[:-1]:
        inbox.feed(bytes((byte,)))
        assert inbox.header() is None
    inbox.feed(AMQP_HEADER[-1:] + HEARTBEAT)
    assert inbox.header() == AMQP_HEADER
    assert inbox.frame() == Frame(0, 0, b"")


@pytest.mark.parametrize(
    "head",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\x02\x00\x00\x00",
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x07\x02\x00\x00\x00",
        b"\x00\x00\x00\x08\x01\x00\x00\x00",
        b"\x00\x00\x00\x08\x03\x00\x00\x00",
    ],
    ids=["larger than agreed", "four gigabytes", "smaller than its head", "begins in its head", "begins after its end"],
)
def test_a_frame_that_cannot_be_is_refused_before_it_has_arrived(head: bytes) -> None:
    inbox = FrameBuffer()
    inbox.feed(head)
    with pytest.raises(AmqpError, match="framing-error"):
        inbox.frame()


def test_what_we_say_can_be_parsed_to_the_last_field() -> None:
    opened, _ = parse(say.open_("us", frame_bytes=65_536, channel_max=4_999, idle_ms=120_000))
    assert opened == Open("us", None, 65_536, 4_999, 120_000, None, None, None, None, None)
    flow, _ = parse(say.flow(next_incoming_id=1, incoming_window=2, next_outgoing_id=3, outgoing_window=4))
    assert flow == Flow(1, 2, 3, 4, None, None, None, None, False, False, None)
    head = say.transfer_head(1, 2, 3, 4, more=True)
    assert parse(head[8:] + b"data") == (Transfer(2, 3, b"\0", 0, True, True, None, None, False, False, False), b"data")


NONE_LEFT_OUT = [
    say.open_("u", frame_bytes=512, channel_max=1, idle_ms=0),
    say.begin(1, next_id=0, incoming_window=1, outgoing_window=1, handle_max=1),
    say.attach(Attach("n", 0, True, *[None] * 11), source=NULL, target=NULL),
    say.flow(next_incoming_id=0, incoming_window=0, next_outgoing_id=0, outgoing_window=0),
    say.transfer_head(0, 0, 0, 0)[8:],
]


@pytest.mark.parametrize("performative", NONE_LEFT_OUT)
def test_no_field_is_left_out_since_clients_count_them(performative: bytes) -> None:
    fields = decode(performative)[0].value
    assert len(fields) == len(parse(performative)[0])


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (b"\x00\x53\x99\x45", "not-implemented"),
        (b"\x00\xa3\x09amqp:open\x45", "not-implemented"),
        (b"\x00\x53\x10\x45", "invalid-field"),
        (b"\x00\x53\x10\xc0\x03\x01\x52\x01", "invalid-field"),
        (b"\x00\x53\x18\xc0\x03\x02\x40\x40", "decode-error"),
        (b"\x40", "decode-error"),
        (b"\x00\x53\x10\xc1\x01\x00", "decode-error"),
        (b"\x00\x53\x14\xc0\x03\x01\x54\xff", "invalid-field"),
    ],
)
def test_what_is_no_performative_has_the_condition_of_the_standard(body: bytes, condition: str) -> None:
    with pytest.raises(AmqpError, match=condition):
        parse(body)


@given(st.binary(max_size=120))
@example(say.close()[:-1])
@example(b"\x00\x53\x12\xd0\x00\x00\x00\x04\x00\x00\x00\x00")
def test_whatever_a_frame_has_in_it_there_is_a_performative_or_an_error(body: bytes) -> None:
    try:
        found, _ = parse(body)
    except AmqpError:
        return
    assert isinstance(found, tuple)


@given(st.binary(max_size=60), st.sampled_from(range(0x10, 0x19)))
def test_the_same_for_bytes_that_begin_well(rest: bytes, code: int) -> None:
    body = b"\x00\x53" + bytes((code, 0xC0, min(255, len(rest) + 1), 3)) + rest
    try:
        found, _ = parse(body)
    except AmqpError:
        return
    assert isinstance(found, tuple)


def test_what_an_attach_asks_for_is_read_with_care() -> None:
    nothing = Attach("n", 0, True, *[None] * 11)
    assert (nothing.source_address, nothing.target_address, nothing.source_filters) == ("", "", {})
    assert not nothing.wants("x")
    assert nothing._replace(desired="x").wants("x")
    assert nothing._replace(desired=["y", "x"]).wants("x")
    assert Close(None).error is None
