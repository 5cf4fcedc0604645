"""The offsets that a Kafka consumer group keeps: read, and left behind. The group is never joined.

This goes through a consumer that subscribes to nothing. The driver's admin client could do it too, but when a broker
comes back that keeps groups, its questions to it end the whole process.
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
    from evenflow.sources.kafka.options import Options

ANSWER_S = 10.0


class GroupOffsets:
    """The driver waits on threads, one at a time. A process that ends does not wait for them: a broker may be away,
    and then a commit waits for it for long."""

    def __init__(self, options: Options, group: str) -> None:
        self._options = options
        self._what = f"group {group} of {options}"
        self._config = options.for_group(group, ANSWER_S)
        self._consumer: Consumer | None = None
        self._turn = threading.Lock()

    async def left(self, numbers: Sequence[int]) -> dict[int, int]:
        """What the group has committed for these partitions: the offset of the next event each."""
        places = [TopicPartition(self._options.topic, number) for number in numbers]
        found = await self._on_thread(lambda consumer: consumer.committed(places, ANSWER_S))
        self._check(found)
        return {place.partition: place.offset for place in found if place.offset >= 0}

    async def leave(self, offsets: Mapping[int, int]) -> None:
        """Commit these for the group. Kafka refuses it while somebody is in it."""
        places = [TopicPartition(self._options.topic, number, offset) for number, offset in offsets.items()]
        self._check(await self._on_thread(lambda consumer: consumer.commit(offsets=places, asynchronous=False)))

    def close(self) -> None:
        """It is not waited for."""
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
