"""Invalid input of every kind: the client gets the condition that the service uses, or the connection ends; and the
server serves the next client.
"""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.amqp import types
from evenflow.amqp.conditions import AmqpError
from evenflow.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, framed
from evenflow.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_OUTCOME,
    TRANSFER,
)
from evenflow.amqp.sections import data
from evenflow.amqp.types import NULL, described, list_, string, symbol, uint
from tests.integration.amqp_peer import UPGRADE, condition_of, selector
from tests.unit.emulators.eventhubs.memory_server import memory_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.emulators.eventhubs.memory_server import MemoryClient, MemoryServer

RECEIVE = "homes/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    with memory_server(tmp_path, {"homes": 2}) as found:
        yield found


@pytest.fixture
def peer(server: MemoryServer) -> Iterator[MemoryClient]:
    """Afterwards the server opens a connection for another client, as before."""
    with server.client() as found:
        yield found
    with server.client() as other:
        other.open()


@pytest.fixture
def session(peer: MemoryClient) -> MemoryClient:
    peer.open()
    peer.begin()
    return peer


@pytest.mark.parametrize(
    "first_bytes",
    [
        b"\x00" * 8,
        b"hello, is anybody there?\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x00\x00\x09\x01",
        b"POST / HTTP/1.1\r\n\r\n",
    ],
    ids=["zeros", "words", "TLS", "TLS inside AMQP", "AMQP 0.9.1", "HTTP"],
)
def test_another_protocol_is_answered_with_our_header(peer: MemoryClient, first_bytes: bytes) -> None:
    peer.send(first_bytes)
    assert peer.header() == SASL_HEADER
    assert peer.ends() == []


def test_sasl_may_be_left_out_but_does_not_come_later(peer: MemoryClient) -> None:
    peer.send(AMQP_HEADER)
    assert peer.header() == AMQP_HEADER
    peer.say(OPEN, string("peer"), channel=0)
    peer.hear_of(OPEN)
    peer.send(framed(0, described(0x41, list_([symbol("ANONYMOUS"), NULL, NULL])), SASL_FRAME))
    assert closed_for(peer) == "amqp:connection:framing-error"


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("seed", range(3))
def test_garbage_at_any_stage_ends_the_connection(peer: MemoryClient, stage: int, seed: int) -> None:
    steps: list[list[Callable[[], Any]]] = [[], [peer.greet], [peer.open], [peer.open, peer.begin]]
    for step in steps[stage]:
        step()
    # Garbage inside a complete frame, or in place of one; the server would wait for the rest of an incomplete frame.
    garbage = Random(seed).randbytes(2_000)
    peer.send(framed(1, garbage) if seed or stage else garbage)
    try:
        peer.ends()
    except AmqpError:
        assert stage == 0, "once it speaks AMQP, it says everything in frames"


def test_an_unknown_mechanism_is_refused(peer: MemoryClient) -> None:
    peer.send(SASL_HEADER)
    peer.header()
    peer.hear()
    peer.send(framed(0, described(0x41, list_([symbol("GSSAPI"), NULL, NULL])), SASL_FRAME))
    assert peer.ends() == [(SASL_OUTCOME, [1, None])]


def closed_for(peer: MemoryClient) -> str:
    (error,) = peer.hear_of(CLOSE)
    return condition_of(error)


def test_a_frame_that_is_too_large_ends_the_connection_before_it_has_arrived(peer: MemoryClient) -> None:
    peer.open()
    peer.send(struct.pack(">IBBH", 10_000_000, 2, 0, 1))
    assert closed_for(peer) == "amqp:connection:framing-error"
    assert peer.ends() == []


