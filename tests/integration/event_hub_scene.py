"""`evenflow hub serve` in a process of its own, as a client of Event Hubs sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.amqp.frames import HEARTBEAT, FrameBuffer
from evenflow.emulators.eventhubs.connection import AmqpConnection
from evenflow.emulators.eventhubs.service import EventHubsService
from evenflow.testing import event_hub
from tests.integration.programs import EVENFLOW, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from evenflow.amqp.frames import Frame
    from evenflow.testing import EventHub


class Served:
    """A server that has said that it is ready."""

    def __init__(self, process: subprocess.Popen[str], facts: dict[str, Any]) -> None:
        self.process = process
        self.port: int = facts["port"]
        self.tls_port: int = facts["tls_port"]
        self.facts = facts

    def connection_string(self, hub: str = "homes", key: str = "SAS_KEY_VALUE", name: str = "key") -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={name};SharedAccessKey={key};"
            f"UseDevelopmentEmulator=true;EntityPath={hub}"
        )

    def health(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def memory_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/statm") as found:
            return int(found.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> str:
        """Ask it to end; what it said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, said
        return said


class Heard(NamedTuple):
    """What a server in this process counted, each a list that grows."""

    connections: list[object]
    heartbeats: list[object]
    """Of its clients: the connection of each."""
    said: list[object]
    """Its own heartbeats."""

    def one_stays(self) -> bool:
        """Over one and the same connection both sides had to be heard from, and had nothing else to say."""
        return max(Counter(map(id, self.heartbeats)).values(), default=0) >= 4 and len(self.said) >= 1


@contextmanager
def heartbeats_every_second(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EventHub, Heard]]:
    """A server that asks its clients for a heartbeat every second. How long it waits for one is as always, so that a
    client on a busy machine is not too late."""
    heard = Heard([], [], [])
    accepts_connections, write = EventHubsService.accepts_connections, AmqpConnection._write

    class CountingFrameBuffer(FrameBuffer):
        def frame(self) -> Frame | None:
            found = super().frame()
            if found is not None and not found.body:
                heard.heartbeats.append(self)
            return found

    def count_connection(service: EventHubsService) -> bool:
        heard.connections.append(service)
        return accepts_connections(service)

    def count_written(connection: AmqpConnection, data: bytes) -> None:
        if data == HEARTBEAT:
            heard.said.append(connection)
        write(connection, data)

    monkeypatch.setattr("evenflow.emulators.eventhubs.connection.IDLE_MS", 1_000)
    monkeypatch.setattr("evenflow.emulators.eventhubs.connection.FrameBuffer", CountingFrameBuffer)
    monkeypatch.setattr(EventHubsService, "accepts_connections", count_connection)
    monkeypatch.setattr(AmqpConnection, "_write", count_written)
    with event_hub(1) as hub:
        yield hub, heard


@contextmanager
def serving(folder: Path, *options: str, port: int = 0) -> Iterator[Served]:
    """It must end well, and without a word."""
    process = subprocess.Popen(
        [*EVENFLOW, "hub", "serve", "data", "--port", str(port), "--tls-port", "0", "--json", *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            served = Served(process, json.loads(line))
            yield served
            if process.poll() is None:
                assert served.stop() == ""
        finally:
            process.kill()
