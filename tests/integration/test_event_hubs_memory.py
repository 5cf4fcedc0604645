"""What hostile clients can make the server keep: over real sockets, in the memory of the server's process."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from evenflow.amqp import types
from evenflow.amqp.frames import SASL_HEADER
from evenflow.amqp.performatives import ATTACH, BEGIN, DISPOSITION, FLOW, SOURCE, TARGET
from evenflow.amqp.sections import data
from evenflow.amqp.types import FALSE, NULL, map_, string, symbol, uint
from tests.integration.amqp_peer import Peer, terminus
from tests.integration.event_hub_scene import Served, serving
from tests.integration.programs import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

MB = 1024 * 1024


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("memory"), "--hub", "homes:2") as found:
        with Peer(found.port) as one:
            one.open()  # so that what is loaded late is loaded
        yield found


@contextmanager
def growing_less_than(served: Served, most_mb: int) -> Iterator[None]:
    before = served.memory_bytes()
    yield
    assert served.health()["status"] == "ready"
    grown = served.memory_bytes() - before
    assert grown < most_mb * MB, f"it grew by {grown / MB:.0f} MB"


def test_of_a_link_nothing_is_kept_that_is_not_needed(served: Served) -> None:
    """1,000 of them, with 50 KB each that nobody needs."""
    ballast = map_([(symbol("ballast"), types.binary(os.urandom(50_000)))])
    terms = [terminus(SOURCE, "here"), terminus(TARGET, "homes"), NULL, NULL, uint(0), NULL, NULL, NULL, ballast]
    with Peer(served.port) as peer:
        peer.open(frame_bytes=65_536)
        with growing_less_than(served, 20):
            for channel in range(1, 11):
                peer.say(BEGIN, NULL, uint(0), uint(5_000), uint(5_000), uint(255), channel=channel)
                for handle in range(100):
                    peer.say(ATTACH, string(f"s{handle}"), uint(handle), FALSE, NULL, NULL, *terms, channel=channel)
                    peer.hear_of(ATTACH)


def test_a_client_that_stops_reading_gets_no_more_than_it_takes(served: Served) -> None:
    """Whatever its credit, and while its socket is full. Other clients are served meanwhile."""
    send_megabytes(served, 20)
    with growing_less_than(served, 40), ExitStack() as ends:
        for _ in range(5):
            peer = ends.enter_context(Peer(served.port))
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            peer.open()
            peer.begin(window=1_000_000)
            peer.attach_receiver("homes/ConsumerGroups/$Default/Partitions/0")
            peer.hear_of(ATTACH)
            peer.credit(100_000, window=1_000_000)
        # By then it has written far more than the sockets hold, to any client that it does not wait for.
        send_megabytes(served, 20)


def send_megabytes(served: Served, count: int) -> None:
    with Peer(served.port) as sender:
        sender.open()
        sender.begin()
        sender.attach_sender("homes/Partitions/0")
        sender.hear_of(FLOW)
        for number in range(count):
            message = data(b"y" * 1_000_000)
            for at in range(0, len(message), 65_000):
                sender.transfer(message[at : at + 65_000], number, more=at + 65_000 < len(message))
            sender.hear_of(DISPOSITION)


@pytest.mark.parametrize("protocol", ["AMQP", "HTTP"])
def test_invalid_clients_are_answered_and_closed(served: Served, protocol: str) -> None:
    """Over a socket; `tests/unit/emulators/eventhubs/test_bad_input.py` has all the others."""
    said, answer = {
        "AMQP": (b"AMQP\x00\x00\x09\x01", SASL_HEADER),
        "HTTP": (b"GET /elsewhere HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
    }[protocol]
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as one:
        one.sendall(said)
        heard = b""
        while piece := one.recv(65_536):
            heard += piece
    assert heard.startswith(answer)
    assert served.health()["hubs"] == ["homes"]


def test_of_thousands_of_dropped_connections_nothing_is_left(served: Served) -> None:
    began = [b"", SASL_HEADER, b"GARBAGE!", SASL_HEADER[:3]]
    with growing_less_than(served, 10):
        for number in range(2_000):
            with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as one:
                one.sendall(began[number % len(began)])
        wait_for(lambda: served.health()["connections"] == 0, "the server to notice that all have gone")
