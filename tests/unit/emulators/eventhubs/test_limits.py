"""What the server keeps for a client is bounded, whatever the client does: by the bytes, and not only by the count."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from evenflow.amqp import types
from evenflow.amqp.frames import framed
from evenflow.amqp.performatives import ATTACH, DISPOSITION, FLOW, TRANSFER
from evenflow.amqp.sections import data
from evenflow.amqp.types import FALSE, NULL, TRUE, described, list_, uint
from evenflow.emulators.eventhubs import connection, listener
from evenflow.emulators.eventhubs.faults import EventHubsFaultOptions
from tests.integration.amqp_peer import UPGRADE
from tests.unit.emulators.eventhubs.memory_server import memory_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.emulators.eventhubs.memory_server import MemoryClient, MemoryServer

KB = 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    with memory_server(tmp_path, {"homes": 1}) as found:
        yield found


@pytest.fixture
def sender(server: MemoryServer) -> Iterator[MemoryClient]:
    with server.client() as found:
        found.open()
        found.begin()
        found.attach_sender("homes/Partitions/0")
        found.hear_of(FLOW)
        yield found


def test_deliveries_in_very_small_pieces_take_no_more_than_their_bytes(sender: MemoryClient) -> None:
    piece = framed(1, described(TRANSFER, list_([uint(0), uint(0), types.binary(b"t"), uint(0), FALSE, TRUE])) + b"ab")
    empty = piece[:3] + bytes((piece[3] - 2,)) + piece[4:-2]
    sender.send(piece * 100 + empty * 100)
    tracemalloc.start()
    try:
        for _ in range(20):
            sender.send(piece * 200 + empty * 20)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 100 * KB, "4,400 pieces with 8 KB"
    sender.say(FLOW, uint(0), uint(1), uint(0), uint(1), NULL, NULL, NULL, NULL, NULL, TRUE)
    assert sender.hear()[0] == FLOW, "the connection goes on"


def test_pings_of_a_client_that_does_not_read_are_not_answered_without_end(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PENDING_BYTES_MAX", 500 * KB)
    ping = b"\x89\xfd\x00\x00\x00\x00" + b"p" * 125
    with server.client() as client:
        client.send(UPGRADE)
        assert client.line.recv(65_536).startswith(b"HTTP/1.1 101")
        while client.line.is_reading():
            client.send(ping * 100)
            assert client.line.get_write_buffer_size() < 600 * KB
        while client.line.get_write_buffer_size() > 100 * KB:
            client.line.recv(65_536)
        client.send(b"")
        assert client.line.is_reading(), "it reads on when the answers are taken"


def test_late_bytes_are_not_collected_without_end(tmp_path: Path) -> None:
    with (
        memory_server(tmp_path, {"homes": 1}, faults=EventHubsFaultOptions(delay_s=20.0)) as server,
        server.client() as client,
    ):
        sent = 0
        while client.line.is_reading():
            client.send(b"\x00" * 64 * KB)
            sent += 64 * KB
            assert sent <= listener.DELAYED_BYTES_MAX + 64 * KB
        server.pass_s(20.0)
        assert client.line.is_reading() or client.line.is_closing()


def test_a_client_that_stops_reading_gets_no_more_than_it_takes(server: MemoryServer, sender: MemoryClient) -> None:
    """The server keeps a bounded amount for it, whatever its credit."""
    for number in range(100):
        sender.transfer(data(b"y" * 60_000), number)
    with server.client() as slow:
        slow.open()
        slow.begin(window=1_000_000)
        slow.attach_receiver("homes/ConsumerGroups/$Default/Partitions/0")
        slow.hear_of(ATTACH)
        slow.credit(100_000, window=1_000_000)
        server.until(lambda: slow.line.is_full)
        for number in range(100):
            assert sender.hear_of(DISPOSITION)[1] == number, "other clients are served meanwhile"
        for _ in range(200):  # far more turns of the loop than all of it would need
            sender.say(FLOW, uint(0), uint(10), uint(100), uint(10), NULL, NULL, NULL, NULL, NULL, TRUE)
            sender.hear_of(FLOW)
        assert slow.line.get_write_buffer_size() < 1_000_000, "6 MB are there, and it has credit for them"
