"""Azurite with a folder on the disk: a server of blobs that may be stopped and started again with what it had."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob.aio import ContainerClient

from tests.servers.processes import LOOPBACK, Folder, Program, answers, free_port

NODE = Path(__file__).parents[1] / "node" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The one that everybody knows: Azurite's own."""
CONTAINER = "leases"


class AzuriteOnDisk:
    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None or not NODE.exists():
            pytest.skip("Azurite is not here: it needs node, and npm ci in tests/node")
        self._folder = Folder("azurite", None)
        self.port = free_port()
        self._numbers = count(1)
        self._command = [
            *(node, str(NODE), "--blobHost", LOOPBACK, "--blobPort", str(self.port)),
            *("--location", str(self._folder.path), "--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        ]
        self._program: Program
        self.start()
        asyncio.run(self._make_container())

    def start(self) -> None:
        self._program = Program(self._command, self._folder.path / "log")
        self._program.wait_until_ready(lambda: answers(self.port))

    def stop(self) -> None:
        """Well, so that all is on the disk."""
        self._program.stop(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self._program.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._program.pid, signal.SIGCONT)

    def remove(self) -> None:
        self._program.stop(signal.SIGKILL)
        self._folder.remove()

    def endpoint(self, port: int | None = None) -> str:
        return f"http://{LOOPBACK}:{port or self.port}/{ACCOUNT}"

    def url(self, prefix: str = "evenflow", *, port: int | None = None, more: str = "") -> str:
        there = f"account={ACCOUNT}&account_key={quote(KEY, safe='')}&endpoint={self.endpoint(port)}"
        return f"az://{CONTAINER}/{prefix}?{there}&allow_http=yes{more}"

    def fresh(self) -> str:
        """A prefix that nobody has used yet."""
        return f"test{next(self._numbers)}"

    async def _make_container(self) -> None:
        async with ContainerClient(self.endpoint(), CONTAINER, credential=KEY) as client:
            try:
                await client.create_container()
            except ResourceExistsError:
                pass


@cache
def shared() -> AzuriteOnDisk:
    """One for the whole run of a test process."""
    return AzuriteOnDisk()
