"""The dead letters of a simulated world, and the way there. What is in them counts as handled: it is not lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import DeadLettersUnavailable
from evenflow.model import DeadLetter
from evenflow.operate.dead_letters.memory import MemoryDeadLetters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import DeadLetterRecord, Group, PartitionId
    from evenflow.testing.simulated.world import World


class SimulatedDeadLetters(MemoryDeadLetters):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        for record in records:
            if isinstance(record, DeadLetter):
                self._world.dead_letter_filed(partition, record)
            elif record.kind == "redriven":
                self._world.trials.redriven(record)
        await super().file(group, partition, records)


class DeadLettersLine:
    """The dead letters as a process reaches them: slow, and at times away; then nobody knows whether it was filed."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        await self._travel()
        await self._world.dead_letters.file(group, partition, records)
        await self._travel()

    async def read(self, group: Group, partition: PartitionId | None = None) -> AsyncIterator[DeadLetterRecord]:
        await self._travel()
        for record in self._world.dead_letters.records(group, partition):
            yield record

    async def aclose(self) -> None:
        """The world's dead letters stay."""

    async def _travel(self) -> None:
        failing = self._world.options.failing
        if failing is not None and failing.dead_letters_s:
            await asyncio.sleep(self._world.trials.rng.uniform(0.2, 1.8) * failing.dead_letters_s)
        if self._world.trials.dead_letters_away:
            raise DeadLettersUnavailable("the simulated dead letters are away")
