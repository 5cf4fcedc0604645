"""The driver, nats-py: a connection that reconnects, and what the driver's errors mean. No other module imports it.

The driver reconnects when a connection is cut, but a pending request then never gets an answer, and it takes minutes to
notice a server that vanished without closing the connection. So the connection pings often, pending requests learn of
a loss at once, and a connection that does not come back is replaced by a new one, whose failure states the reason.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.sources.waiting import Waiter

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import MaxPayloadError, NoRespondersError
    from nats.js.errors import NotFoundError
except ImportError as error:
    raise Misconfigured("nats:// needs the package nats-py: pip install 'evenflow[nats]'.") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

__all__ = ["JetStreamNotFound", "Msg", "NatsConnection", "NatsError", "logger", "translated"]

logger = logging.getLogger("evenflow.nats")

CONNECT_S = 5.0
RECONNECT_S = 5.0
"""How long the driver may try to reconnect before a new connection replaces it."""
CLOSE_S = 2.0
PING_S, PINGS = 3, 2
"""A connection is lost after this many unanswered pings, this far apart: it is noticed after 6 to 9 s."""
CHECK_EVERY_S = 0.05


class JetStreamNotFound(SourceUnavailable):
    """The stream, the consumer or the message does not exist."""


class NatsConnection:
    """One connection on the running loop, shared by all readers."""

    def __init__(self, servers: str, stream: str, options: dict[str, Any]) -> None:
        hosts, login = _parse_servers(servers)
        self._servers = [f"nats://{host}" if "://" not in host else host for host in hosts]
        self._stream = stream
        self._options = {**login, **options}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._making: asyncio.Task[Client] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_up = False
        """The driver is connected and has renewed all of its subscriptions."""
        self._lost = asyncio.Event()
        self.denied = ""
        """The last permission error. The server reports it separately, and the request itself gets no answer."""
        self.on_loss: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        hosts = ", ".join(server.removeprefix("nats://") for server in self._servers)
        return f"stream {self._stream} at {hosts}"

    @property
    def is_up(self) -> bool:
        return self._client is not None and self._client.is_connected and self._is_up

    async def client(self) -> Client:
        """A connected client. A client that was just disconnected gets some time to reconnect."""
        loop = self._check_loop()
        if self._client is None or self._client.is_closed:
            return await self._shared_attempt()
        client, until_s = self._client, loop.time() + RECONNECT_S
        while not (client.is_connected and self._is_up):
            if client.is_closed or loop.time() >= until_s:
                self._give_up(client)
                raise SourceUnavailable(f"{self} does not answer: the connection was lost. Reconnecting.")
            await Waiter().until(loop.time() + CHECK_EVERY_S)
        return client

    async def until_lost(self, answer: Coroutine[Any, Any, Msg]) -> Msg | None:
        """The answer; None if the connection was lost first."""
        waiting, lost = asyncio.ensure_future(answer), asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait([waiting, lost], return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            lost.cancel()

    async def aclose(self) -> None:
        self._check_loop()
        client, self._client = self._client, None
        if self._making is not None:
            self._making.cancel()
        if client is not None:
            await _close(client)
        # Replaced clients close by themselves, but if the loop ended first, their sockets would stay open.
        ending = {*self._closing, *([self._making] if self._making is not None else [])}
        if ending:
            await asyncio.wait(ending)

    # --- inside
    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """Drops what belongs to an earlier event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._client, self._making, self._closing = loop, None, None, set()
            self._is_up, self._lost = False, asyncio.Event()
        return loop

    async def _shared_attempt(self) -> Client:
        """Callers that need a connection while one is being opened share that attempt, and its error."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._connect())
            self._making.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # retrieves the error, in case no caller waits any more
        return await asyncio.shield(self._making)

    async def _connect(self) -> Client:
        """Opens a connection. The driver would retry forever, even after a rejection, so its errors are observed."""
        credentials = self._options.get("user_credentials")
        if isinstance(credentials, str) and not Path(credentials).is_file():
            raise Misconfigured(f"{self}: the credentials file {credentials} does not exist.")
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []

        async def on_error(error: Exception) -> None:
            logger.debug("the NATS client reports: %s", error)
            errors.append(error)
            if not client.is_connected:
                _hang_up(client)  # the driver opens a new socket for its next attempt
            if "permissions violation" in str(error).lower():
                self.denied = str(error)
            if (_is_refusal(str(error)) or isinstance(error, ssl.SSLCertVerificationError)) and not refused.done():
                refused.set_exception(error)

        client = Client()
        connecting = asyncio.create_task(client.connect(self._servers, **self._connect_options(client, on_error)))
        try:
            done, _ = await asyncio.wait([connecting, refused], timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
            with translated(self):
                for first in done:
                    first.result()
                if not done:
                    raise errors[-1] if errors else TimeoutError(f"no connection within {CONNECT_S:g} s")
        except BaseException:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            await _close(client)
            raise
        finally:
            refused.cancel()
        self._client = client
        self._on_connected()
        return client

    def _connect_options(self, client: Client, on_error: Callable[[Exception], Awaitable[None]]) -> dict[str, Any]:
        """The driver's options. Callbacks of a client that was replaced have no effect."""

        async def on_lost() -> None:
            if self._client is client:
                self._is_up = False
                self._lost.set()
                self.on_loss()

        async def on_reconnected() -> None:
            if self._client is client:
                self._on_connected()

        defaults = {
            "name": "evenflow",
            "connect_timeout": int(CONNECT_S),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.5,
            "ping_interval": PING_S,
            "max_outstanding_pings": PINGS,
        }
        hooks: dict[str, Callable[..., Awaitable[None]]]
        hooks = {"error_cb": on_error, "disconnected_cb": on_lost, "reconnected_cb": on_reconnected}
        both = {name: _call_both(hook, self._options.get(name)) for name, hook in hooks.items()}
        return {**defaults, **self._options, **both}

    def _on_connected(self) -> None:
        self._is_up, self._lost, self.denied = True, asyncio.Event(), ""

    def _give_up(self, client: Client) -> None:
        """Replaces a client that did not reconnect; opening the next one shows the reason."""
        if self._client is client:
            self._client = None
            closing = asyncio.create_task(_close(client))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _close(client: Client) -> None:
    try:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await client.close()
    finally:
        _hang_up(client)


