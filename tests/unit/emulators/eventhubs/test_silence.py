"""Who is silent for too long is disconnected, and heartbeats of both sides prevent it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.amqp.frames import HEARTBEAT
from evenflow.amqp.performatives import CLOSE
from evenflow.emulators.eventhubs.connection import IDLE_TIMEOUT_S, OPEN_TIMEOUT_S
from tests.integration.amqp_peer import condition_of
from tests.unit.emulators.eventhubs.memory_server import memory_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.emulators.eventhubs.memory_server import MemoryServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    with memory_server(tmp_path, {"homes": 1}) as found:
        yield found


@pytest.mark.parametrize("stage", ["connected", "greeted", "opened"])
def test_a_silent_client_is_disconnected(server: MemoryServer, stage: str) -> None:
    patience_s = IDLE_TIMEOUT_S if stage == "opened" else OPEN_TIMEOUT_S
    with server.client() as peer:
        if stage == "greeted":
            peer.greet()
        elif stage == "opened":
            peer.open()
        server.pass_s(patience_s - 1)
        assert not peer.line.is_closing()
        server.pass_s(IDLE_TIMEOUT_S / 4)  # how often it looks
        said = [condition_of(fields[0]) for code, fields in peer.ends() if code == CLOSE]
        assert said == (["amqp:resource-limit-exceeded"] if stage == "opened" else [])


def test_a_client_that_sends_heartbeats_stays(server: MemoryServer) -> None:
    with server.client() as peer:
        peer.open()
        for _ in range(12):
            peer.send(HEARTBEAT)
            server.pass_s(IDLE_TIMEOUT_S / 2)
        peer.begin()


def test_a_silent_client_gets_heartbeats_as_often_as_it_asked(server: MemoryServer) -> None:
    with server.client() as peer:
        peer.open(idle_ms=400)
        for _ in range(3):
            server.pass_s(0.1)
            assert peer.line.recv(64) == HEARTBEAT
