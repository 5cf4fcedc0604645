"""A real Azurite (Azure Blob Storage on loopback, from npm): one for the whole run of a test process."""

from __future__ import annotations

import shutil
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from tests.servers.processes import LOOPBACK, Folder, Program, answers, free_port

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Known to everybody: it is in Azurite's own documentation."""

PROGRAM = Path(__file__).parents[1] / "node" / "node_modules" / ".bin" / "azurite-blob"


class Azurite:
    def __init__(self) -> None:
        self._folder = Folder("azurite", None)
        self.port = free_port()
        self._numbers = count(1)
        options = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        command = [str(PROGRAM), "--blobHost", LOOPBACK, "--blobPort", str(self.port), *options]
        self._program = Program(command, self._folder.path / "log")
        self._program.wait_until_ready(lambda: answers(self.port))

    @property
    def connection_string(self) -> str:
        endpoint = f"http://{LOOPBACK}:{self.port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"

    def make_container(self) -> str:
        """A new and empty one."""
        from azure.storage.blob import BlobServiceClient

        name = f"container-{next(self._numbers)}"
        with BlobServiceClient.from_connection_string(self.connection_string) as service:
            service.create_container(name)
        return name


@cache
def shared() -> Azurite:
    """The one of this test process."""
    return Azurite()


def shared_or_skip() -> Azurite:
    if not PROGRAM.exists() or shutil.which("node") is None:
        pytest.skip("Azurite is not here: it takes Node.js, and `npm ci` in tests/node")
    return shared()
