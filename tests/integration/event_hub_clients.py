"""The official Python clients of Event Hubs, sync and async, behind one face, so that a test is written once."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncConsumer
from azure.eventhub.aio import EventHubProducerClient as AsyncProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE_S = 60.0
QUICK = {"retry_total": 0, "retry_backoff_factor": 0.05}
CONSUMES: dict[str, Any] = {"load_balancing_interval": 0.3}
"""The thread of a sync consumer ends only so long after its consumer."""


class Received(NamedTuple):
    partition: str
    body: Any
    event: Any
    last: dict[str, Any] | None


class Outcome:
    """What a receiver got: events until there were enough, or an error."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.events: list[Received] = []
        self.errors: list[Exception] = []
        self.starts = 0

    @property
    def bodies(self) -> list[Any]:
        return [found.body for found in self.events]

    def take(self, partition: Any, event: Any) -> bool:
        """Whether that is all."""
        if event is not None:
            last = partition.last_enqueued_event_properties
            self.events.append(Received(partition.partition_id, event.body_as_str(), event, last))
        return len(self.events) >= self.count


class SyncClient:
    def __init__(self, connection_string: str, **options: Any) -> None:
        self._text = connection_string
        self._options = {**QUICK, **options}

    def send(self, events: Sequence[Any], **target: Any) -> None:
        with EventHubProducerClient.from_connection_string(self._text, **self._options) as producer:
            batch = producer.create_batch(**target)
            for event in events:
                batch.add(event)
            producer.send_batch(batch)

    def send_one(self, event: Any, **target: Any) -> None:
        with EventHubProducerClient.from_connection_string(self._text, **self._options) as producer:
            producer.send_event(event, **target)

    def send_buffered(self, events: Sequence[Any], **target: Any) -> list[Any]:
        """What the callbacks were told of: (events, partition) or an error."""
        told: list[Any] = []
        with EventHubProducerClient.from_connection_string(
            self._text,
            buffered_mode=True,
            max_wait_time=0.2,
            on_success=lambda sent, partition: told.append((len(sent), partition)),
            on_error=lambda sent, partition, error: told.append(error),
            **self._options,
        ) as producer:
            for event in events:
                producer.send_event(event, **target)
            producer.flush()
        return told

    def facts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with EventHubProducerClient.from_connection_string(self._text, **self._options) as producer:
            hub = producer.get_eventhub_properties()
            return hub, [producer.get_partition_properties(one) for one in hub["partition_ids"]]

    def receive(
        self,
        count: int,
        *,
        group: str = "$Default",
        when_ready: Callable[[], object] | None = None,
        until: Callable[[], bool] = lambda: False,
        pause_s: float = 0.0,
        patience_s: float = PATIENCE_S,
        **where: Any,
    ) -> Outcome:
        """Receive so many events, with a pause after each; `when_ready` is called when nothing has come for a while."""
        consumer = EventHubConsumerClient.from_connection_string(self._text, group, **CONSUMES, **self._options)
        outcome, done = Outcome(count), Event()

        def on_event(partition: Any, event: Any) -> None:
            if event is None and when_ready is not None and not outcome.starts:
                outcome.starts += 1
                when_ready()
            if outcome.take(partition, event) or until():
                done.set()
            time.sleep(pause_s)

        def on_error(partition: Any, error: Exception) -> None:
            outcome.errors.append(error)
            done.set()

        thread = Thread(
            target=consumer.receive, args=(on_event,), kwargs={"on_error": on_error, "max_wait_time": 0.3, **where}
        )
        thread.start()
        done.wait(patience_s)
        consumer.close()
        thread.join(PATIENCE_S)
        return outcome


class AsyncClient:
    def __init__(self, connection_string: str, **options: Any) -> None:
        self._text = connection_string
        self._options = {**QUICK, **options}

    def send(self, events: Sequence[Any], **target: Any) -> None:
        async def act() -> None:
            async with AsyncProducer.from_connection_string(self._text, **self._options) as producer:
                batch = await producer.create_batch(**target)
                for event in events:
                    batch.add(event)
                await producer.send_batch(batch)

        asyncio.run(act())

    def send_one(self, event: Any, **target: Any) -> None:
        async def act() -> None:
            async with AsyncProducer.from_connection_string(self._text, **self._options) as producer:
                await producer.send_event(event, **target)

        asyncio.run(act())

    def send_buffered(self, events: Sequence[Any], **target: Any) -> list[Any]:
        told: list[Any] = []

        async def on_success(sent: Any, partition: Any) -> None:
            told.append((len(sent), partition))

        async def on_error(sent: Any, partition: Any, error: Exception) -> None:
            told.append(error)

        async def act() -> None:
            async with AsyncProducer.from_connection_string(
                self._text,
                buffered_mode=True,
                max_wait_time=0.2,
                on_success=on_success,
                on_error=on_error,
                **self._options,
            ) as producer:
                for event in events:
                    await producer.send_event(event, **target)
                await producer.flush()

        asyncio.run(act())
        return told

    def facts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async def act() -> tuple[dict[str, Any], list[dict[str, Any]]]:
            async with AsyncProducer.from_connection_string(self._text, **self._options) as producer:
                hub = await producer.get_eventhub_properties()
                return hub, [await producer.get_partition_properties(one) for one in hub["partition_ids"]]

        return asyncio.run(act())

    def receive(
        self,
        count: int,
        *,
        group: str = "$Default",
        when_ready: Callable[[], object] | None = None,
        until: Callable[[], bool] = lambda: False,
        pause_s: float = 0.0,
        patience_s: float = PATIENCE_S,
        **where: Any,
    ) -> Outcome:
        outcome = Outcome(count)

        async def act() -> None:
            done = asyncio.Event()

            async def on_event(partition: Any, event: Any) -> None:
                if event is None and when_ready is not None and not outcome.starts:
                    outcome.starts += 1
                    await asyncio.to_thread(when_ready)
                if outcome.take(partition, event) or until():
                    done.set()
                await asyncio.sleep(pause_s)

            async def on_error(partition: Any, error: Exception) -> None:
                outcome.errors.append(error)
                done.set()

            async with AsyncConsumer.from_connection_string(self._text, group, **self._options) as consumer:
                options: Any = {"on_error": on_error, "max_wait_time": 0.3, **where}
                task = asyncio.create_task(consumer.receive(on_event, **options))
                await asyncio.wait(
                    {asyncio.create_task(done.wait()), task}, timeout=patience_s, return_when="FIRST_COMPLETED"
                )
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(act())
        return outcome


CLIENTS: list[type[SyncClient] | type[AsyncClient]] = [SyncClient, AsyncClient]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """All at the same time: official clients sleep for most of theirs."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [found.result() for found in [threads.submit(call) for call in calls]]
