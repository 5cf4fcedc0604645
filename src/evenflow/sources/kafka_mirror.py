"""Copies checkpoints into a Kafka consumer group, so that Kafka's own tools show the lag. The store stays the truth.

One commit is under way at a time, and what is put meanwhile goes with the next. A mirror that does not work is told
of in the log, and changes nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError
from evenflow.sources.kafka_driver import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evenflow.sources.kafka_looks import Looks

CLOSE_S = 5.0


class Mirror:
    def __init__(self, group: str, looks: Callable[[], Looks]) -> None:
        self._group = group
        self._looks = looks
        self._waiting: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def put(self, offsets: Mapping[int, int]) -> None:
        """The next offset of each partition."""
        self._waiting.update(offsets)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._copy())

    async def aclose(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_S)
            self._task.cancel()

    async def _copy(self) -> None:
        while self._waiting:
            offsets, self._waiting = self._waiting, {}
            try:
                await self._looks().leave(self._group, offsets)
                self._said = ""
            except EvenflowError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    logger.warning(
                        "checkpoints are not mirrored into the Kafka group %s, which nobody else may be in: %s",
                        self._group,
                        error,
                    )
