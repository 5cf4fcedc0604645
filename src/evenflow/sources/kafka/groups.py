"""Reads and commits the offsets of a Kafka consumer group, without joining the group.

It uses a consumer that subscribes to nothing. The driver's admin client could do the same, but its request aborts the
whole process when the broker that coordinates the group comes back.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from evenflow.sources.kafka.client import KafkaException, TopicPartition, made_consumer, meaning_of, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.sources.kafka.client import Consumer
    from evenflow.sources.kafka.options import KafkaOptions

ANSWER_S = 10.0


class GroupOffsets:
    """The driver blocks on daemon threads, one at a time. Process exit does not wait for them: with an unreachable
    broker, a commit blocks for a long time."""

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        self._what = f"group {group} of {options}"
        self._config = options.for_group(group, ANSWER_S)
        self._consumer: Consumer | None = None
        self._turn = threading.Lock()

    async def committed(self, numbers: Sequence[int]) -> dict[int, int]:
        """What the group has committed for these partitions: the offset of the next event of each."""
        places = [TopicPartition(self._options.topic, number) for number in numbers]
        found = await self._on_thread(lambda consumer: consumer.committed(places, ANSWER_S))
        self._check(found)
        return {place.partition: place.offset for place in found if place.offset >= 0}

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Commits these offsets for the group. Kafka rejects that while the group has members."""
        places = [TopicPartition(self._options.topic, number, offset) for number, offset in offsets.items()]
        self._check(await self._on_thread(lambda consumer: consumer.commit(offsets=places, asynchronous=False)))

    def close(self) -> None:
        """Closes in the background."""
        self._begin(self._close)

    # --- inside
    def _check(self, places: Sequence[TopicPartition] | None) -> None:
        for place in places or ():
            if place.error is not None:
                raise meaning_of(place.error, self._what)

    async def _on_thread(self, ask: Callable[[Consumer], Any]) -> Any:
        answer: Future[Any] = Future()
        self._begin(self._answer, ask, answer)
        return await asyncio.wrap_future(answer)

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="evenflow-kafka-group", daemon=True).start()

    def _answer(self, ask: Callable[[Consumer], Any], answer: Future[Any]) -> None:
        with self._turn:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._ask(ask))
                except BaseException as error:
                    answer.set_exception(error)

    def _ask(self, ask: Callable[[Consumer], Any]) -> Any:
        if self._consumer is None:
            self._consumer = made_consumer(self._config, self._what)
        try:
            return ask(self._consumer)
        except KafkaException as error:
            raise meaning_of(raised(error), self._what) from error

    def _close(self) -> None:
        with self._turn:
            if self._consumer is not None:
                self._consumer.close()
