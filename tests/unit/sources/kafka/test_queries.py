"""Queries to brokers: which of several errors is reported, and how often a query is sent."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import pytest

from evenflow.errors import SourceUnavailable
from evenflow.model import Partition
from evenflow.sources.kafka import queries as kafka_queries
from evenflow.sources.kafka.client import ALL_DOWN, KafkaError, KafkaException
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.options import KafkaOptions
from evenflow.sources.kafka.queries import PartitionEnds, TopicQueries
from evenflow.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("code", "reported"),
    [(KafkaError.REQUEST_TIMED_OUT, "the broker's answer"), (KafkaError._TIMED_OUT, "refused")],
)
def test_an_answer_of_a_broker_outranks_a_connection_error_of_another(code: int, reported: str) -> None:
    async def main() -> None:
        queries = TopicQueries(KafkaOptions("127.0.0.1:1", "homes", {}))
        queries._on_client_error(KafkaError(KafkaError._TRANSPORT, "refused"))
        queries._on_client_error(KafkaError(ALL_DOWN, "all are down"))
        asked: Future[Any] = Future()
        asked.set_exception(KafkaException(KafkaError(code, "the broker's answer")))
        with pytest.raises(SourceUnavailable, match=reported):
            await queries._answer(asked)

    asyncio.run(main())


def test_an_unreachable_broker_is_a_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_queries, "ANSWER_S", 1.0)

    async def main() -> None:
        source = KafkaSource("127.0.0.1:1", "homes", {"socket.timeout.ms": 1000})
        try:
            with pytest.raises(SourceUnavailable, match=r"127.0.0.1:1.*Connection refused"):
                await source.identity()
        finally:
            await source.aclose()

    asyncio.run(main())


class EmptyTopic:
    async def ends_of(self, number: int) -> PartitionEnds:
        return PartitionEnds(0, 0)


class EightPartitions(KafkaSource):
    async def partitions(self) -> Sequence[Partition]:
        return [Partition(str(number)) for number in range(8)]


def test_the_offsets_of_a_group_are_queried_once_for_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def committed(self: GroupOffsets, numbers: Sequence[int]) -> dict[int, int]:
        asked.append(len(numbers))
        await asyncio.sleep(0)
        return dict.fromkeys(numbers, 0)

    monkeypatch.setattr(GroupOffsets, "committed", committed)

    async def main() -> None:
        source = EightPartitions("127.0.0.1:1", "homes")
        source._opened_queries = cast("TopicQueries", EmptyTopic())
        found = await asyncio.gather(*(source.resolve(str(number), "group:old") for number in range(8)))
        assert {place.sequence for place in found} == {-1}
        assert asked == [8]

    asyncio.run(main())
