"""Questions about a topic: which one it is, what partitions it has, where they begin and end.

They go through a client of their own, whose answers come without a thread of ours; only how old an event is takes a
short reading.
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
    from evenflow.sources.kafka.options import Options

ANSWER_S = 10.0
LISTEN_S = 0.25
"""How often the client's complaints are listened to while an answer is waited for."""
PEEK_S = 5.0
NONE_AFTER = -1
"""The answer where no event is at or after a time."""


class Ends(NamedTuple):
    """Of a partition: the offset of the oldest event that is kept, and the next one that a reader will get."""

    oldest: int
    next: int


class Looks:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._complaint: KafkaError | None = None
        # What only readers are told is tried too: a wrong option is found before anything is read.
        made_consumer({**options.for_reading(), "log_level": 0}, str(options)).close()
        try:
            self._client = AdminClient(options.for_asking() | {"error_cb": self._told})
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
        """The topic, if this user may do that with it: Misconfigured otherwise. Some brokers do not tell."""
        topic = await self.topic()
        allowed = {one.name for one in topic.authorized_operations or ()}
        if allowed and operation not in allowed:
            raise Misconfigured(
                f"{self._options}: this user may not {operation.lower()} it. Give it the right by an ACL."
            )
        return topic

    async def ends(self, numbers: Sequence[int]) -> dict[int, Ends]:
        """Partitions that cannot be asked now are left out."""
        oldest, following = await asyncio.gather(
            self._offsets(dict.fromkeys(numbers, EARLIEST), self._isolation),
            self._offsets(dict.fromkeys(numbers, LATEST), self._isolation),
        )
        both = oldest.keys() & following.keys()
        return {number: Ends(oldest[number], following[number]) for number in numbers if number in both}

    async def ends_of(self, number: int) -> Ends:
        found = await self.ends([number])
        if number not in found:
            raise SourceUnavailable(f"Partition {number} of {self._options} cannot be asked now: it has no leader.")
        return found[number]

    async def at_time(self, number: int, time_ms: int) -> int | None:
        """The offset of the first event at or after this time; None when there is none."""
        offset = await self._offset(number, at_time(time_ms), self._isolation)
        return offset if offset != NONE_AFTER else None

    async def written(self, number: int) -> int:
        """The next offset that a producer will get. Readers get no further than the first open transaction."""
        return await self._offset(number, LATEST, IsolationLevel.READ_UNCOMMITTED)

    async def times_ms(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """When the first event at or after each offset was enqueued. It is read for that."""
        return await asyncio.get_running_loop().run_in_executor(None, self._peek, offsets)

    # --- inside
    async def _offset(self, number: int, spec: Any, isolation: IsolationLevel) -> int:
        found = await self._offsets({number: spec}, isolation)
        if number not in found:
            raise SourceUnavailable(f"Partition {number} of {self._options} cannot be asked now: it has no leader.")
        return found[number]

    async def _offsets(self, specs: Mapping[int, Any], isolation: IsolationLevel) -> dict[int, int]:
        """Partitions that cannot be asked are left out, unless all are. Who is no leader any more is asked anew."""
        if not specs:
            return {}
        answers = await self._ask_offsets(specs, isolation)
        moved = {number: specs[number] for number, answer in answers.items() if _has_moved(answer)}
        if moved:
            await self.topic()  # the client asks whom it knows as leader until somebody asks who it is
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
        # When the time for an answer has passed, the driver gives none of Kafka's offsets, and no error either.
        if offset < NONE_AFTER:
            raise SourceUnavailable(f"{self._options} has not answered in {ANSWER_S:g} s.")
        return offset

    async def _answer(self, asked: Future[Any]) -> Any:
        """Who is not let in is told so at once, and not when the time for an answer has passed."""
        waiting = asyncio.ensure_future(asyncio.wrap_future(asked))
        while not (await asyncio.wait([waiting], timeout=LISTEN_S))[0]:
            complaint = self._heard()
            if complaint is not None and complaint.code() in REFUSED:
                waiting.cancel()
                self._complaint = None
                raise meaning_of(complaint, str(self._options))
        try:
            answer = waiting.result()
        except KafkaException as error:
            meaning, complaint = meaning_of(raised(error), str(self._options)), self._heard()
            is_of_broker = raised(error).code() > 0  # then it has been reached, and what it says counts
            if isinstance(meaning, SourceUnavailable) and complaint is not None and not is_of_broker:
                raise meaning_of(complaint, str(self._options)) from error
            raise meaning from error
        self._complaint = None
        return answer

    def _heard(self) -> KafkaError | None:
        """What the client complained of since the last answer: why it cannot connect, for instance."""
        self._client.poll(0)
        return self._complaint

    def _told(self, error: KafkaError) -> None:
        if self._complaint is None or error.code() != ALL_DOWN:
            self._complaint = error  # of all that it says, that all brokers are down tells the least

    def _peek(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """On a thread. One message of each partition, or its end, is all that is waited for."""
        config = {**self._options.for_reading(), "fetch.message.max.bytes": 1_000, "log_level": 0}
        consumer = made_consumer(config, str(self._options))
        left, found = set(offsets), dict[int, int]()
        try:
            consumer.assign([TopicPartition(self._options.topic, number, at) for number, at in offsets.items()])
            looks = int(PEEK_S / LISTEN_S)
            while left and looks:
                message = consumer.poll(LISTEN_S)
                if message is None:
                    looks -= 1
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
