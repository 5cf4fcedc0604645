"""What clients that mean no good can make the server keep: by real sockets, in the server's own memory."""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from evenflow.amqp import types
from evenflow.amqp.frames import framed
from evenflow.amqp.performatives import ATTACH, BEGIN, FLOW, SOURCE, TARGET, TRANSFER
from evenflow.amqp.types import FALSE, NULL, TRUE, described, list_, map_, string, symbol, uint
from tests.integration.amqp_peer import Peer, terminus
from tests.integration.event_hub_scene import Served, serving
from tests.integration.test_event_hubs_trouble import UPGRADE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

MB = 1024 * 1024
QUIET_S = 1.0
"""Who has not got rid of a byte for so long is not listened to."""


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


def push(one: socket.socket, block: bytes, most: int) -> int:
    """Send it again and again without reading anything, until nothing more is taken; how much was."""
    one.setblocking(False)
    sent, at, heard_s = 0, 0, time.monotonic()
    while sent < most and time.monotonic() - heard_s < QUIET_S:
        try:
            count = one.send(block[at:])
        except BlockingIOError:
            time.sleep(0.002)
            continue
        at = (at + count) % len(block)
        sent, heard_s = sent + count, time.monotonic()
    return sent


def nothing_but_flows(peer: Peer) -> bool:
    """All that was said so far, which does not include a goodbye."""
    peer.say(FLOW, uint(0), uint(1), uint(0), uint(1), NULL, NULL, NULL, NULL, NULL, TRUE)
    return peer.hear()[0] in (FLOW, ATTACH)


def test_deliveries_in_very_small_pieces_take_no_more_than_their_bytes(served: Served) -> None:
    piece = framed(1, described(TRANSFER, list_([uint(0), uint(0), types.binary(b"t"), uint(0), FALSE, TRUE])) + b"ab")
    empty = piece[:3] + bytes((piece[3] - 2,)) + piece[4:-2]
    with Peer(served.port) as peer:
        peer.open()
        peer.begin()
        peer.attach_sender("homes")
        with growing_less_than(served, 6):
            for _ in range(250):
                peer.send(piece * 1_000 + empty * 100)
            assert served.health()["status"] == "ready"
            assert nothing_but_flows(peer), "it must not have hung up"


def test_pings_of_a_client_that_does_not_read_are_not_answered_without_end(served: Served) -> None:
    ping = b"\x89\xfd\x00\x00\x00\x00" + b"p" * 125
    with socket.create_connection(("127.0.0.1", served.port)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        one.sendall(UPGRADE)
        assert one.recv(65_536).startswith(b"HTTP/1.1 101")
        with growing_less_than(served, 25):
            push(one, ping * 500, 60 * MB)


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


def test_what_is_heard_late_is_not_collected_without_end(tmp_path: Path) -> None:
    with serving(tmp_path, "--fault", "delay=20s") as late, socket.create_connection(("127.0.0.1", late.port)) as one:
        before = late.memory_bytes()
        sent = push(one, b"\x00" * MB, 100 * MB)
        assert late.memory_bytes() - before < 15 * MB
        assert sent < 50 * MB
