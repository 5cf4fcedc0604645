"""Dead letters in this process's memory: for tests, and for the simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import DeadLetterRecord, Group, PartitionId


class MemoryDeadLetters:
    """It never awaits, so several event loops of one thread may share it."""

    def __init__(self) -> None:
        self._records: dict[Group, dict[PartitionId, list[DeadLetterRecord]]] = {}

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        self._records.setdefault(group, {}).setdefault(partition, []).extend(records)

    async def read(self, group: Group, partition: PartitionId | None = None) -> AsyncIterator[DeadLetterRecord]:
        for record in self.records(group, partition):
            yield record

    def records(self, group: Group, partition: PartitionId | None = None) -> list[DeadLetterRecord]:
        """Everything that was filed so far."""
        kept = self._records.get(group, {})
        names = list(kept) if partition is None else [partition]
        return [record for name in names for record in kept.get(name, ())]

    async def aclose(self) -> None:
        """Nothing to close: others may share it."""


_NAMED: dict[str, MemoryDeadLetters] = {}


def from_url(url: str, *, create: bool = True) -> MemoryDeadLetters:
    """`memory:` or `memory:NAME`: everything in this process that opens the same URL shares it."""
    return _NAMED.setdefault(url, MemoryDeadLetters())
