"""Servers like Cosmos DB in processes of their own: `evenflow container serve`, and one that nobody here wrote.

The other is @vercel/cosmosdb-server, from tests/node/node_modules, which `make setup` installs. It knows documents,
queries and ETags; its change feed is none.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Barrier
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from azure.cosmos import CosmosClient

from evenflow.emulators.cosmos.app import THREADS
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from evenflow.testing.cosmos import Cosmos, cosmos
from tests.leaks import shared as shared_by_tests
from tests.servers.processes import LOOPBACK, PATIENCE_S, Folder, Program, Server, answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

_NODE = Path(__file__).parents[1] / "node" / "node_modules"


@contextmanager
def connected(server: CosmosServer, key: str | None = None, **options: Any) -> Iterator[CosmosClient]:
    """The official client. It leaves a pool of threads to the garbage collector; here the pool ends with the client."""
    with CosmosClient(server.url, key or server.key, **{**server.options, **options}) as client:
        try:
            yield client
        finally:
            client.client_connection._global_endpoint_manager.executor.shutdown()


class CosmosServer(Server):
    """What a client needs to know of one."""

    scheme = "http"
    key = EMULATOR_KEY
    options: Mapping[str, Any] = MappingProxyType({})
    """For the client."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._more = options
        self._log = folder.parent / f"cosmos-{self.port}.log"

    def __enter__(self) -> CosmosServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{LOOPBACK}:{self.port}/"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        self._program = Program(self._command(), self._log)
        self._program.wait_until_ready(lambda: answers(self.port))

    def _command(self) -> list[str]:
        serve = ["container", "serve", str(self.folder.absolute()), "--port", str(self.port)]
        return [sys.executable, "-m", "evenflow.cli", *serve, *self._more]


class VercelServer(CosmosServer):
    """It has a certificate that nobody signed, and forgets everything when it ends."""

    scheme = "https"
    options = MappingProxyType({"connection_verify": False, "enable_endpoint_discovery": False})

    def _command(self) -> list[str]:
        return [*(vercel_program() or ()), "-p", str(self.port), "--host", LOOPBACK]


class PlainVercelServer(VercelServer):
    """The same without TLS. It ends the connection with every answer, and a new one is made sooner so."""

    scheme = "http"
    options = MappingProxyType({"enable_endpoint_discovery": False})

    def _command(self) -> list[str]:
        return [*super()._command(), "--no-ssl"]


@cache
def vercel_program() -> tuple[str, ...] | None:
    package, node = _NODE / "@vercel" / "cosmosdb-server" / "package.json", shutil.which("node")
    if node is None or not package.exists():
        return None
    return node, str(package.parent / json.loads(package.read_text())["bin"]["cosmosdb-server"])


@contextmanager
def in_this_process(**options: Any) -> Iterator[Cosmos]:
    """A local Cosmos DB for many tests: all threads that it will ever have are there from the beginning."""
    with cosmos(**options) as server:
        together = Barrier(THREADS)
        for waiting in [server._app._threads.submit(together.wait) for _ in range(THREADS)]:
            waiting.result(PATIENCE_S)
        yield server


@shared_by_tests
def shared_vercel() -> CosmosServer:
    """The one of this test process."""
    server = VercelServer(Folder("vercel", None).path / "data")
    server.start()
    return server


def skip_without_vercel() -> None:
    if vercel_program() is None:
        pytest.skip("there is no @vercel/cosmosdb-server here: install node, and the packages of tests/node")


def shared_vercel_or_skip() -> CosmosServer:
    skip_without_vercel()
    return shared_vercel()


@shared_by_tests
def shared_plain_vercel() -> CosmosServer:
    server = PlainVercelServer(Folder("vercel-plain", None).path / "data")
    server.start()
    return server


def shared_plain_vercel_or_skip() -> CosmosServer:
    skip_without_vercel()
    return shared_plain_vercel()


@shared_by_tests
def shared_local() -> CosmosServer:
    """`evenflow container serve`, the one of this test process; new containers have four ranges."""
    server = CosmosServer(Folder("cosmos", None).path / "data", "--ranges", "4", "--allow-admin")
    server.start()
    return server