def _hang_up(client: Client) -> None:
    """Closes the socket. The driver leaves it to the garbage collector when the server did not greet it before its next
    attempt, and when it cannot flush at the end."""
    transport: Any = client._transport
    if transport is not None:
        transport.close()
        writer: asyncio.StreamWriter | None = getattr(transport, "_io_writer", None)
        if writer is not None:  # None for a WebSocket
            writer.transport.abort()


def _call_both(ours: Callable[..., Awaitable[None]], theirs: Any) -> Callable[..., Awaitable[None]]:
    if theirs is None:
        return ours

    async def both(*args: Any) -> None:
        await ours(*args)
        await theirs(*args)

    return both


@contextmanager
def translated(what: object) -> Iterator[None]:
    """Raises the driver's errors as ours."""
    try:
        yield
    except NotFoundError as error:
        raise JetStreamNotFound(f"{what} does not exist. Create it, or fix the name. ({error})") from error
    except NoRespondersError as error:
        raise SourceUnavailable(
            f"{what} does not answer: JetStream is not enabled on the server or for this account. ({error})"
        ) from error
    except ImportError as error:
        raise Misconfigured(f"{what}: credentials need the package nkeys: pip install 'evenflow[nats]'.") from error
    except MaxPayloadError as error:
        raise Misconfigured(
            f"{what}: an event is larger than the server accepts. Send smaller events, or raise the server's"
            f" max_payload. ({error})"
        ) from error
    except (NatsError, OSError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            raise Misconfigured(
                f"{what}: the server's certificate is not trusted. Give its CA in the option tls. ({reason})"
            ) from error
        if _is_refusal(reason):
            raise Misconfigured(
                f"{what}: the server rejected this client. Check its credentials and permissions. ({reason})"
            ) from error
        raise SourceUnavailable(f"{what} does not answer: {reason}") from error


def _parse_servers(servers: str) -> tuple[list[str], dict[str, str]]:
    """`[USER:PASSWORD@]HOST,...`: the hosts, and the login for all of them. A user without a password is a token."""
    who, at, hosts = servers.rpartition("@")
    scheme, separator, rest = who.rpartition("://")
    if "@" in who:
        raise Misconfigured("A NATS URL may contain one user only, before all hosts. Write an @ in a password as %40.")
    names = [f"{scheme}{separator}{host}" if "://" not in host else host for host in hosts.split(",")]
    if not at:
        return names, {}
    user, colon, password = rest.partition(":")
    return names, {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}


def _is_refusal(reason: str) -> bool:
    return "authorization" in reason.lower() or "permissions" in reason.lower()
