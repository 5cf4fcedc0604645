"""Writes the checkpoints of azure-eventhub as fenced records: each under the epoch of a claim.

A claim seals the record if it exists, so that the previous owner can no longer move it. It does not create a missing
record: until the first checkpoint, the application's starting position applies. A caller that never claimed the
partition here (a receiver of one given partition) writes under the epoch of the record.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.compat.checkpointstore.entries import row_of
from evenflow.compat.checkpointstore.owners import is_official
from evenflow.core.notes import Notes, notes_of
from evenflow.errors import LeaseLost, StoreUnavailable
from evenflow.model import EPOCH_HISTORY_BITS, Checkpoint, epoch_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.compat.checkpointstore.owners import OpenStore
    from evenflow.model import Group, Ledger, PartitionId, Position
    from evenflow.ports import Store

TRIES = 5
"""How often a write without a claim is tried while other owners claim the partition."""


@dataclass(slots=True)
class _Written:
    """A partition and the last epoch under which it was claimed here."""

    epoch: int
    record: Checkpoint | None
    """The record as it was last written; None before the first checkpoint."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Checkpoints are written one after the other, in the order of the calls."""


class FencedCheckpoints:
    """The checkpoints of one group."""

    def __init__(self, store: OpenStore, group: Group) -> None:
        self._store, self._group = store, group
        self._written: dict[PartitionId, _Written] = {}

    async def records(self) -> Sequence[Checkpoint]:
        return await self._store.checkpoints(self._group)

    async def seal(self, epochs: Mapping[PartitionId, int]) -> set[PartitionId]:
        """Fence older owners of claimed partitions; returns the partitions that another owner has claimed since."""
        new = [partition for partition, epoch in epochs.items() if self._epoch_of(partition) != epoch]
        if not new:
            return set()
        remembered = [self._remembered(partition, epochs[partition]) for partition in new]
        if lost := [record for record in remembered if record is not None]:
            await self._store.commit(self._group, lost)
        records = {record.partition: record for record in await self.records()}
        seals = (self._seal(partition, epochs[partition], records.get(partition)) for partition in new)
        outcomes = await asyncio.gather(*seals, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, LeaseLost):
                raise outcome
        return {partition for partition, outcome in zip(new, outcomes, strict=True) if outcome is not None}

    async def update(self, partition: PartitionId, position: Position) -> None:
        """Raises `LeaseLost` if another owner has claimed the partition since it was claimed here."""
        written = self._written.get(partition)
        if written is None:
            await self._update_without_claim(partition, position)
            return
        async with written.turn:
            if written.record is None and await self._begin(written, partition, position):
                return
            await self._advance(written, position)

    # --- under a claim
    def _epoch_of(self, partition: PartitionId) -> int | None:
        written = self._written.get(partition)
        return written.epoch if written is not None else None

    async def _seal(self, partition: PartitionId, epoch: int, record: Checkpoint | None) -> None:
        if record is not None:
            record = await self._store.seal(self._group, partition, epoch, record)
        self._written[partition] = _Written(epoch, record)

    def _remembered(self, partition: PartitionId, epoch: int) -> Checkpoint | None:
        """After the store lost writes, the record that was written here: the stored one may be older or missing. The
        store accepts it unless it has a newer one."""
        written = self._written.get(partition)
        if written is None or written.record is None or epoch_parts(written.epoch)[0] >= epoch_parts(epoch)[0]:
            return None
        return written.record

    async def _begin(self, written: _Written, partition: PartitionId, position: Position) -> bool:
        """Write the first checkpoint of the partition; False if an older owner was faster with its own."""
        first = Checkpoint(partition=partition, epoch=written.epoch, position=position, ordinal=1)
        written.record = await self._store.seal(self._group, partition, written.epoch, first)
        return written.record.position == position

    async def _advance(self, written: _Written, position: Position) -> None:
        assert written.record is not None
        # It counts as written at once: even if the response is lost, the next one has a higher ordinal.
        written.record = _moved(written.record, position, _step(written.record.position, position))
        (outcome,) = await self._store.commit(self._group, [written.record])
        if not outcome.ok:
            raise LeaseLost(
                f"Partition {written.record.partition!r} was claimed by another owner, or moved by a seek: its"
                f" checkpoint was not moved to offset {position.offset}. Events after the stored one are handled again."
            )

    # --- without a claim
    async def _update_without_claim(self, partition: PartitionId, position: Position) -> None:
        for _ in range(TRIES):
            ledger = await self._store.peek(self._group)
            _reject_processors(ledger, partition)
            records = {record.partition: record for record in await self.records()}
            if await self._write(partition, position, records.get(partition), ledger):
                return
        raise StoreUnavailable(
            f"Partition {partition!r}: gave up after {TRIES} attempts, as other owners keep claiming it. Try again."
        )

    async def _write(
        self, partition: PartitionId, position: Position, record: Checkpoint | None, ledger: Ledger | None
    ) -> bool:
        """The ordinal stays the same, so that the owner's next checkpoint is not rejected as an older one."""
        if record is not None:
            (outcome,) = await self._store.commit(self._group, [_moved(record, position, 0)])
            return outcome.ok
        epochs = {lease.partition: lease.epoch for lease in ledger.leases} if ledger is not None else {}
        lowest = ledger.cursor.history << EPOCH_HISTORY_BITS if ledger is not None else 0
        epoch = epochs.get(partition, lowest)
        first = Checkpoint(partition=partition, epoch=epoch, position=position, ordinal=1)
        try:
            sealed = await seal_unowned(self._store, self._group, first)
        except LeaseLost:
            return False
        return sealed.position == position


async def seal_unowned(store: Store, group: Group, default: Checkpoint) -> Checkpoint:
    """Seal without a lease: under the epoch of `default`, or under the lowest epoch that the group still accepts."""
    try:
        return await store.seal(group, default.partition, default.epoch, default)
    except LeaseLost as error:
        if error.lowest_epoch is None:
            raise
        return await store.seal(group, default.partition, error.lowest_epoch, default)


def _reject_processors(ledger: Ledger | None, partition: PartitionId) -> None:
    """A running Processor does not know of this checkpoint; if it stopped, events in between would be lost."""
    members = {member.id: member for member in ledger.members} if ledger is not None else {}
    for lease in ledger.leases if ledger is not None else ():
        member = row_of(lease.owner, members)
        if lease.partition == partition and member is not None and not is_official(member):
            raise LeaseLost(
                f"Partition {partition!r} is owned by {member.id!r}, an instance of evenflow's Processor, which writes"
                " its own checkpoints. Use `evenflow group seek` to move them."
            )


def _step(before: Position, after: Position) -> int:
    """The number of events handled in between, or 1 if unknown. Going back counts as 1: it is the later checkpoint."""
    if before.sequence is None or after.sequence is None:
        return 1
    return max(1, after.sequence - before.sequence)


def _moved(record: Checkpoint, position: Position, step: int) -> Checkpoint:
    """The record at its new position. Keys parked behind dead letters stay; other notes belong to the old position."""
    notes = notes_of(record)
    kept = Notes(parked=notes.parked, redriven=notes.redriven)
    ordinal = record.ordinal + step
    return replace(record, position=position, ordinal=ordinal, notes=kept.as_dict(), event_at=0.0)
