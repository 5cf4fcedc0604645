"""Checkpoints, one object each, and what people did, one object a group: each changed by compare-and-set on its own."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.model import Outcome
from evenflow.stores import rules
from evenflow.stores.objects import codec as wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import Action, Checkpoint, Group, PartitionId
    from evenflow.stores.objects.cell import Cell
    from evenflow.stores.objects.client import Link


Actions: TypeAlias = "tuple[tuple[str, Action], ...]"
"""The newest first, each with a random name."""


class Kept(NamedTuple):
    """A checkpoint as it is kept, or that there is none."""

    record: Checkpoint | None
    nonce: str = ""


class Bounds(NamedTuple):
    """What a group's heart says of its checkpoints."""

    history: int
    floor: int
    """The group's epoch floor."""


class RecordShape:
    def __init__(self, link: Link, group: Group, partition: PartitionId) -> None:
        self._group = group
        self._name = link.name(wire.record_path(group, partition))

    async def load(self, data: bytes | None, known: Kept | None) -> Kept:
        if data is None:
            return Kept(None)
        body = wire.unpack(data, wire.RecordBody, self._name)
        return Kept(body.record, body.nonce)

    async def dump(self, before: Kept, after: Kept) -> bytes:
        assert after.record is not None
        return wire.pack(
            wire.RecordBody(evenflow=wire.LAYOUT, group=self._group, nonce=after.nonce, record=after.record)
        )

    def landed(self, wanted: Kept, found: Kept) -> bool | None:
        return True if found.nonce == wanted.nonce else None


async def seal(
    cell: Cell[Kept],
    bounds: Bounds,
    partition: PartitionId,
    epoch: int,
    default: Checkpoint,
    at: float,
    *,
    unplanned: bool,
    makes: bool,
) -> Checkpoint | None:
    """The record; None where there is none and this must not make it. With `makes` it has been looked at just now."""

    def decide(kept: Kept) -> tuple[Kept | None, Checkpoint | None]:
        if kept.record is None and not makes:
            return None, None
        written = rules.seal(
            kept.record, partition, epoch, default, at, unplanned=unplanned, history=bounds.history, floor=bounds.floor
        )
        if written is None:
            assert kept.record is not None
            return None, kept.record
        return Kept(written, secrets.token_hex(8)), written

    record = await cell.change(decide, trust=makes)
    return wire.own(record) if record is not None else None


async def commit(
    cell: Cell[Kept], bounds: Bounds, checkpoint: Checkpoint, at: float, *, restores: bool
) -> Outcome | None:
    """One put, where this client has written the record last. What it would refuse is looked at first.

    None: it is of another epoch than the record, and this must not restore what an instance remembers.
    """

    def decide(kept: Kept) -> tuple[Kept | None, Outcome | None]:
        is_of_this_epoch = kept.record is not None and kept.record.epoch == checkpoint.epoch
        if not is_of_this_epoch and not restores:
            return None, None
        if not rules.may_commit(kept.record, checkpoint, history=bounds.history, floor=bounds.floor):
            return None, Outcome(partition=checkpoint.partition, ok=False, why="epoch")
        done = Outcome(partition=checkpoint.partition, ok=True)
        if rules.is_late_commit(kept.record, checkpoint):
            return None, done
        return Kept(wire.own(rules.commit(kept.record, checkpoint, at)), secrets.token_hex(8)), done

    return await cell.change(decide)


class ActionsShape:
    def __init__(self, link: Link, group: Group) -> None:
        self._group = group
        self._name = link.name(wire.actions_path(group))

    async def load(self, data: bytes | None, known: Actions | None) -> Actions:
        return tuple(wire.unpack(data, wire.ActionsBody, self._name).actions) if data is not None else ()

    async def dump(self, before: Actions, after: Actions) -> bytes:
        return wire.pack(wire.ActionsBody(evenflow=wire.LAYOUT, group=self._group, actions=list(after)))

    def landed(self, wanted: Actions, found: Actions) -> bool | None:
        return wanted[0] in found


def keep(action: Action) -> Callable[[Actions], tuple[Actions | None, None]]:
    named = secrets.token_hex(8), action
    return lambda actions: ((named, *actions[: rules.ACTIONS_KEPT - 1]), None)
