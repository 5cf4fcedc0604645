"""The driver, nats-py: a connection that comes back by itself, questions to JetStream, and what errors mean."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakSet

import msgspec

from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.sources.waiting import Waiting

try:
    import nats
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import MaxPayloadError, NoRespondersError
    from nats.js.errors import NotFoundError
except ImportError as error:
    raise Misconfigured("nats:// needs the package nats-py: pip install 'evenflow[nats]'.") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nats.aio.client import Client

__all__ = ["Link", "Missing", "Msg", "StreamFacts", "logger"]

logger = logging.getLogger("evenflow.nats")

ANSWER_S = 5.0
CONNECT_S = 5.0


class Missing(SourceUnavailable):
    """What was asked for is not there."""


class StreamFacts(msgspec.Struct, frozen=True):
    made: str
    subjects: tuple[str, ...]
    first: int
    last: int
    per_subject: int = -1
    """How many messages of one subject are kept; -1: all of them."""
    seen: tuple[str, ...] = ()
    """Subjects that have messages, where they were asked for."""


class Link:
    def __init__(self, servers: str, stream: str, options: dict[str, Any]) -> None:
        hosts, login = _understood(servers)
        self._servers = [f"nats://{host}" if "://" not in host else host for host in hosts]
        self.stream = stream
        self._options = {**login, **options}
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._denied = ""
        """What the server last did not allow: it says so beside the question, which then has no answer."""
        self.readers: WeakSet[object] = WeakSet()
        """Those that share the room for events that wait."""

    def __str__(self) -> str:
        hosts = ", ".join(server.removeprefix("nats://") for server in self._servers)
        return f"stream {self.stream} at {hosts}"

    async def client(self) -> Client:
        """A connection of the loop that runs; one that is just lost gets some time to come back."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._client, self._connecting = loop, None, asyncio.Lock()
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._connected()
        client, until_s = self._client, loop.time() + ANSWER_S
        while not client.is_connected:
            if client.is_closed or loop.time() >= until_s:
                raise SourceUnavailable(f"{self} does not answer: the connection is lost; it is tried again.")
            await Waiting().until(loop.time() + 0.05)
        return client

    async def _connected(self) -> Client:
        """The driver would try for ever, also where it is refused: so what it says meanwhile is listened to."""
        credentials = self._options.get("user_credentials")
        if isinstance(credentials, str) and not Path(credentials).is_file():
            raise Misconfigured(f"{self}: there is no file {credentials} with credentials.")
        refused: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        said: list[Exception] = []

        async def hear(error: Exception) -> None:
            await _told(error)
            said.append(error)
            if "permissions violation" in str(error).lower():
                self._denied = str(error)
            if _is_refusal(str(error)) and not refused.done():
                refused.set_exception(error)

        connecting = asyncio.create_task(self._connect(hear))
        try:
            done, _ = await asyncio.wait([connecting, refused], timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
            with self._translated():
                for first in done:
                    return first.result()
                raise said[-1] if said else TimeoutError(f"no connection within {CONNECT_S:g} s")
        finally:
            refused.cancel()
            if not connecting.done():
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)

    async def _connect(self, hear: Callable[[Exception], Awaitable[None]]) -> Client:
        return await nats.connect(
            servers=self._servers,
            connect_timeout=int(CONNECT_S),
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.5,
            error_cb=hear,
            **{"name": "evenflow", **self._options},
        )

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def facts(self, seen_under: str | None = None) -> StreamFacts:
        question = {"subjects_filter": seen_under} if seen_under is not None else {}
        found = await self.ask(f"STREAM.INFO.{self.stream}", question)
        state = found["state"]
        return StreamFacts(
            str(found.get("created", "")),
            tuple(found["config"].get("subjects") or ()),
            state["first_seq"],
            state["last_seq"],
            found["config"].get("max_msgs_per_subject", -1),
            tuple(state.get("subjects") or ()),
        )

    async def message(self, **which: Any) -> tuple[int, str] | None:
        """Sequence and time of one message of the stream; None when there is none such."""
        try:
            found = (await self.ask(f"STREAM.MSG.GET.{self.stream}", which))["message"]
        except Missing:
            return None
        return found["seq"], found["time"]

    async def ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        """One question to JetStream."""
        client = await self.client()
        try:
            with self._translated():
                answer = await client.request(f"$JS.API.{subject}", msgspec.json.encode(question), timeout=ANSWER_S)
        except SourceUnavailable:
            self.check_allowed(f"$JS.API.{subject}")
            raise
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in found:
            self._raise(found["error"])
        return found

    def check_allowed(self, subject: str) -> None:
        """To be asked when there is no answer."""
        if subject.lower() in self._denied.lower():
            raise Misconfigured(f"{self}: the server does not allow this user what is needed. ({self._denied})")

    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None) -> None:
        """Returns when the stream has it."""
        client = await self.client()
        with self._translated():
            await client.jetstream().publish(subject, body, timeout=ANSWER_S, stream=self.stream, headers=headers)

    async def subscribe(self, inbox: str, take: Callable[[Msg], Awaitable[None]]) -> Any:
        client = await self.client()
        with self._translated():
            return await client.subscribe(inbox, cb=take)

    async def unsubscribe(self, subscription: Any) -> None:
        """Also while the connection is lost: else the driver would subscribe again when it is back."""
        try:
            await subscription.unsubscribe()
        except NatsError:
            pass  # it is closed, and its subscriptions with it

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _raise(self, error: dict[str, Any]) -> None:
        said = error.get("description", "")
        if error.get("code") == 404:
            raise Missing(f"{self} does not exist, or has no such thing: {said}. Make it, or correct the name.")
        if error.get("code") in (400, 403):
            raise Misconfigured(f"{self}: {said}.")
        raise SourceUnavailable(f"{self} does not answer: {said}.")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except NotFoundError as error:
            raise Missing(f"{self} does not exist. Make it, or correct the name. ({error})") from error
        except NoRespondersError as error:
            raise SourceUnavailable(
                f"{self} does not answer: JetStream is not on there, or not for this account. ({error})"
            ) from error
        except ImportError as error:
            raise Misconfigured(f"{self}: credentials need the package nkeys: pip install 'evenflow[nats]'.") from error
        except MaxPayloadError as error:
            raise Misconfigured(
                f"{self}: an event is larger than the server takes. Send less, or raise its max_payload. ({error})"
            ) from error
        except (NatsError, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            if isinstance(error, ssl.SSLCertVerificationError):
                raise Misconfigured(f"{self} shows a certificate that is not trusted here. ({said})") from error
            if _is_refusal(said):
                raise Misconfigured(f"{self}: the server does not let this client in. ({said})") from error
            raise SourceUnavailable(f"{self} does not answer: {said}") from error


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


async def _told(error: Exception) -> None:
    logger.debug("the client of NATS says: %s", error)
