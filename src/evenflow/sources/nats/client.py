"""Requests to JetStream about one stream, over one connection that all readers share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import msgspec

from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.sources.nats.connection import JetStreamNotFound, Msg, NatsConnection, NatsError, logger, translated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["JetStreamClient", "JetStreamNotFound", "Msg", "StreamInfo", "logger"]

ANSWER_S = 5.0


class StreamInfo(msgspec.Struct, frozen=True):
    made: str
    subjects: tuple[str, ...]
    first: int
    last: int
    per_subject: int = -1
    """How many messages of each subject are kept; -1 for all."""


class CutListener(Protocol):
    def cut(self) -> None:
        """The connection was lost, and pending messages with it."""


class JetStreamClient:
    def __init__(self, servers: str, stream: str, options: dict[str, Any]) -> None:
        self.stream = stream
        self.connection = NatsConnection(servers, stream, options)
        self.connection.on_loss = self._cut
        self.readers: WeakSet[CutListener] = WeakSet()
        """The readers that share the memory for prefetched events."""

    def __str__(self) -> str:
        return str(self.connection)

    # --- requests
    async def info(self) -> StreamInfo:
        found = await self.ask(f"STREAM.INFO.{self.stream}", {})
        state = found["state"]
        return StreamInfo(
            str(found.get("created", "")),
            tuple(found["config"].get("subjects") or ()),
            state["first_seq"],
            state["last_seq"],
            found["config"].get("max_msgs_per_subject", -1),
        )

    async def subjects(self, under: str) -> list[str]:
        """The subjects that have messages. The server returns a hundred thousand at a time."""
        found: list[str] = []
        while True:
            question = {"subjects_filter": under, "offset": len(found)}
            answer = await self.ask(f"STREAM.INFO.{self.stream}", question)
            more = answer["state"].get("subjects") or ()
            found += more
            if not more or len(found) >= answer.get("total", 0):
                return found

    async def message(self, **question: Any) -> tuple[int, str] | None:
        """Sequence and time of one message; None if there is none."""
        try:
            found = (await self.ask(f"STREAM.MSG.GET.{self.stream}", question))["message"]
        except JetStreamNotFound:
            return None
        return found["seq"], found["time"]

    async def ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        """One request to JetStream, repeated when the connection is lost before the answer: all are idempotent."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + ANSWER_S
        while (answer := await self._request(f"$JS.API.{subject}", question)) is None:
            if loop.time() >= until_s:
                raise SourceUnavailable(f"{self} does not answer: the connection keeps being lost.")
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in found:
            self._raise(found["error"])
        return found

    async def _request(self, subject: str, question: dict[str, Any]) -> Msg | None:
        client = await self.connection.client()
        request = client.request(subject, msgspec.json.encode(question), timeout=ANSWER_S)
        try:
            with translated(self):
                return await self.connection.until_lost(request)
        except SourceUnavailable:
            self.check_allowed(subject)
            raise

    def check_allowed(self, subject: str) -> None:
        """Call this when there is no answer: the server reports a denied permission outside of the answer."""
        denied = self.connection.denied
        if subject.lower() in denied.lower():
            raise Misconfigured(f"{self}: this user lacks a permission. Grant it on the server. ({denied})")

    # --- messages
    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None) -> None:
        """Returns when the stream has stored the message."""
        client = await self.connection.client()
        with translated(self):
            await client.jetstream().publish(subject, body, timeout=ANSWER_S, stream=self.stream, headers=headers)

    async def send_request(self, subject: str, question: dict[str, Any], reply: str = "") -> None:
        """Sends a request to JetStream without waiting. The answer, if any, arrives at the subject `reply`."""
        client = await self.connection.client()
        with translated(self):
            await client.publish(f"$JS.API.{subject}", msgspec.json.encode(question), reply=reply)

    async def subscribe(self, take: Callable[[Msg], Awaitable[None]]) -> Any:
        """To a new inbox."""
        client = await self.connection.client()
        with translated(self):
            return await client.subscribe(client.new_inbox(), cb=take)

    async def unsubscribe(self, subscription: Any) -> None:
        """Needed also while the connection is lost: otherwise the driver would subscribe again when it reconnects."""
        try:
            await subscription.unsubscribe()
        except NatsError:
            pass  # the connection is closed, and with it the subscription

    async def aclose(self) -> None:
        await self.connection.aclose()

    # --- inside
    def _cut(self) -> None:
        for reader in list(self.readers):
            reader.cut()

    def _raise(self, error: dict[str, Any]) -> None:
        reason = error.get("description", "")
        if error.get("code") == 404:
            raise JetStreamNotFound(
                f"{self} does not exist, or lacks what was requested: {reason}. Create it, or fix the name."
            )
        if error.get("code") in (400, 403):
            raise Misconfigured(f"{self}: {reason}.")
        raise SourceUnavailable(f"{self} does not answer: {reason}.")
