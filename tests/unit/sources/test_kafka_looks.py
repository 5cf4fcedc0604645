"""Which of several things that went wrong is told."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka_driver import ALL_DOWN, KafkaError, KafkaException
from evenflow.sources.kafka_looks import Looks
from evenflow.sources.kafka_options import Options


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
