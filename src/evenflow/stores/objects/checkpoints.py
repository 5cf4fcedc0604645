"""Checkpoints, one object each, and the action log, one object per group; each is changed by its own
compare-and-set."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.model import Outcome
from evenflow.stores import rules
from evenflow.stores.objects import codec as wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import Action, Checkpoint, Group, PartitionId
    from evenflow.stores.objects.client import BucketClient
    from evenflow.stores.objects.versioned_object import VersionedObject


ActionLog: TypeAlias = "tuple[tuple[str, Action], ...]"
"""Newest first, each with a random name."""


class StoredCheckpoint(NamedTuple):
    """A checkpoint as stored; `record` is None if there is none."""

    record: Checkpoint | None
    nonce: str = ""


class EpochBounds(NamedTuple):
    """The limits that a group object sets for its checkpoints."""

    history: int
    floor: int
    """The group's epoch floor."""


class CheckpointFormat:
    def __init__(self, client: BucketClient, group: Group, partition: PartitionId) -> None:
        self._group = group
        self._name = client.name(wire.record_path(group, partition))

    async def load(self, data: bytes | None, known: StoredCheckpoint | None) -> StoredCheckpoint:
        if data is None:
            return StoredCheckpoint(None)
        body = wire.unpack(data, wire.RecordBody, self._name)
        return StoredCheckpoint(body.record, body.nonce)

    async def dump(self, before: StoredCheckpoint, after: StoredCheckpoint) -> bytes:
        assert after.record is not None
        return wire.pack(
            wire.RecordBody(evenflow=wire.LAYOUT, group=self._group, nonce=after.nonce, record=after.record)
        )

    def landed(self, wanted: StoredCheckpoint, found: StoredCheckpoint) -> bool | None:
        return True if found.nonce == wanted.nonce else None


async def seal(
    versioned: VersionedObject[StoredCheckpoint],
    bounds: EpochBounds,
    partition: PartitionId,
    epoch: int,
    default: Checkpoint,
    at: float,
    *,
    unplanned: bool,
    makes: bool,
) -> Checkpoint | None:
    """Returns the sealed record, or None if there is none and `makes` is false. With `makes` the bounds are fresh."""

    def decide(kept: StoredCheckpoint) -> tuple[StoredCheckpoint | None, Checkpoint | None]:
        if kept.record is None and not makes:
            return None, None
        written = rules.seal(
            kept.record, partition, epoch, default, at, unplanned=unplanned, history=bounds.history, floor=bounds.floor
        )
        if written is None:
            assert kept.record is not None
            return None, kept.record
        return StoredCheckpoint(written, secrets.token_hex(8)), written

    record = await versioned.change(decide, trust=makes)
    return wire.own(record) if record is not None else None


async def commit(
    versioned: VersionedObject[StoredCheckpoint],
    bounds: EpochBounds,
    checkpoint: Checkpoint,
    at: float,
    *,
    restores: bool,
) -> Outcome | None:
    """One put if this client wrote the record last. A refusal is always decided on a fresh read.

    Returns None if the record has another epoch and `restores` is false.
    """

    def decide(kept: StoredCheckpoint) -> tuple[StoredCheckpoint | None, Outcome | None]:
        is_of_this_epoch = kept.record is not None and kept.record.epoch == checkpoint.epoch
        if not is_of_this_epoch and not restores:
            return None, None
        if not rules.may_commit(kept.record, checkpoint, history=bounds.history, floor=bounds.floor):
            return None, Outcome(partition=checkpoint.partition, ok=False, why="epoch")
        done = Outcome(partition=checkpoint.partition, ok=True)
        if rules.is_late_commit(kept.record, checkpoint):
            return None, done
        return StoredCheckpoint(wire.own(rules.commit(kept.record, checkpoint, at)), secrets.token_hex(8)), done

    return await versioned.change(decide)


class ActionLogFormat:
    def __init__(self, client: BucketClient, group: Group) -> None:
        self._group = group
        self._name = client.name(wire.actions_path(group))

    async def load(self, data: bytes | None, known: ActionLog | None) -> ActionLog:
        return tuple(wire.unpack(data, wire.ActionsBody, self._name).actions) if data is not None else ()

    async def dump(self, before: ActionLog, after: ActionLog) -> bytes:
        return wire.pack(wire.ActionsBody(evenflow=wire.LAYOUT, group=self._group, actions=list(after)))

    def landed(self, wanted: ActionLog, found: ActionLog) -> bool | None:
        return wanted[0] in found


def keep(action: Action) -> Callable[[ActionLog], tuple[ActionLog | None, None]]:
    named = secrets.token_hex(8), action
    return lambda actions: ((named, *actions[: rules.ACTIONS_KEPT - 1]), None)
