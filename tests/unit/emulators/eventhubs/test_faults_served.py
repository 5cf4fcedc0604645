"""Faults on request, as a client sees them: a busy server, a throttled one, dropped connections, late bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.amqp.performatives import ATTACH, DETACH, DISPOSITION, FLOW, TRANSFER
from evenflow.amqp.sections import data
from evenflow.amqp.types import NULL, TRUE, uint
from evenflow.emulators.eventhubs.faults import EventHubsFaultOptions
from tests.integration.amqp_peer import condition_of
from tests.unit.emulators.eventhubs.memory_server import memory_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.emulators.eventhubs.memory_server import MemoryClient

BUSY = "com.microsoft:server-busy"
REJECTED = 0x25


def attach_sender(peer: MemoryClient) -> None:
    peer.open()
    peer.begin()
    peer.attach_sender("hub/Partitions/0")
    peer.hear_of(FLOW)


def test_a_busy_server_refuses_every_fourth_link_and_send(tmp_path: Path) -> None:
    with (
        memory_server(tmp_path, {"hub": 1}, faults=EventHubsFaultOptions(busy=0.25)) as server,
        server.client() as peer,
    ):
        attach_sender(peer)
        outcomes = []
        for number in range(7):
            peer.transfer(data(b"x"), number)
            state = peer.hear_of(DISPOSITION)[4]
            outcomes.append(condition_of(state.value[0]) if state.value else "")
        # The link was the first to be counted.
        assert outcomes == ["", "", BUSY, "", "", "", BUSY]
        for handle in range(1, 5):
            peer.attach_sender("hub/Partitions/0", handle)
        assert condition_of(peer.hear_of(DETACH)[2]) == BUSY


def test_a_throttled_server_takes_and_gives_so_many_events_a_second(tmp_path: Path) -> None:
    with (
        memory_server(tmp_path, {"hub": 1}, faults=EventHubsFaultOptions(throttle=20)) as server,
        server.client() as peer,
    ):
        attach_sender(peer)
        refused: list[int] = []
        for number in range(60):
            server.pass_s(1.0 if number == 40 else 0.0)
            peer.transfer(data(b"x"), number)
            if peer.hear_of(DISPOSITION)[4].descriptor == REJECTED:
                refused.append(number)
        assert refused == list(range(20, 40)), "a second's worth at once, and as much after a second"
        peer.attach_receiver("hub/ConsumerGroups/$Default/Partitions/0", 1)
        peer.hear_of(ATTACH)
        peer.credit(100, 1)
        assert [peer.hear()[0] for _ in range(20)] == [TRANSFER] * 20
        peer.say(FLOW, uint(20), uint(5_000), uint(0), uint(5_000), NULL, NULL, NULL, NULL, NULL, TRUE)
        assert peer.hear()[0] == FLOW, "no more of them come in this second"
        server.pass_s(1.0)
        assert [peer.hear()[0] for _ in range(20)] == [TRANSFER] * 20


def test_connections_are_dropped_after_a_while(tmp_path: Path) -> None:
    with (
        memory_server(tmp_path, {"hub": 1}, faults=EventHubsFaultOptions(drop_s=5.0)) as server,
        server.client() as peer,
    ):
        server.pass_s(4.9)
        peer.open()
        assert not peer.line.is_closing()
        server.pass_s(0.1)
        assert peer.ends() == []


def test_everything_arrives_late(tmp_path: Path) -> None:
    with (
        memory_server(tmp_path, {"hub": 1}, faults=EventHubsFaultOptions(delay_s=0.1)) as server,
        server.client() as peer,
    ):
        peer.send(b"GET /health HTTP/1.1\r\n\r\n")
        server.pass_s(0.09)
        assert peer.line.get_write_buffer_size() == 0
        server.pass_s(0.02)
        assert peer.line.recv(100).startswith(b"HTTP/1.1 200")
