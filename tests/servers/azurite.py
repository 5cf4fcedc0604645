"""A real Azurite (Azure's own storage emulator) of the tests' own: on loopback, on a free port, stopped by its pid.

The program is what `EVENFLOW_AZURITE_BLOB` names, or the one in tests/node/node_modules, which `make setup` installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from evenflow.stores.azblob.options import EMULATOR, EMULATOR_KEY
from tests.leaks import shared as shared_by_tests
from tests.servers.processes import LOOPBACK, Folder, Program, Server, free_port

_NODE = Path(__file__).parents[1] / "node" / "node_modules"
_numbers = count(1)
QUIET_S = 0.1


@cache
def program() -> tuple[str, ...] | None:
    if named := os.environ.get("EVENFLOW_AZURITE_BLOB"):
        return (named,)
    package, node = _NODE / "azurite" / "package.json", shutil.which("node")
    if node is None or not package.exists():
        return None
    return node, str(package.parent / json.loads(package.read_text())["bin"]["azurite-blob"])


def skip_without_server() -> None:
    if program() is None:
        pytest.skip("there is no Azurite here: install node, and the packages of tests/node (`make setup`)")


@shared_by_tests
def shared() -> Azurite:
    """The one of this test process. What is in it is gone with it."""
    return Azurite(Folder("azurite", None).path / "log").start()


def shared_or_skip() -> Azurite:
    skip_without_server()
    return shared()


class Azurite(Server):
    """One server. With a folder it may be stopped, killed and started again, with all that was in it."""

    def __init__(self, log: Path, folder: Path | None = None, *, tells: bool = False) -> None:
        """One that `tells` writes a line for each request into its log, which `puts` and `requests` count."""
        skip_without_server()
        self._tells = tells
        self.port = free_port()
        self._log = log
        self._folder = folder

    def start(self) -> Azurite:
        """Returns when it answers."""
        where = ["--location", str(self._folder)] if self._folder is not None else ["--inMemoryPersistence"]
        options = ["--blobHost", LOOPBACK, "--blobPort", str(self.port), "--disableTelemetry"]
        options += [] if self._tells else ["--silent"]
        self._program = Program([*(program() or ()), *options, "--skipApiVersionCheck", *where], self._log)
        self._program.wait_until_ready(self._answers)
        return self

    def endpoint(self, port: int | None = None) -> str:
        return f"http://{LOOPBACK}:{port or self.port}/{EMULATOR}"

    @property
    def connection_string(self) -> str:
        account = f"DefaultEndpointsProtocol=http;AccountName={EMULATOR};AccountKey={EMULATOR_KEY}"
        return f"{account};BlobEndpoint={self.endpoint()};"

    def container(self, name: str) -> ContainerClient:
        """The official client of one container, as other programs use it."""
        client: ContainerClient = ContainerClient.from_connection_string(self.connection_string, name)
        return client

    def make_container(self) -> str:
        """A new and empty one."""
        name = f"test{next(_numbers)}"
        with self.container(name) as client:
            client.create_container()
        return name

    def url(self, container: str | None = None, port: int | None = None, more: str = "") -> str:
        """Of a store; of an empty one, if no container is named."""
        return f"azblob://{EMULATOR}/{container or self.make_container()}?endpoint={self.endpoint(port)}{more}"

    def puts(self) -> int:
        """How many writes it has done."""
        return len(re.findall(r'"PUT [^"]*" 20', self._told()))

    def requests(self) -> int:
        """How many it has answered."""
        return len(re.findall(r'"[A-Z]+ [^"]*" \d{3} ', self._told()))

    def _told(self) -> str:
        """All of its log: lines come a little after the answers."""
        told, before = self._log.read_text(), None
        while told != before:
            time.sleep(QUIET_S)
            told, before = self._log.read_text(), told
        return told

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint(), timeout=1.0):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
