"""What is asked of brokers: which of several errors is reported, and how often a question is asked."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import pytest

from evenflow.errors import SourceUnavailable
from evenflow.model import Partition
from evenflow.sources.kafka import queries as kafka_looks
from evenflow.sources.kafka.client import ALL_DOWN, KafkaError, KafkaException
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.options import Options
from evenflow.sources.kafka.queries import Ends, Looks
from evenflow.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("code", "told"), [(KafkaError.REQUEST_TIMED_OUT, "the broker's word"), (KafkaError._TIMED_OUT, "refused")]
)
def test_what_a_broker_says_counts_more_than_that_another_could_not_be_reached(code: int, told: str) -> None:
    async def main() -> None:
        looks = Looks(Options("127.0.0.1:1", "homes", {}))
        looks._told(KafkaError(KafkaError._TRANSPORT, "refused"))
        looks._told(KafkaError(ALL_DOWN, "all are down"))
        asked: Future[Any] = Future()
        asked.set_exception(KafkaException(KafkaError(code, "the broker's word")))
        with pytest.raises(SourceUnavailable, match=told):
            await looks._answer(asked)

    asyncio.run(main())


def test_a_broker_that_is_not_there_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_looks, "ANSWER_S", 1.0)

    async def main() -> None:
        source = KafkaSource("127.0.0.1:1", "homes", {"socket.timeout.ms": 1000})
        try:
            with pytest.raises(SourceUnavailable, match=r"127.0.0.1:1.*Connection refused"):
                await source.identity()
        finally:
            await source.aclose()

    asyncio.run(main())


class EmptyLooks:
    async def ends_of(self, number: int) -> Ends:
        return Ends(0, 0)


class EightPartitions(KafkaSource):
    async def partitions(self) -> Sequence[Partition]:
        return [Partition(str(number)) for number in range(8)]


def test_what_a_group_left_is_asked_once_for_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def left(self: GroupOffsets, numbers: Sequence[int]) -> dict[int, int]:
        asked.append(len(numbers))
        await asyncio.sleep(0)
        return dict.fromkeys(numbers, 0)

    monkeypatch.setattr(GroupOffsets, "left", left)

    async def main() -> None:
        source = EightPartitions("127.0.0.1:1", "homes")
        source._looks_made = cast("Looks", EmptyLooks())
        found = await asyncio.gather(*(source.resolve(str(number), "group:old") for number in range(8)))
        assert {place.sequence for place in found} == {-1}
        assert asked == [8]

    asyncio.run(main())
