"""The driver, nats-py: a connection that comes back by itself, and what its errors mean. It is imported here alone.

The driver connects again when a connection is cut, but whoever waits for an answer then waits in vain; and a server
that is gone without a word it notices after minutes. So it asks often whether somebody is there; who waits is told of a
loss at once; and a connection that does not come back is given up for another one, which says why.
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

__all__ = ["Connection", "Missing", "Msg", "NatsError", "logger", "translated"]

logger = logging.getLogger("evenflow.nats")

CONNECT_S = 5.0
BACK_S = 5.0
"""So long the driver may try to come back, before another connection is made."""
CLOSE_S = 2.0
PING_S, PINGS = 3, 2
"""A server that answers none of so many, this far apart, is gone: it is noticed after 6 to 9 s."""
LOOK_S = 0.05


class Missing(SourceUnavailable):
    """What was asked for is not there."""


class Connection:
    """One connection, of the loop that runs, shared by all who read."""

    def __init__(self, servers: str, stream: str, options: dict[str, Any]) -> None:
        hosts, login = _understood(servers)
        self._servers = [f"nats://{host}" if "://" not in host else host for host in hosts]
        self._stream = stream
        self._options = {**login, **options}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._making: asyncio.Task[Client] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_up = False
        """The driver is connected, and has subscribed again to all that it was subscribed to."""
        self._lost = asyncio.Event()
        self.denied = ""
        """What the server last did not allow: it says so beside the question, which then has no answer."""
        self.on_loss: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        hosts = ", ".join(server.removeprefix("nats://") for server in self._servers)
        return f"stream {self._stream} at {hosts}"

    @property
    def is_up(self) -> bool:
        return self._client is not None and self._client.is_connected and self._is_up

    async def client(self) -> Client:
        """One that is connected. Who was just cut off gets some time to come back."""
        loop = self._be_here()
        if self._client is None or self._client.is_closed:
            return await self._shared_attempt()
        client, until_s = self._client, loop.time() + BACK_S
        while not (client.is_connected and self._is_up):
            if client.is_closed or loop.time() >= until_s:
                self._give_up(client)
                raise SourceUnavailable(f"{self} does not answer: the connection is lost; it is tried again.")
            await Waiter().until(loop.time() + LOOK_S)
        return client

    async def until_lost(self, answer: Coroutine[Any, Any, Msg]) -> Msg | None:
        """An answer; None when the connection was lost before it came."""
        waiting, lost = asyncio.ensure_future(answer), asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait([waiting, lost], return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            lost.cancel()

    async def aclose(self) -> None:
        self._be_here()
        client, self._client = self._client, None
        if self._making is not None:
            self._making.cancel()
        if client is not None:
            await _close(client)
        # Those that are given up close by themselves; but a loop that ends first would leave their sockets open.
        ending = {*self._closing, *([self._making] if self._making is not None else [])}
        if ending:
            await asyncio.wait(ending)

    # --- inside
    def _be_here(self) -> asyncio.AbstractEventLoop:
        """What was made in another event loop, which is over, is of no use: begin anew."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._client, self._making, self._closing = loop, None, None, set()
            self._is_up, self._lost = False, asyncio.Event()
        return loop

    async def _shared_attempt(self) -> Client:
        """Whoever needs a connection while one is being made waits for the same, and hears the same."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._made())
            self._making.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # if nobody waits any more
        return await asyncio.shield(self._making)

    async def _made(self) -> Client:
        """The driver would try for ever, also where it is refused: so what it says meanwhile is listened to."""
        credentials = self._options.get("user_credentials")
        if isinstance(credentials, str) and not Path(credentials).is_file():
            raise Misconfigured(f"{self}: there is no file {credentials} with credentials.")
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        said: list[Exception] = []

        async def hear(error: Exception) -> None:
            logger.debug("the client of NATS says: %s", error)
            said.append(error)
            if not client.is_connected:
                _hang_up(client)  # it tries again
            if "permissions violation" in str(error).lower():
                self.denied = str(error)
            if (_is_refusal(str(error)) or isinstance(error, ssl.SSLCertVerificationError)) and not refused.done():
                refused.set_exception(error)

        client = Client()
        connecting = asyncio.create_task(client.connect(self._servers, **self._terms(client, hear)))
        try:
            done, _ = await asyncio.wait([connecting, refused], timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
            with translated(self):
                for first in done:
                    first.result()
                if not done:
                    raise said[-1] if said else TimeoutError(f"no connection within {CONNECT_S:g} s")
        except BaseException:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            await _close(client)
            raise
        finally:
            refused.cancel()
        self._client = client
        self._found()
        return client

    def _terms(self, client: Client, hear: Callable[[Exception], Awaitable[None]]) -> dict[str, Any]:
        """What the driver is told. One that was given up has no more to say about whether there is a connection."""

        async def lost() -> None:
            if self._client is client:
                self._is_up = False
                self._lost.set()
                self.on_loss()

        async def found() -> None:
            if self._client is client:
                self._found()

        defaults = {
            "name": "evenflow",
            "connect_timeout": int(CONNECT_S),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.5,
            "ping_interval": PING_S,
            "max_outstanding_pings": PINGS,
        }
        hooks: dict[str, Callable[..., Awaitable[None]]]
        hooks = {"error_cb": hear, "disconnected_cb": lost, "reconnected_cb": found}
        both = {name: _one_after_the_other(hook, self._options.get(name)) for name, hook in hooks.items()}
        return {**defaults, **self._options, **both}

    def _found(self) -> None:
        self._is_up, self._lost, self.denied = True, asyncio.Event(), ""

    def _give_up(self, client: Client) -> None:
        """It did not come back by itself: another one will tell why."""
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
    """The driver leaves sockets to the garbage collector: that of a server which did not greet it, when it tries again,
    and its last one, when it cannot send what it has left."""
    transport: Any = client._transport
    if transport is not None:
        transport.close()
        writer: asyncio.StreamWriter | None = getattr(transport, "_io_writer", None)
        if writer is not None:  # no WebSocket
            writer.transport.abort()


def _one_after_the_other(ours: Callable[..., Awaitable[None]], theirs: Any) -> Callable[..., Awaitable[None]]:
    if theirs is None:
        return ours

    async def both(*args: Any) -> None:
        await ours(*args)
        await theirs(*args)

    return both


@contextmanager
def translated(what: object) -> Iterator[None]:
    """The driver's errors become ours."""
    try:
        yield
    except NotFoundError as error:
        raise Missing(f"{what} does not exist. Make it, or correct the name. ({error})") from error
    except NoRespondersError as error:
        raise SourceUnavailable(
            f"{what} does not answer: JetStream is not on there, or not for this account. ({error})"
        ) from error
    except ImportError as error:
        raise Misconfigured(f"{what}: credentials need the package nkeys: pip install 'evenflow[nats]'.") from error
    except MaxPayloadError as error:
        raise Misconfigured(
            f"{what}: an event is larger than the server takes. Send less, or raise its max_payload. ({error})"
        ) from error
    except (NatsError, OSError, TimeoutError) as error:
        said = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            raise Misconfigured(f"{what} shows a certificate that is not trusted here. ({said})") from error
        if _is_refusal(said):
            raise Misconfigured(f"{what}: the server does not let this client in. ({said})") from error
        raise SourceUnavailable(f"{what} does not answer: {said}") from error


def _understood(servers: str) -> tuple[list[str], dict[str, str]]:
    """`[USER:PASSWORD@]HOST,...`: its hosts, and who logs in at each of them. A user alone is a token."""
    who, at, hosts = servers.rpartition("@")
    scheme, separator, rest = who.rpartition("://")
    if "@" in who:
        raise Misconfigured("The servers of NATS: name the user once, before all hosts; an @ in a password is %40.")
    names = [f"{scheme}{separator}{host}" if "://" not in host else host for host in hosts.split(",")]
    if not at:
        return names, {}
    user, colon, password = rest.partition(":")
    return names, {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}


def _is_refusal(said: str) -> bool:
    return "authorization" in said.lower() or "permissions" in said.lower()
