"""The dead letters of a simulated world. What is in them counts as handled: it is not lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.letters.memory import MemoryLetters
from evenflow.model import Letter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Group, LetterRecord, PartitionId
    from evenflow.testing.simulated.world import World


class SimulatedLetters(MemoryLetters):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def file(self, group: Group, partition: PartitionId, records: Sequence[LetterRecord]) -> None:
        await super().file(group, partition, records)
        for record in records:
            if isinstance(record, Letter):
                self._world.nothing_lost.handled(partition, record.event.sequence or 0)
