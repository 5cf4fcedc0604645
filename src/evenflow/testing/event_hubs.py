"""A local Event Hubs for tests: official clients connect to it, in this process or in another.

with event_hub(partitions=4) as hub:
    client = EventHubProducerClient.from_connection_string(hub.connection_string)
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from evenflow.emulators.eventhubs.folder import HubDeclaration, open_exclusively
from evenflow.emulators.eventhubs.server import EMULATOR_KEY, EMULATOR_KEY_NAME, EventHubsServer, connection_string

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from evenflow.embedded.hub import Hub

STOP_S = 10.0


class EventHub:
    """A running event hub. Tests may also send and read its events through `hub`."""

    def __init__(self, name: str, port: int, connection_string: str, hub: Hub) -> None:
        self.name = name
        self.port = port
        self.connection_string = connection_string
        self.hub = hub

    @property
    def url(self) -> str:
        """The same hub as a source: `Processor(source=hub.url)`."""
        return f"hub:{self.hub.path}"


@contextmanager
def event_hub(
    partitions: int = 4,
    *,
    name: str = "hub",
    groups: Sequence[str] = (),
    key: str | None = None,
    path: str | os.PathLike[str] | None = None,
    port: int = 0,
) -> Iterator[EventHub]:
    """Serve a hub on this machine, on a free port, until the block ends.

    `groups` are consumer groups besides $Default. With a `key`, tokens are checked. With a `path`, the hub is kept in
    that folder, which may already hold it; otherwise it is deleted at the end.
    """
    folder = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="evenflow-event-hub-"))
    try:
        with open_exclusively(folder, [HubDeclaration(name, partitions, tuple(groups))]) as served:
            found = next(one for one in served if one.name.lower() == name.lower())
            server = EventHubsServer(served, keys={} if key is None else {EMULATOR_KEY_NAME: key})
            with _running(server, port) as taken:
                text = connection_string(taken, found.name, key=key or EMULATOR_KEY)
                yield EventHub(found.name, taken, text, found.hub)
    finally:
        if path is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(server: EventHubsServer, port: int) -> Iterator[int]:
    """Run the server in a thread with its own event loop, which a test that blocks its loop does not block."""
    started = Event()
    failed: list[BaseException] = []
    loop = asyncio.new_event_loop()
    ports: list[int] = []

    async def serve() -> None:
        try:
            ports.append(await server.listen(port=port))
        except BaseException as error:
            failed.append(error)
            await server.aclose()
            loop.stop()
        finally:
            started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        first = loop.create_task(serve())
        loop.run_forever()
        first.cancel()
        loop.close()

    thread = Thread(target=run, name="evenflow-event-hub", daemon=True)
    thread.start()
    started.wait()
    try:
        if failed:
            raise failed[0]
        yield ports[0]
    finally:
        if not failed:
            asyncio.run_coroutine_threadsafe(server.aclose(), loop).result(STOP_S)
            loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S)
