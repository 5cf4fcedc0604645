"""What becomes of offsets whose copy fails. (Groups of a real Kafka are in tests/integration/test_kafka_groups.py.)"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka import mirror as kafka_mirror
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


def test_what_could_not_be_copied_goes_with_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[dict[int, int]] = []
    copied = asyncio.Event()

    async def leave(self: GroupOffsets, offsets: Mapping[int, int]) -> None:
        tries.append(dict(offsets))
        if len(tries) < 3:
            raise SourceUnavailable("away")
        copied.set()

    async def main() -> None:
        mirror = kafka_mirror.Mirror(Options("127.0.0.1:1", "homes", {}), "mirror")
        mirror.put({0: 5, 1: 7})
        await asyncio.sleep(0)
        mirror.put({0: 6})
        await asyncio.wait_for(copied.wait(), 10.0)
        await mirror.aclose()

    monkeypatch.setattr(GroupOffsets, "leave", leave)
    monkeypatch.setattr(kafka_mirror, "PAUSE_S", 0.01)
    asyncio.run(main())
    assert tries[0] == {0: 5, 1: 7}
    assert tries[-1] == {0: 6, 1: 7}
