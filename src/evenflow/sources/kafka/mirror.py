"""Copies checkpoints into a Kafka consumer group, so that Kafka's own tools show the lag.

The store remains the source of truth: when the copy fails, a warning is logged and nothing else changes. One commit
runs at a time; offsets that arrive meanwhile go into the next. A failed commit is retried after a pause.

Kafka expires the offsets of a group without members some days after each commit, and the last writer wins, even if it
was cut off and no longer owns the partition. So an instance repeats the copy for the partitions that it reads.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError
from evenflow.sources.kafka.client import logger
from evenflow.sources.kafka.groups import GroupOffsets

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from evenflow.sources.kafka.options import KafkaOptions

CLOSE_S = 5.0
PAUSE_S = 2.0
"""Between a failed commit and the next attempt."""
REPEAT_S = 60.0
"""How often offsets that were copied are copied again."""


class CheckpointMirror:
    """Created and used on the event loop."""

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._group = group
        self._offsets = GroupOffsets(options, group)
        self._pending: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        """The newest offset of each partition that this instance still reads."""
        self._repeat_at_s = asyncio.get_running_loop().time() + REPEAT_S
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._logged = ""

    def put(self, offsets: Mapping[int, int]) -> None:
        """The next offset of each partition."""
        self._newest.update(offsets)
        self._pending.update(offsets)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._copy())

    def repeat_if_due(self, read: Container[int]) -> None:
        """Copies the offsets of the partitions that this instance reads again, every REPEAT_S."""
        self._newest = {number: offset for number, offset in self._newest.items() if number in read}
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._repeat_at_s:
            self._repeat_at_s = now_s + REPEAT_S
            self.put(self._newest)

    async def aclose(self) -> None:
        """Tries once more to copy what is pending."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_S)
            self._task.cancel()
        self.abandon()

    def abandon(self) -> None:
        """Ends without copying what is pending."""
        self._offsets.close()

    async def _copy(self) -> None:
        while self._pending:
            is_last = self._closing.is_set()
            offsets, self._pending = self._pending, {}
            try:
                await self._offsets.commit(offsets)
                self._logged = ""
            except EvenflowError as error:
                self._log(error)
                self._pending = offsets | self._pending
                if is_last:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await self._closing.wait()

    def _log(self, error: EvenflowError) -> None:
        if str(error) != self._logged:
            self._logged = str(error)
            logger.warning(
                "checkpoints are not mirrored into the Kafka group %s, which must have no other members; retrying: %s",
                self._group,
                error,
            )
