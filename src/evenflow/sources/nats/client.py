"""Questions to JetStream about one stream, and what its readers share: a connection, and the room for what waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import msgspec

from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.sources.nats.connection import Connection, Missing, Msg, NatsError, logger, translated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Link", "Missing", "Msg", "StreamFacts", "logger"]

ANSWER_S = 5.0


class StreamFacts(msgspec.Struct, frozen=True):
    made: str
    subjects: tuple[str, ...]
    first: int
    last: int
    per_subject: int = -1
    """How many messages of one subject are kept; -1: all of them."""


class Cuttable(Protocol):
    def cut(self) -> None:
        """The connection is lost, and what was on its way with it."""


class Link:
    def __init__(self, servers: str, stream: str, options: dict[str, Any]) -> None:
        self.stream = stream
        self.connection = Connection(servers, stream, options)
        self.connection.on_loss = self._cut
        self.readers: WeakSet[Cuttable] = WeakSet()
        """Those that share the room for events that wait."""

    def __str__(self) -> str:
        return str(self.connection)

    # --- questions
    async def facts(self) -> StreamFacts:
        found = await self.ask(f"STREAM.INFO.{self.stream}", {})
        state = found["state"]
        return StreamFacts(
            str(found.get("created", "")),
            tuple(found["config"].get("subjects") or ()),
            state["first_seq"],
            state["last_seq"],
            found["config"].get("max_msgs_per_subject", -1),
        )

    async def subjects(self, under: str) -> list[str]:
        """Those that have messages. The server tells a hundred thousand at a time."""
        found: list[str] = []
        while True:
            question = {"subjects_filter": under, "offset": len(found)}
            answer = await self.ask(f"STREAM.INFO.{self.stream}", question)
            more = answer["state"].get("subjects") or ()
            found += more
            if not more or len(found) >= answer.get("total", 0):
                return found

    async def message(self, **question: Any) -> tuple[int, str] | None:
        """Sequence and time of one message; None when there is none such."""
        try:
            found = (await self.ask(f"STREAM.MSG.GET.{self.stream}", question))["message"]
        except Missing:
            return None
        return found["seq"], found["time"]

    async def ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        """One question to JetStream. When its answer is lost with the connection, it is asked again: none does harm."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + ANSWER_S
        while (answer := await self._asked(f"$JS.API.{subject}", question)) is None:
            if loop.time() >= until_s:
                raise SourceUnavailable(f"{self} does not answer: the connection is lost again and again.")
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in found:
            self._raise(found["error"])
        return found

    async def _asked(self, subject: str, question: dict[str, Any]) -> Msg | None:
        client = await self.connection.client()
        request = client.request(subject, msgspec.json.encode(question), timeout=ANSWER_S)
        try:
            with translated(self):
                return await self.connection.until_lost(request)
        except SourceUnavailable:
            self.check_allowed(subject)
            raise

    def check_allowed(self, subject: str) -> None:
        """To be asked when there is no answer."""
        denied = self.connection.denied
        if subject.lower() in denied.lower():
            raise Misconfigured(f"{self}: the server does not allow this user what is needed. ({denied})")

    # --- messages
    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None) -> None:
        """Returns when the stream has it."""
        client = await self.connection.client()
        with translated(self):
            await client.jetstream().publish(subject, body, timeout=ANSWER_S, stream=self.stream, headers=headers)

    async def tell(self, subject: str, question: dict[str, Any], reply: str = "") -> None:
        """A question to JetStream whose answer nobody waits for: it comes to `reply`, if it comes."""
        client = await self.connection.client()
        with translated(self):
            await client.publish(f"$JS.API.{subject}", msgspec.json.encode(question), reply=reply)

    async def subscribe(self, take: Callable[[Msg], Awaitable[None]]) -> Any:
        """To an inbox of its own."""
        client = await self.connection.client()
        with translated(self):
            return await client.subscribe(client.new_inbox(), cb=take)

    async def unsubscribe(self, subscription: Any) -> None:
        """Also while the connection is lost: else the driver would subscribe again when it is back."""
        try:
            await subscription.unsubscribe()
        except NatsError:
            pass  # it is closed, and its subscriptions with it

    async def aclose(self) -> None:
        await self.connection.aclose()

    # --- inside
    def _cut(self) -> None:
        for reader in list(self.readers):
            reader.cut()

    def _raise(self, error: dict[str, Any]) -> None:
        said = error.get("description", "")
        if error.get("code") == 404:
            raise Missing(f"{self} does not exist, or has no such thing: {said}. Make it, or correct the name.")
        if error.get("code") in (400, 403):
            raise Misconfigured(f"{self}: {said}.")
        raise SourceUnavailable(f"{self} does not answer: {said}.")
