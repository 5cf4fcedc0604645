"""Offsets whose copy fails. (Groups of a real Kafka are in tests/integration/test_kafka_groups.py.)"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka import mirror as kafka_mirror
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


def test_offsets_that_could_not_be_copied_go_with_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[dict[int, int]] = []
    copied = asyncio.Event()

    async def commit(self: GroupOffsets, offsets: Mapping[int, int]) -> None:
        tries.append(dict(offsets))
        if len(tries) < 3:
            raise SourceUnavailable("unreachable")
        copied.set()

    async def main() -> None:
        mirror = kafka_mirror.CheckpointMirror(KafkaOptions("127.0.0.1:1", "homes", {}), "mirror")
        mirror.put({0: 5, 1: 7})
        await asyncio.sleep(0)
        mirror.put({0: 6})
        await asyncio.wait_for(copied.wait(), 10.0)
        await mirror.aclose()

    monkeypatch.setattr(GroupOffsets, "commit", commit)
    monkeypatch.setattr(kafka_mirror, "PAUSE_S", 0.01)
    asyncio.run(main())
    assert tries[0] == {0: 5, 1: 7}
    assert tries[-1] == {0: 6, 1: 7}
