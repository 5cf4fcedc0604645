"""A local Cosmos DB for tests: official clients connect to it, in this process or in another.

with cosmos() as server:
    client = CosmosClient(server.url, server.key)
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from evenflow.embedded.container.clock import wall_us as system_wall_us
from evenflow.emulators.cosmos.app import CosmosApp
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from evenflow.emulators.cosmos.faults import NO_FAULTS, CosmosFaultOptions
from evenflow.emulators.cosmos.server import LOOPBACK, CosmosServer, bind

if TYPE_CHECKING:
    import os
    import socket
    from collections.abc import Callable, Iterator

    from evenflow.embedded.container import Container
    from evenflow.emulators.cosmos.account import CosmosAccount

STOP_S = 15.0


class Cosmos:
    """A running local Cosmos DB. `key` defaults to the key of Microsoft's emulator."""

    def __init__(self, app: CosmosApp, port: int, key: str) -> None:
        self._app = app
        self.port = port
        self.key = key

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def connection_string(self) -> str:
        return f"AccountEndpoint={self.url};AccountKey={self.key};"

    @property
    def account(self) -> CosmosAccount:
        """The served databases and containers, to create and delete them without a client."""
        return self._app.account

    def container(self, database: str, container: str) -> Container:
        """The embedded container behind a container of the server, to inspect it and to split and merge its ranges."""
        return self._app.account.container(database, container)

    def __repr__(self) -> str:
        return f"Cosmos({self.url!r})"


@contextmanager
def cosmos(
    *,
    key: str = EMULATOR_KEY,
    ranges: int = 1,
    faults: CosmosFaultOptions = NO_FAULTS,
    path: str | os.PathLike[str] | None = None,
    port: int = 0,
    wall_us: Callable[[], int] = system_wall_us,
) -> Iterator[Cosmos]:
    """Serve a local Cosmos DB on this machine, on a free port, until the block ends.

    Each container starts with this number of `ranges`. With a `path`, the data is kept in that folder, which may hold
    earlier data; otherwise it is deleted at the end. `wall_us` is the clock that stamps documents, in microseconds
    since 1970; requests from clients whose clock differs by more than 15 minutes are refused.
    """
    folder = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="evenflow-cosmos-"))
    try:
        app = CosmosApp(folder, key=key, ranges=ranges, allow_admin=True, faults=faults, wall_us=wall_us)
        with _running(app, bind(LOOPBACK, port, key)) as taken:
            yield Cosmos(app, taken, key)
    finally:
        if path is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(app: CosmosApp, taken: socket.socket) -> Iterator[int]:
    """Run the server in a thread with its own event loop, which a test that blocks its loop does not block."""
    port: int = taken.getsockname()[1]
    started = Event()
    server = CosmosServer(app, started.set)

    def run() -> None:
        try:
            asyncio.run(server.run_on(taken))
        finally:
            started.set()

    thread = Thread(target=run, name="evenflow-cosmos", daemon=True)
    thread.start()
    started.wait()
    try:
        yield port
    finally:
        server.end()
        thread.join(STOP_S)
