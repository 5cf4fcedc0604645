"""Sends events to a topic: events of one key to one partition, in order, acknowledged by all in-sync replicas."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka.client import KafkaException, Producer, logger, meaning_of, raised
from evenflow.sources.kafka.codec import body_of, headers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event
    from evenflow.sources.kafka.client import KafkaError, Message
    from evenflow.sources.kafka.options import KafkaOptions

FULL_S = 0.1
FLUSH_S = 60.0
"""Longer than the driver's own retries (delivery.timeout.ms)."""


class KafkaSender:
    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="evenflow-kafka-send")
        try:
            self._producer = Producer(options.for_sending(), logger=logger)
        except KafkaException as error:
            raise meaning_of(raised(error), str(options)) from error

    async def send(self, events: Sequence[Event], partition: int | None = None) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._send, events, partition)

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False)

    def _send(self, events: Sequence[Event], partition: int | None) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        try:
            for event in events:
                self._produce(event, -1 if partition is None else partition, delivered)
        except KafkaException as error:
            failed.append(raised(error))
        if self._producer.flush(FLUSH_S):
            raise SourceUnavailable(f"{self._options} has not acknowledged the events within {FLUSH_S:.0f} s.")
        if failed:
            raise meaning_of(failed[0], str(self._options))

    def _produce(self, event: Event, partition: int, delivered: object) -> None:
        key = None if event.key is None else event.key.encode(self._options.key_encoding, "backslashreplace")
        while True:
            try:
                self._producer.produce(
                    self._options.topic,
                    body_of(event),
                    key,
                    partition=partition,
                    headers=headers_of(event),
                    on_delivery=delivered,  # type: ignore[arg-type]
                )
                return
            except BufferError:
                self._producer.poll(FULL_S)
