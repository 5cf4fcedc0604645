"""The server: hubs in a folder, behind ports."""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING

from evenflow.emulators.eventhubs.faults import NO_FAULTS, EventHubsFaultOptions
from evenflow.emulators.eventhubs.listener import ClientSocket
from evenflow.emulators.eventhubs.namespace import Namespace
from evenflow.emulators.eventhubs.service import EventHubsService
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from evenflow.emulators.eventhubs.namespace import ServedHub

LOOPBACK = "127.0.0.1"
BACKLOG = 1_024
ACCEPT_TURNS = 3
"""So many turns of the loop after a client was let in, it is at its door."""
EMULATOR_KEY_NAME = "RootManageSharedAccessKey"
EMULATOR_KEY = "SAS_KEY_VALUE"
"""What stands for a key where none is checked, as in the connection strings of Microsoft's emulator."""


class EventHubsServer:
    """It closes the hubs that it was given. Without keys it listens on this machine alone."""

    def __init__(
        self,
        hubs: Iterable[ServedHub],
        *,
        keys: Mapping[str, str] | None = None,
        faults: EventHubsFaultOptions = NO_FAULTS,
    ) -> None:
        self.namespace = Namespace(hubs)
        self._has_keys = bool(keys)
        self._service = EventHubsService(self.namespace, keys, faults)
        self._listening: list[asyncio.Server] = []

    async def listen(self, host: str = LOOPBACK, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Begin to serve on a port; which one it is, when that was left to the system."""
        if not self._has_keys and not is_loopback(host):
            raise Misconfigured(
                f"{host} can be reached from other machines, so that whoever connects has to have a key. "
                "Give one (--key NAME=KEY), or listen on 127.0.0.1."
            )
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(self.accept, host, port, backlog=BACKLOG, ssl=tls)
        except (OSError, UnicodeError) as error:
            raise Misconfigured(
                f"Cannot listen on {in_url(host)}:{port}: {getattr(error, 'strerror', None) or error}. Choose another"
                " port or --host, or end what has it."
            ) from error
        self._listening.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def accept(self) -> ClientSocket:
        """The protocol of one more client, for any transport."""
        return ClientSocket(self._service)

    async def aclose(self) -> None:
        """Tell the clients, and close the hubs when all that was sent is stored. No socket is left. Idempotent."""
        listening, self._listening = self._listening, []
        for server in listening:
            await stop_listening(server)
        self._service.close()
        for served in self.namespace:
            await served.hub.aclose()
        self._service.abort()


async def stop_listening(server: asyncio.Server) -> None:
    """Let nobody else in, and then close: asyncio forgets the sockets of those who are on their way in meanwhile."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)  # noqa: TID251 - a turn takes no time
    server.close()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """As it stands before a port: an address with colons in brackets."""
    return f"[{host}]" if ":" in host else host


def tls_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"{certificate} is no certificate with its key in PEM: {error}.") from error
    return context


def connection_string(
    port: int, hub: str, *, host: str = LOOPBACK, key_name: str = EMULATOR_KEY_NAME, key: str = EMULATOR_KEY
) -> str:
    """With which official clients connect, without TLS."""
    return (
        f"Endpoint=sb://{in_url(host)}:{port};SharedAccessKeyName={key_name};SharedAccessKey={key};"
        f"UseDevelopmentEmulator=true;EntityPath={hub}"
    )
