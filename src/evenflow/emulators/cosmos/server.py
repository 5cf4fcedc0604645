"""Serves a local Cosmos DB with uvicorn on one address."""

from __future__ import annotations

import socket
import ssl
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from evenflow.errors import Misconfigured

try:
    import uvicorn
except ImportError as error:
    raise Misconfigured("A local Cosmos DB needs uvicorn. Install it with: pip install 'evenflow[serve]'.") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from evenflow.emulators.cosmos.app import CosmosApp

LOOPBACK = "127.0.0.1"
ENDING_S = 5
"""How long running requests may take when the server stops."""
BACKLOG = 1_024


class CosmosServer(uvicorn.Server):
    """One server on one socket. It calls `ready` once it accepts requests; `end` stops it."""

    def __init__(
        self,
        app: CosmosApp,
        ready: Callable[[], None] = lambda: None,
        certificate: Path | None = None,
        certificate_key: Path | None = None,
    ) -> None:
        _check(certificate, certificate_key)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=ENDING_S,
                lifespan="off",
                ws="none",
                ssl_certfile=certificate,
                ssl_keyfile=certificate_key,
            )
        )
        self._app, self._ready = app, ready

    def end(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the program that runs this server handles signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def run_on(self, taken: socket.socket) -> None:
        """Serve until `end`, then close the application."""
        try:
            await self.serve([taken])
        finally:
            self._app.close()
            taken.close()


def _check(certificate: Path | None, certificate_key: Path | None) -> None:
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, certificate_key)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"{certificate} is not a PEM certificate with its key: {error}.") from error


def bind(host: str, port: int, key: str) -> socket.socket:
    """A listening socket; port 0 picks a free port. An address other than loopback needs a private key."""
    if key == EMULATOR_KEY and not is_loopback(host):
        raise Misconfigured(
            f"{host} is reachable from other machines, and the emulator's default key is public. Set a private key "
            "(--key), or listen on 127.0.0.1."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is TCP explicitly. Without it, each request takes 40 ms longer.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host.strip("[]"), port))
        taken.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        taken.close()
        raise Misconfigured(
            f"Cannot listen on {host}:{port}: {error}. Choose another port, or stop the program that uses it."
        ) from error
    return taken


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
