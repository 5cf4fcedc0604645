"""`evenflow hub serve` in a process of its own, as a client of Event Hubs sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evenflow.amqp.dialect import EventHubs
from evenflow.testing import event_hub
from tests.integration.programs import EVENFLOW, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

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


IDLE_S = 4.0
"""Long enough for a server that hangs up after two seconds of silence."""


@contextmanager
def idle_timeout_of_a_second(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EventHub, list[object]]]:
    """A server in this process that wants to hear from its clients every second; and the connections opened to it."""
    opened: list[object] = []
    is_welcome = EventHubs.is_welcome

    def counted(dialect: EventHubs) -> bool:
        opened.append(dialect)
        return is_welcome(dialect)

    monkeypatch.setattr("evenflow.amqp.connection.IDLE_MS", 1_000)
    monkeypatch.setattr(EventHubs, "is_welcome", counted)
    with event_hub(1) as hub:
        yield hub, opened


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
