"""The server: hubs in a folder, behind ports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.amqp.dialect import EventHubs
from evenflow.amqp.door import Door
from evenflow.amqp.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from evenflow.amqp.namespace import ServedHub

LOOPBACK = "127.0.0.1"
EMULATOR_KEY_NAME = "RootManageSharedAccessKey"
EMULATOR_KEY = "SAS_KEY_VALUE"
"""What stands for a key where none is checked, as in the connection strings of Microsoft's emulator."""


class Server:
    def __init__(self, hubs: Iterable[ServedHub], *, keys: Mapping[str, str] | None = None) -> None:
        self.dialect = EventHubs(Namespace(hubs), keys)
        self._listening: list[asyncio.Server] = []

    async def listen(self, host: str = LOOPBACK, port: int = 0) -> int:
        """Begin to serve; the port, which may have been left to the system."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Door(self.dialect), host, port, backlog=1024)
        self._listening.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def aclose(self) -> None:
        for server in self._listening:
            server.close()
        self.dialect.close()
        for served in self.dialect.namespace:
            await served.hub.aclose()


def connection_string(
    port: int, hub: str, *, host: str = "localhost", key_name: str = EMULATOR_KEY_NAME, key: str = EMULATOR_KEY
) -> str:
    """With which official clients connect, without TLS."""
    return (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName={key_name};SharedAccessKey={key};"
        f"UseDevelopmentEmulator=true;EntityPath={hub}"
    )
