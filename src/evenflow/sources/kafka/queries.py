"""Queries about a topic: its id, its partitions, and where they begin and end.

They use an admin client of their own, which answers without a thread of ours. Only the age of an event requires
reading it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable
from evenflow.sources.kafka.client import (
    ALL_DOWN,
    EARLIEST,
    END,
    LATEST,
    MOVED,
    REFUSED,
    AdminClient,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
    at_time,
    made_consumer,
    meaning_of,
    raised,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from evenflow.sources.kafka.client import KafkaError
    from evenflow.sources.kafka.options import KafkaOptions

ANSWER_S = 10.0
ERROR_POLL_S = 0.25
"""How often the client's error callback is polled while a query is pending."""
PEEK_S = 5.0
NONE_AFTER = -1
"""The answer when there is no event at or after a time."""


class PartitionEnds(NamedTuple):
    """The offset of a partition's oldest event, and the offset of the next event that a reader will get."""

    oldest: int
    next: int


class TopicQueries:
    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._client_error: KafkaError | None = None
        # Also validates the options that only consumers use, before anything is read.
        made_consumer({**options.for_reading(), "log_level": 0}, str(options)).close()
        try:
            self._client = AdminClient(options.for_queries() | {"error_cb": self._on_client_error})
        except KafkaException as error:
            raise meaning_of(raised(error), str(options)) from error
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED if options.reads_uncommitted else IsolationLevel.READ_COMMITTED
        )

    async def cluster(self) -> str:
        found = await self._answer(self._client.describe_cluster(request_timeout=ANSWER_S))
        return str(found.cluster_id or "")

    async def topic(self) -> Any:
        name = self._options.topic
        asked = self._client.describe_topics(
            TopicCollection([name]), include_authorized_operations=True, request_timeout=ANSWER_S
        )
        return await self._answer(asked[name])

    async def topic_to(self, operation: str) -> Any:
        """The topic; Misconfigured when this user lacks the right. Some brokers do not report rights."""
        topic = await self.topic()
        allowed = {one.name for one in topic.authorized_operations or ()}
        if allowed and operation not in allowed:
            raise Misconfigured(
                f"{self._options}: this user may not {operation.lower()} it. Grant the right with an ACL."
            )
        return topic

    async def ends(self, numbers: Sequence[int]) -> dict[int, PartitionEnds]:
        """Partitions without a leader are left out."""
        oldest, following = await asyncio.gather(
            self._offsets(dict.fromkeys(numbers, EARLIEST), self._isolation),
            self._offsets(dict.fromkeys(numbers, LATEST), self._isolation),
        )
        both = oldest.keys() & following.keys()
        return {number: PartitionEnds(oldest[number], following[number]) for number in numbers if number in both}

    async def ends_of(self, number: int) -> PartitionEnds:
        found = await self.ends([number])
        if number not in found:
            raise SourceUnavailable(f"Partition {number} of {self._options} has no leader now.")
        return found[number]

    async def at_time(self, number: int, time_ms: int) -> int | None:
        """The offset of the first event at or after this time; None when there is none."""
        offset = await self._offset(number, at_time(time_ms), self._isolation)
        return offset if offset != NONE_AFTER else None

    async def written(self, number: int) -> int:
        """The next offset that a producer will get. Readers stop at the first open transaction."""
        return await self._offset(number, LATEST, IsolationLevel.READ_UNCOMMITTED)

    async def times_ms(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """When the first event at or after each offset was enqueued. Reads those events."""
        return await asyncio.get_running_loop().run_in_executor(None, self._peek, offsets)

    # --- inside
    async def _offset(self, number: int, spec: Any, isolation: IsolationLevel) -> int:
        found = await self._offsets({number: spec}, isolation)
        if number not in found:
            raise SourceUnavailable(f"Partition {number} of {self._options} has no leader now.")
        return found[number]

    async def _offsets(self, specs: Mapping[int, Any], isolation: IsolationLevel) -> dict[int, int]:
        """Partitions that fail are left out; if all fail, the first error is raised. A partition whose leader has
        changed is queried again."""
        if not specs:
            return {}
        answers = await self._ask_offsets(specs, isolation)
        moved = {number: specs[number] for number, answer in answers.items() if _has_moved(answer)}
        if moved:
            await self.topic()  # refreshes the metadata: the client queries the leader that it knows
            answers |= await self._ask_offsets(moved, isolation)
        found = {number: answer for number, answer in answers.items() if not isinstance(answer, BaseException)}
        if not found:
            raise next(answer for answer in answers.values() if isinstance(answer, BaseException))
        return found

    async def _ask_offsets(self, specs: Mapping[int, Any], isolation: IsolationLevel) -> dict[int, int | BaseException]:
        places = {TopicPartition(self._options.topic, number): spec for number, spec in specs.items()}
        asked = self._client.list_offsets(places, isolation_level=isolation, request_timeout=ANSWER_S)
        answers = await asyncio.gather(*map(self._answer_offset, asked.values()), return_exceptions=True)
        return dict(zip([place.partition for place in asked], answers, strict=True))

    async def _answer_offset(self, asked: Future[Any]) -> int:
        offset = int((await self._answer(asked)).offset)
        # After a timeout, the driver returns an invalid offset instead of an error.
        if offset < NONE_AFTER:
            raise SourceUnavailable(f"{self._options} has not answered within {ANSWER_S:g} s.")
        return offset

    async def _answer(self, asked: Future[Any]) -> Any:
        """The answer. Rejected credentials are raised at once, not after the timeout."""
        waiting = asyncio.ensure_future(asyncio.wrap_future(asked))
        while not (await asyncio.wait([waiting], timeout=ERROR_POLL_S))[0]:
            client_error = self._poll_client_error()
            if client_error is not None and client_error.code() in REFUSED:
                waiting.cancel()
                self._client_error = None
                raise meaning_of(client_error, str(self._options))
        try:
            answer = waiting.result()
        except KafkaException as error:
            meaning, client_error = meaning_of(raised(error), str(self._options)), self._poll_client_error()
            is_from_broker = raised(error).code() > 0  # the broker was reached, so its error is the specific one
            if isinstance(meaning, SourceUnavailable) and client_error is not None and not is_from_broker:
                raise meaning_of(client_error, str(self._options)) from error
            raise meaning from error
        self._client_error = None
        return answer

    def _poll_client_error(self) -> KafkaError | None:
        """The client's error since the last answer, for instance why it cannot connect."""
        self._client.poll(0)
        return self._client_error

    def _on_client_error(self, error: KafkaError) -> None:
        if self._client_error is None or error.code() != ALL_DOWN:
            self._client_error = error  # "all brokers are down" is the least specific of its errors

    def _peek(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """On a thread. Waits for one message of each partition, or for its end."""
        config = {**self._options.for_reading(), "fetch.message.max.bytes": 1_000, "log_level": 0}
        consumer = made_consumer(config, str(self._options))
        left, found = set(offsets), dict[int, int]()
        try:
            consumer.assign([TopicPartition(self._options.topic, number, at) for number, at in offsets.items()])
            empty_polls = int(PEEK_S / ERROR_POLL_S)
            while left and empty_polls:
                message = consumer.poll(ERROR_POLL_S)
                if message is None:
                    empty_polls -= 1
                    continue
                number, error = message.partition(), message.error()
                if error is None and number in left:
                    found[number] = message.timestamp()[1]
                if error is None or error.code() == END or number in left:
                    left.discard(number)
        except KafkaException as error:
            raise meaning_of(raised(error), str(self._options)) from error
        finally:
            consumer.close()
        return {number: time_ms for number, time_ms in found.items() if time_ms > 0}


def _has_moved(answer: int | BaseException) -> bool:
    cause = answer.__cause__ if isinstance(answer, EvenflowError) else None
    return isinstance(cause, KafkaException) and raised(cause).code() in MOVED