@pytest.mark.parametrize(
    ("frame", "condition"),
    [
        (framed(1, b"\x00\x53\x99\x45"), "amqp:not-implemented"),
        (framed(1, b"\xde\xad\xbe\xef"), "amqp:decode-error"),
        (framed(1, described(ATTACH, list_([string("n")]))), "amqp:invalid-field"),
        (framed(7, described(FLOW, list_([NULL, uint(1), uint(1), uint(1)]))), "amqp:not-allowed"),
        (framed(1, described(BEGIN, list_([NULL, uint(1), uint(1), uint(1)]))), "amqp:not-allowed"),
        (framed(5_000, described(BEGIN, list_([NULL, uint(1), uint(1), uint(1)]))), "amqp:connection:framing-error"),
        (framed(0, described(OPEN, list_([string("again")]))), "amqp:not-allowed"),
        (framed(0, b"\x00\x53\x41\x45", SASL_FRAME), "amqp:connection:framing-error"),
    ],
)
def test_an_invalid_frame_ends_the_connection(session: MemoryClient, frame: bytes, condition: str) -> None:
    session.send(frame)
    assert closed_for(session) == condition


def test_frames_before_the_open_end_the_connection(peer: MemoryClient) -> None:
    peer.greet()
    peer.say(BEGIN, NULL, uint(0), uint(1), uint(1))
    assert closed_for(peer) == "amqp:not-allowed"


def test_a_client_whose_frames_are_too_small_is_refused(peer: MemoryClient) -> None:
    peer.greet()
    peer.say(OPEN, string("peer"), NULL, uint(100), channel=0)
    assert closed_for(peer) == "amqp:connection:framing-error"


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("nothing/ConsumerGroups/$Default/Partitions/0", "amqp:not-found"),
        ("homes/ConsumerGroups/missing/Partitions/0", "amqp:not-found"),
        ("homes/ConsumerGroups/$Default/Partitions/2", "com.microsoft:argument-out-of-range"),
        ("homes/ConsumerGroups/$Default/Partitions/-1", "com.microsoft:argument-out-of-range"),
        ("homes/ConsumerGroups/$Default/Partitions/zero", "com.microsoft:argument-out-of-range"),
        ("homes/ConsumerGroups/$Default/Partitions/" + "9" * 5_000, "com.microsoft:argument-out-of-range"),
        ("homes", "amqp:not-found"),
        ("", "amqp:not-found"),
        ("a/b/c/d/e/f/g", "amqp:not-found"),
    ],
)
def test_an_invalid_address_is_refused_as_the_service_does(session: MemoryClient, address: str, condition: str) -> None:
    session.attach_receiver(address)
    name, _, role, _, _, source, target, *_ = session.hear_of(ATTACH)
    assert (name, role, source, target) == ("r0", False, None, None)
    _, closed, error = session.hear_of(DETACH)
    assert (closed, condition_of(error)) == (True, condition)
    # The handle is free again.
    session.attach_receiver(RECEIVE)
    assert session.hear_of(ATTACH)[5] is not None


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "",
        "amqp.annotation.x-opt-offset",
        "amqp.annotation.x-opt-offset = '1'",
        "amqp.annotation.x-opt-offset > 'one'",
        "amqp.annotation.x-opt-color > '1'",
        "amqp.annotation.x-opt-enqueued-time > '@latest'",
        "amqp.annotation.x-opt-sequence-number > '500000'",
        "amqp.annotation.x-opt-offset > '" + "9" * 400 + "'",
        "x" * 10_000,
    ],
)
def test_a_selector_that_does_not_parse_is_an_argument_error(session: MemoryClient, text: str) -> None:
    session.attach_receiver(RECEIVE, filters=selector(text))
    session.hear_of(ATTACH)
    assert condition_of(session.hear_of(DETACH)[2]) == "com.microsoft:argument-error"


def test_a_transfer_without_a_link_ends_the_session(session: MemoryClient) -> None:
    session.transfer(data(b"x"), handle=9)
    assert condition_of(session.hear_of(END)[0]) == "amqp:session:unattached-handle"


def test_a_handle_that_is_in_use_ends_the_session(session: MemoryClient) -> None:
    session.attach_sender("homes")
    session.attach_sender("homes")
    assert condition_of(session.hear_of(END)[0]) == "amqp:session:handle-in-use"


