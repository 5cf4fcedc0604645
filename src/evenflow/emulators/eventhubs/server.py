"""The server: listens on ports and serves hubs."""

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
"""How many event loop iterations asyncio needs from accepting a socket to creating its protocol."""
EMULATOR_KEY_NAME = "RootManageSharedAccessKey"
EMULATOR_KEY = "SAS_KEY_VALUE"
"""The placeholder for a key that is not checked, as in connection strings of Microsoft's emulator."""


class EventHubsServer:
    """Serves hubs and closes them at the end. Without keys it listens on loopback only."""

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
        """Start to serve on a port, and return it; port 0 picks a free one."""
        if not self._has_keys and not is_loopback(host):
            raise Misconfigured(
                f"{host} is reachable from other machines, so clients need a key. "
                "Set one (--key NAME=KEY), or listen on 127.0.0.1."
            )
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(self.accept, host, port, backlog=BACKLOG, ssl=tls)
        except (OSError, UnicodeError) as error:
            raise Misconfigured(
                f"Cannot listen on {in_url(host)}:{port}: {getattr(error, 'strerror', None) or error}. Choose another"
                " port or --host, or stop the program that uses it."
            ) from error
        self._listening.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def accept(self) -> ClientSocket:
        """The protocol of a new client, for any transport."""
        return ClientSocket(self._service)

    async def aclose(self) -> None:
        """Close all connections, store what clients have sent, then close the hubs and sockets. Idempotent."""
        listening, self._listening = self._listening, []
        for server in listening:
            await stop_listening(server)
        self._service.close()
        for served in self.namespace:
            await served.hub.aclose()
        self._service.abort()


async def stop_listening(server: asyncio.Server) -> None:
    """Stop accepting, then close. asyncio would otherwise leak sockets that it is just accepting."""
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
    """The host as in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def tls_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"{certificate} is not a PEM certificate with its key: {error}.") from error
    return context


def connection_string(
    port: int, hub: str, *, host: str = LOOPBACK, key_name: str = EMULATOR_KEY_NAME, key: str = EMULATOR_KEY
) -> str:
    """The connection string for official clients, without TLS."""
    return (
        f"Endpoint=sb://{in_url(host)}:{port};SharedAccessKeyName={key_name};SharedAccessKey={key};"
        f"UseDevelopmentEmulator=true;EntityPath={hub}"
    )
