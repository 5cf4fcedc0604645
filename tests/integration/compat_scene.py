"""An application of a consumer client, official or drop-in: what its callbacks were given."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import azure.eventhub
import azure.eventhub.aio
import pytest

import evenflow.compat.eventhub
import evenflow.compat.eventhub.aio
from evenflow import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure.eventhub import CloseReason, EventData

    from evenflow.testing import EventHub

GROUP = "alerts"
PATIENCE_S = 25.0
QUICK: dict[str, Any] = {"load_balancing_interval": 0.3}
ASYNC = [azure.eventhub.aio.EventHubConsumerClient, evenflow.compat.eventhub.aio.EventHubConsumerClient]
PLAIN = [azure.eventhub.EventHubConsumerClient, evenflow.compat.eventhub.EventHubConsumerClient]
OURS = evenflow.compat.eventhub.aio.EventHubConsumerClient
OURS_PLAIN = evenflow.compat.eventhub.EventHubConsumerClient


def name_of(kind: type) -> str:
    return kind.__module__.split(".", maxsplit=1)[0]


both = pytest.mark.parametrize("kind", ASYNC, ids=name_of)
both_plain = pytest.mark.parametrize("kind", PLAIN, ids=name_of)


async def fill(served: EventHub, count: int, partition: str = "0", start: int = 0) -> None:
    for number in range(start, start + count):
        await served.hub.send(Event(b"%d" % number, f"key-{number}", {"n": number}), partition=partition)


async def until(look: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not look():  # noqa: ASYNC110 - it comes from callbacks
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


class Program:
    """An application: what its callbacks were given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.batches: list[list[EventData]] = []
        self.opened: list[str] = []
        self.closed: list[tuple[str, CloseReason]] = []
        self.errors: list[tuple[str | None, Exception]] = []
        self.contexts: dict[str, Any] = {}
        self.idle = 0
        self.marked = 0
        self.checkpoints = True
        self.fails: Callable[[Any, Any], bool] = lambda context, event: False

    async def on_event(self, context: Any, event: Any) -> None:
        if event is None:
            self.idle += 1
            return
        self.contexts[context.partition_id] = context
        if self.fails(context, event):
            raise ZeroDivisionError("as asked")
        self.seen.append((context.partition_id, event.body_as_str()))
        if self.checkpoints:
            await context.update_checkpoint(event)
            self.marked += 1

    async def on_event_batch(self, context: Any, events: list[Any]) -> None:
        self.batches.append(events)
        for event in events:
            self.seen.append((context.partition_id, event.body_as_str()))
        if events:
            await context.update_checkpoint()

    async def on_error(self, context: Any, error: Exception) -> None:
        self.errors.append((context.partition_id if context is not None else None, error))

    async def on_partition_initialize(self, context: Any) -> None:
        self.opened.append(context.partition_id)

    async def on_partition_close(self, context: Any, reason: CloseReason) -> None:
        self.closed.append((context.partition_id, reason))

    @property
    def hooks(self) -> dict[str, Any]:
        return {
            "on_error": self.on_error,
            "on_partition_initialize": self.on_partition_initialize,
            "on_partition_close": self.on_partition_close,
        }


class Running:
    """A client that receives, until the block ends."""

    def __init__(
        self, kind: Any, served: EventHub, receive: dict[str, Any], *, group: str = GROUP, **client: Any
    ) -> None:
        self.program = Program()
        self.client = kind.from_connection_string(served.connection_string, group, **{**QUICK, **client})
        self._receive = receive

    async def __aenter__(self) -> Running:
        program, terms = self.program, dict(self._receive)
        if terms.pop("batch", False):
            call = self.client.receive_batch(program.on_event_batch, **program.hooks, **terms)
        else:
            call = self.client.receive(program.on_event, **program.hooks, **terms)
        self.task = asyncio.create_task(call)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def bodies(program: Program, partition: str = "0") -> list[str]:
    return [body for where, body in program.seen if where == partition]
