"""Serves a console with uvicorn on one address, and shuts it down on a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import webbrowser
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from threading import Thread
from typing import TYPE_CHECKING, Protocol

import uvicorn

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Receive, Scope, Send

ENDINGS = (signal.SIGINT, signal.SIGTERM)
EVERYWHERE = ("0.0.0.0", "::", "[::]")
ENDING_S = 5
"""How long running requests may take at shutdown."""


class Served(Protocol):
    """A console, or an application that it is mounted in."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def end_streams(self) -> None:
        """End the streams of all pages: a server that ends waits for them."""
        ...


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to this address; port 0 picks a free one. Misconfigured when it cannot be bound."""
    with ExitStack() as ends:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            # With the protocol given, asyncio sets TCP_NODELAY.
            taken = ends.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host.strip("[]"), port))
        except (OSError, OverflowError) as error:
            raise Misconfigured(
                f"Cannot serve on {host}:{port}: {error}. Choose another address with --port or --host."
            ) from error
        ends.pop_all()
        return taken


def address_of(taken: socket.socket, host: str) -> str:
    """The URL for a browser; a server on all addresses is reached by the machine's name."""
    port = taken.getsockname()[1]
    if host in EVERYWHERE:
        return f"http://{socket.gethostname()}:{port}/"
    return f"http://[{host.strip('[]')}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def open_browser(*addresses: str) -> None:
    """Returns at once: some browsers block until they are closed, and this thread serves their pages."""

    def show() -> None:
        with suppress(webbrowser.Error):
            for address in addresses:
                webbrowser.open(address)

    Thread(target=show, name="evenflow-browser", daemon=True).start()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, console: Served, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._console, self._ready = console, ready

    def end(self) -> None:
        """The streams never end by themselves, so end them first."""
        self._console.end_streams()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone: `serve` handles them, or the embedding program does."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


async def serve(
    console: Served, taken: socket.socket, ready: Callable[[], None] = lambda: None, *, signals: bool = True
) -> None:
    """Serve until SIGTERM or Ctrl-C, or, without `signals`, until cancelled. Calls `ready` once it is serving."""
    config = uvicorn.Config(
        console,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=ENDING_S,
        lifespan="on",
        ws="none",
    )
    server = _Server(config, console, ready)
    serving = asyncio.ensure_future(server.serve([taken]))
    try:
        with _on_signals(server.end) if signals else nullcontext():
            await asyncio.shield(serving)
    finally:
        server.end()
        await serving
        taken.close()


@contextmanager
def _on_signals(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` when a signal arrives."""
    loop = asyncio.get_running_loop()
    for number in ENDINGS:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in ENDINGS:
            loop.remove_signal_handler(number)