def test_an_invalid_message_is_rejected_and_the_link_goes_on(session: MemoryClient) -> None:
    session.attach_sender("homes/Partitions/1")
    session.hear_of(FLOW)
    session.transfer(b"no sections", 0)
    session.transfer(data(b"fine"), 1)
    rejected, accepted = session.hear_of(DISPOSITION), session.hear_of(DISPOSITION)
    assert (rejected[1], rejected[4].descriptor, condition_of(rejected[4].value[0])) == (0, 0x25, "amqp:decode-error")
    assert (accepted[1], accepted[4].descriptor) == (1, 0x24)


def test_a_message_over_the_limit_is_refused_while_it_comes(session: MemoryClient) -> None:
    session.attach_sender("homes")
    session.hear_of(FLOW)
    for _ in range(17):
        session.transfer(b"x" * 65_000, more=True)
    assert session.hear_of(DISPOSITION)[4].descriptor == 0x25
    assert condition_of(session.hear_of(DETACH)[2]) == "amqp:link:message-size-exceeded"


def test_unfinished_deliveries_on_many_links_are_bounded(session: MemoryClient) -> None:
    for handle in range(40):
        session.attach_sender("homes", handle)
    for handle in range(40):
        for _ in range(12):
            session.transfer(b"x" * 65_000, handle, handle, more=True)
    assert condition_of(session.hear_of(END)[0]) == "amqp:resource-limit-exceeded"


def test_more_than_the_credit_ends_the_link(session: MemoryClient) -> None:
    session.attach_sender("homes")
    credit = session.hear_of(FLOW)[6]
    # All at once: none of them is settled before the last has come.
    one = described(TRANSFER, list_([uint(0), uint(0), types.binary(b"t")])) + data(b"x")
    session.send(framed(1, one) * (credit + 1))
    assert condition_of(session.hear_of(DETACH)[2]) == "amqp:link:transfer-limit-exceeded"


def test_aborted_deliveries_do_not_use_the_credit_up(session: MemoryClient) -> None:
    session.attach_sender("homes/Partitions/1")
    credit = session.hear_of(FLOW)[6]
    for number in range(credit + 10):
        session.transfer(b"", number, more=True)
        session.say(TRANSFER, uint(0), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, types.TRUE)
        if number == credit // 2:
            session.hear_of(FLOW)
    session.transfer(data(b"x"), credit + 10)
    assert session.hear_of(DISPOSITION)[1] == credit + 10


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 4"),
        (UPGRADE.replace(b"dGhl", b"!"), b"HTTP/1.1 4"),
        (UPGRADE.replace(b"websocket\r\n", b"h2c\r\n"), b"HTTP/1.1 4"),
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 20_000, b"HTTP/1.1 431"),
        (b"HEAD /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET nonsense\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
    ],
)
def test_http_is_answered_and_closed(peer: MemoryClient, said: bytes, answer: bytes) -> None:
    peer.send(said)
    assert everything_from(peer).startswith(answer)


@pytest.mark.parametrize(
    "frames",
    [
        b"\xff" * 100,
        b"\x81\x85\x00\x00\x00\x00hello" + b"\x88\x80\x00\x00\x00\x00",
        b"\x82\x88\x00\x00\x00\x00GARBAGE!",
        b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + b"\x00" * 50,
    ],
    ids=["no frames", "a text and a goodbye", "no AMQP", "more than there is memory"],
)
@pytest.mark.parametrize("polite", [True, False])
def test_a_websocket_with_nonsense_in_it_is_closed(peer: MemoryClient, frames: bytes, polite: bool) -> None:
    peer.send(UPGRADE if polite else UPGRADE + frames)
    if polite:
        assert peer.line.recv(65_536).startswith(b"HTTP/1.1 101")
        peer.send(frames)
    everything_from(peer)


def everything_from(peer: MemoryClient) -> bytes:
    heard = b""
    while piece := peer.line.recv(65_536):
        heard += piece
    return heard
