"""The driver, nats-py: a connection that comes back by itself, questions to JetStream, and what errors mean."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from evenflow.errors import Misconfigured, SourceUnavailable

try:
    import nats
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import MaxPayloadError
    from nats.js.errors import NotFoundError
except ImportError as error:
    raise Misconfigured("nats:// needs the package nats-py: pip install 'evenflow[nats]'.") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

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
    seen: tuple[str, ...] = ()
    """Subjects that have messages, where they were asked for."""


class Link:
    def __init__(self, servers: Sequence[str], stream: str, options: dict[str, Any]) -> None:
        self._servers = [f"nats://{server}" if "://" not in server else server for server in servers]
        self.stream = stream
        self._options = options
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self.readers: WeakSet[object] = WeakSet()
        """Those that share the room for events that wait."""

    def __str__(self) -> str:
        hosts = ", ".join(server.rpartition("@")[2].removeprefix("nats://") for server in self._servers)
        return f"stream {self.stream} at {hosts}"

    async def client(self) -> Client:
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._connected()
        if not self._client.is_connected:
            raise SourceUnavailable(f"{self} does not answer: the connection is lost; it is tried again.")
        return self._client

    async def _connected(self) -> Client:
        """The driver would try for ever, also where it is refused: so what it says meanwhile is listened to."""
        refused: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        said: list[Exception] = []

        async def hear(error: Exception) -> None:
            await _told(error)
            said.append(error)
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
        with self._translated():
            answer = await client.request(f"$JS.API.{subject}", msgspec.json.encode(question), timeout=ANSWER_S)
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in found:
            self._raise(found["error"])
        return found

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
        if self._client is not None:
            await self._client.close()
            self._client = None

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


def _is_refusal(said: str) -> bool:
    return "authorization" in said.lower() or "permissions" in said.lower()


async def _told(error: Exception) -> None:
    logger.debug("the client of NATS says: %s", error)
