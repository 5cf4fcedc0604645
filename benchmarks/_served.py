"""A fleet over a local Event Hubs: its hub is behind a server in another process, and instances connect to that.

An instance says `ready` when everything is loaded, and begins when it is sent a line, so that how long it takes to load
is in no figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks._fleet import Fleet
from evenflow.model import Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

VARIABLE = "EVENTHUBS_CONNECTION_STRING"
GROUP = "$Default"
PORT = 5672


class ServedFleet(Fleet):
    def __init__(self, *, partitions: int, host: str | None = None) -> None:
        """With a host of its own it listens on the port that clients take where none is named."""
        super().__init__(partitions=partitions)
        where = ["--port", "0"] if host is None else ["--host", host, "--port", str(PORT)]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "evenflow.cli", "hub", "serve", str(self.hub), *where, "--json"],
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        ready = json.loads(self._server.stdout.readline())
        connection_string = ready["connection_string"].replace(f":{PORT};", ";")
        self.environment = {**os.environ, VARIABLE: connection_string}
        self.group = Group(host or f"127.0.0.1:{ready['port']}", "hub", GROUP)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._server.kill()
            for process in (self._server, *self.consumers.values()):
                with process:  # closes its pipes, too
                    process.wait()

    def load(self, name: str, command: Sequence[str]) -> None:
        """Start an instance, which has yet to begin."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment)
        self.consumers[name] = process
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{name} did not get ready")

    def go(self, *names: str) -> None:
        for name in names:
            pipe = self.consumers[name].stdin
            assert pipe is not None
            pipe.write(b"go\n")
            pipe.close()
