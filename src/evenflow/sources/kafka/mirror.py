"""Copies checkpoints into a Kafka consumer group, so that Kafka's own tools show the lag. The store stays the truth.

One commit is under way at a time, and what is put meanwhile goes with the next. What failed is kept, and tried again
after a pause. A mirror that does not work is told of in the log, and changes nothing else.

Kafka forgets the offsets of a group that nobody is in some days after each was committed, and takes them from whoever
comes last, also from an instance that was cut off and no longer owns the partition. So who reads one copies it again
and again.
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

    from evenflow.sources.kafka.options import Options

CLOSE_S = 5.0
PAUSE_S = 2.0
"""Between a copy that failed and the next try."""
AGAIN_S = 60.0
"""After so long what was copied is copied again."""


class Mirror:
    """Made on the event loop."""

    def __init__(self, options: Options, group: str) -> None:
        self._group = group
        self._offsets = GroupOffsets(options, group)
        self._waiting: dict[int, int] = {}
        self._put: dict[int, int] = {}
        """The newest of each partition that is still read here."""
        self._again_s = asyncio.get_running_loop().time() + AGAIN_S
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._said = ""

    def put(self, offsets: Mapping[int, int]) -> None:
        """The next offset of each partition."""
        self._put.update(offsets)
        self._waiting.update(offsets)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._copy())

    def put_again(self, read: Container[int]) -> None:
        """When it is time: for those partitions that are read here."""
        self._put = {number: offset for number, offset in self._put.items() if number in read}
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._again_s:
            self._again_s = now_s + AGAIN_S
            self.put(self._put)

    async def aclose(self) -> None:
        """What waits is tried once more."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_S)
            self._task.cancel()
        self.leave()

    def leave(self) -> None:
        """End, whatever waits."""
        self._offsets.close()

    async def _copy(self) -> None:
        while self._waiting:
            is_last = self._closing.is_set()
            offsets, self._waiting = self._waiting, {}
            try:
                await self._offsets.leave(offsets)
                self._said = ""
            except EvenflowError as error:
                self._tell(error)
                self._waiting = offsets | self._waiting
                if is_last:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await self._closing.wait()

    def _tell(self, error: EvenflowError) -> None:
        if str(error) != self._said:
            self._said = str(error)
            logger.warning(
                "checkpoints are not mirrored into the Kafka group %s, which nobody else may be in; they are tried"
                " again: %s",
                self._group,
                error,
            )
