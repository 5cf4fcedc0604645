"""The local hub in a process of its own: `evenflow hub serve`, on one port for as long as its test lasts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.servers.processes import LOOPBACK, PATIENCE_S, answers, free_port, wait_until

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

POLICY = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"


class HubServer:
    def __init__(self, folder: Path, name: str, partitions: int, *groups: str) -> None:
        self.folder, self.name = folder, name
        self.port = free_port()
        self._declared = f"{name}:{partitions}:{','.join(groups)}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> HubServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        options = ["--port", str(self.port), "--hub", self._declared]
        with (self.folder.parent / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenflow.cli", "hub", "serve", str(self.folder), *options],
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: answers(self.port), f"the hub at port {self.port}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    @property
    def url(self) -> str:
        return f"eventhubs://{POLICY}:{KEY}@{LOOPBACK}:{self.port}/{self.name}?use_tls=false"

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://{LOOPBACK}:{self.port};SharedAccessKeyName={POLICY};SharedAccessKey={KEY};"
            f"UseDevelopmentEmulator=true;EntityPath={self.name}"
        )
