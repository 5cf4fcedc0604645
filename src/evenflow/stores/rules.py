"""The decisions that a store makes inside one atomic step, as pure functions over records, shared by all stores.

This module does no I/O and reads no clock: a store reads records in one transaction, calls these functions, and writes
the result. Stores that decide in their server's own language (Lua, PL/pgSQL) implement the same rules; the contract
suite in `evenflow.testing.store.contract` checks that they agree.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from unicodedata import category

from msgspec import structs

from evenflow.errors import AlreadyDone, LeaseLost, Misconfigured, Superseded
from evenflow.model import (
    EVERYTHING,
    Checkpoint,
    GroupState,
    Lease,
    Move,
    Wish,
    next_epoch,
    restore_epoch,
    show_epoch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from evenflow.model import Action, Change, Cursor, Group, Member, Owner, PartitionId, Steering

NAME_CHARS_MAX = 256
NAMESPACE_CHARS_MAX = 1024
"""Longer than other names, because a namespace may be a path."""

MOVES_KEPT = 1_000
ACTIONS_KEPT = 1_000
"""For each group name; actions outlive their group."""
WHY_CHARS_MAX = 500
"""Operator requests travel with every heartbeat, so their text is cut to this length."""
WHAT_CHARS_MAX = 10_000

FORGOTTEN_AFTER_S = 3_600.0
"""A member that has been silent for this long, by the store's wall clock, loses its row unless a lease names it.

The only decision that uses a wall clock. A wrong clock does no harm: the next heartbeat writes the row again.
"""

DEPARTED_KEPT = 32
"""Late heartbeats of this many departed members of a group are still recognised."""

_UNWANTED = {"Cc": "a control character", "Cs": "half of a surrogate pair", "Zl": "a line break", "Zp": "a line break"}


@lru_cache(maxsize=1024)
def check_group(group: Group) -> None:
    """Accepts any name that can be displayed on one line; raises Misconfigured for others."""
    _check_name("namespace", group.namespace, NAMESPACE_CHARS_MAX, may_be_empty=True)
    _check_name("hub name", group.hub, NAME_CHARS_MAX)
    _check_name("group name", group.name, NAME_CHARS_MAX)


@lru_cache(maxsize=1024)
def check_instance(instance: str) -> None:
    _check_name("instance_id", instance, NAME_CHARS_MAX)


def _check_name(what: str, name: str, chars_max: int, *, may_be_empty: bool = False) -> None:
    if not name and not may_be_empty:
        raise Misconfigured(f"The {what} is empty. Give it a name of 1 to {chars_max} characters.")
    if len(name) > chars_max:
        raise Misconfigured(f"The {what} has {len(name)} characters; the maximum is {chars_max}: {name[:40]!r}...")
    for character in name:
        if (fault := _UNWANTED.get(category(character))) is not None:
            raise Misconfigured(f"The {what} {name!r} contains {fault} ({character!r}). Remove it.")


def history_after(since: Cursor | None, now: Cursor) -> int:
    """The store's history after it has seen the cursor `since`: higher if the cursor proves that writes were lost.

    Two things are proof: a cursor of another lineage (the store was emptied), and a cursor ahead of the store (the
    store was restored to an older state). In both cases an instance has seen a revision that the store no longer has.
    """
    if since is None:
        return now.history
    is_ahead = (since.history, since.revision) > (now.history, now.revision)
    if since.lineage == now.lineage and not is_ahead:
        return now.history
    return max(now.history, since.history + 1)


def first_history(before: int | None, since: Cursor | None, history: int) -> int:
    """The history in which the group was created, as known after this heartbeat.

    `before` is the value known so far, or None if this heartbeat creates the group. A cursor proves that the group
    existed in the cursor's history.
    """
    known = history if before is None else before
    return known if since is None else min(known, since.history)


def remember_departed(before: Iterable[str], nonce: str) -> tuple[str, ...]:
    """The nonces of the members that left last, including this one.

    A heartbeat with one of these nonces is a late one of a member that has left. It changes nothing.
    """
    return (*(one for one in before if one != nonce), nonce)[-DEPARTED_KEPT:]


def floor_after(floor: int, epochs: Iterable[int], history: int) -> int:
    """The epoch floor of a group's name after the group is deleted. `epochs` are those of its leases and checkpoints.

    The floor is above every epoch that former owners may still send, in commits, seals, swaps and restored checkpoints.
    No lease ever gets the floor itself as its epoch: writers without a lease (a seek, for example) write under it.
    """
    return max(floor, restore_epoch(history), *epochs) + 1


def can_send_changes(since: Cursor | None, now: Cursor, first_revision: int) -> bool:
    """Whether the changes after `since` are enough for this instance; otherwise it gets the whole ledger.

    `first_revision` is the group's revision when it was created: a group may be deleted and created again under the
    same name.
    """
    return (
        since is not None
        and (since.lineage, since.history) == (now.lineage, now.history)
        and first_revision <= since.revision <= now.revision
    )


def admit_incarnation(row: Member | None, member: Member, *, newest: int, history: int) -> int:
    """The incarnation that this heartbeat counts for, given the member row under its id.

    `newest` is the highest incarnation that the group has assigned or seen. Raises Superseded if the row belongs to a
    newer incarnation, or to another process with the same number, which only an emptied store can assign twice.
    """
    if row is not None and row.nonce == member.nonce and member.incarnation in (0, row.incarnation):
        return row.incarnation
    if member.incarnation == 0:
        return next_epoch(newest, history)
    if row is not None and row.incarnation >= member.incarnation:
        raise Superseded(
            f"A newer process runs under the instance id {member.id!r}: pid {row.pid} on host {row.host or '?'!r}. "
            "Give each process its own instance_id (instance_name in a change feed processor), or omit it."
        )
    return member.incarnation


def why_refused(
    change: Change, lease: Lease | None, history: int, mark_of: Callable[[Owner], int | None], floor: int = 0
) -> str:
    """Why this change is refused, in one word; "" if it is accepted.

    `mark_of` returns the heartbeat counter of an incarnation, or None if it has no row or a newer incarnation has the
    row. `floor` is the group's epoch floor.
    """
    if change.history != history:
        return "history"
    if change.revision != (lease.revision if lease else 0):
        return "revision"
    if change.epoch <= floor:
        return "epoch"
    if change.still is not None and mark_of(change.still[0]) != change.still[1]:
        return "mark"
    if change.owner is not None and mark_of(change.owner) is None:
        return "owner"
    return ""


def lease_after(change: Change, revision: int, at: float) -> Lease:
    """The lease after this change."""
    return Lease(
        partition=change.partition,
        owner=change.owner,
        epoch=change.epoch,
        revision=revision,
        history=change.history,
        ttl_s=change.ttl_s,
        late=change.late,
        ended=change.ended,
        reason=change.reason,
        changed_at=at,
    )


def move_between(before: Lease | None, after: Lease) -> Move | None:
    """The change of ownership, for display; None if the lease had no owner before and has none after."""
    old = before.owner if before else None
    if old is None and after.owner is None:
        return None
    return Move(
        partition=after.partition,
        before=old.id if old else None,
        after=after.owner.id if after.owner else None,
        epoch=after.epoch,
        reason=after.reason,
        at=after.changed_at,
    )


def instance_to_wake(before: Lease | None, change: Change) -> str | None:
    """The instance that this change hands a lease to, if another instance made the change; it has to be woken.

    An instance that claims or takes over is already active; waking it would only cause a second heartbeat.
    """
    if before is None or before.owner is None or change.owner is None or change.still is not None:
        return None
    return change.owner.id if change.owner.id != before.owner.id else None


def seal(
    record: Checkpoint | None,
    partition: PartitionId,
    epoch: int,
    default: Checkpoint,
    at: float,
    *,
    unplanned: bool = False,
    history: int = 0,
    floor: int = 0,
) -> Checkpoint | None:
    """The record after this seal, or None if it is already sealed under this epoch. Raises LeaseLost for a stale epoch.

    `history` is the store's history and `floor` the group's epoch floor. A seal that was in flight when the store was
    emptied creates no record: its start position may be the end of the log, so events would be skipped.
    """
    record = _live_record(record, floor)
    lowest = max(floor, restore_epoch(history)) if record is None else floor
    if epoch < floor:
        raise LeaseLost(
            f"Partition {partition!r}: epoch {show_epoch(epoch)} belongs to a group that was deleted. The group of the"
            f" same name uses epochs above {show_epoch(floor)}.",
            lowest_epoch=lowest,
        )
    if epoch < lowest:
        raise LeaseLost(
            f"Partition {partition!r}: epoch {show_epoch(epoch)} is stale because the store has lost writes since it"
            " was assigned. The partition will be claimed again.",
            lowest_epoch=lowest,
        )
    if record is None:
        return structs.replace(
            default, partition=partition, epoch=epoch, edition=0, begun=default.ordinal, fruitless=0, changed_at=at
        )
    if record.epoch > epoch:
        raise LeaseLost(
            f"Partition {partition!r}: epoch {show_epoch(epoch)} is stale, the partition is sealed under epoch "
            f"{show_epoch(record.epoch)}. Another instance owns it."
        )
    if record.epoch == epoch:
        return None
    fruitless = 0 if record.ordinal > record.begun else record.fruitless + unplanned
    return structs.replace(record, epoch=epoch, edition=0, begun=record.ordinal, fruitless=fruitless, changed_at=at)


def may_commit(record: Checkpoint | None, checkpoint: Checkpoint, *, history: int = 0, floor: int = 0) -> bool:
    """Whether a commit is accepted: it has the epoch that sealed the record, or it restores a lost record.

    The current owner of the lease does not matter. A commit is refused if it would move the record past effects of
    transactions that the store has lost together with the record.
    """
    if checkpoint.epoch < floor:
        return False
    record = _live_record(record, floor)
    if checkpoint.effects_to > (record.ordinal if record is not None else 0):
        return False
    is_of_this_epoch = record is not None and record.epoch == checkpoint.epoch
    return is_of_this_epoch or _restores(record, checkpoint, history)


def _live_record(record: Checkpoint | None, floor: int) -> Checkpoint | None:
    """None for a record of a deleted group. A late request may have written one in a store that cannot check the group
    and the record in one step."""
    return record if record is not None and record.epoch >= floor else None


def _restores(record: Checkpoint | None, checkpoint: Checkpoint, history: int) -> bool:
    """Whether this commit restores a checkpoint that an instance remembers from an older history.

    That is accepted if the store has lost the record, or has an older one that was not sealed in this history. A record
    with effects is never replaced: the effects of its transactions went back together with it, so it is correct.
    """
    if history == 0 or checkpoint.epoch > restore_epoch(history):
        return False
    if record is None:
        return True
    return _age(record) < _age(checkpoint) and not record.effects


def _age(record: Checkpoint) -> tuple[int, int, int]:
    return record.epoch, record.ordinal, record.edition


def commit(record: Checkpoint | None, checkpoint: Checkpoint, at: float) -> Checkpoint:
    """The record after a commit. The counters of the last seal are kept, and so is the flag that effects exist."""
    if record is None:
        return structs.replace(checkpoint, changed_at=at)
    effects = record.effects or checkpoint.effects
    counted = {"begun": record.begun, "fruitless": record.fruitless}
    return structs.replace(checkpoint, **counted, effects=effects, effects_to=0, changed_at=at)


def is_late_commit(record: Checkpoint | None, checkpoint: Checkpoint) -> bool:
    """Whether the record is already newer than this commit. With equal ordinals the edition decides, because the notes
    may have changed."""
    if record is None or record.epoch != checkpoint.epoch:
        return False
    return (checkpoint.ordinal, checkpoint.edition) < (record.ordinal, record.edition)


def stamp_action(action: Action, at: float) -> Action:
    """The action as stored: with the store's time, and with its texts cut to a bounded length."""
    by, why = _cut(action.by, NAME_CHARS_MAX), _cut(action.why, WHY_CHARS_MAX)
    return structs.replace(action, by=by, why=why, what=_cut(action.what, WHAT_CHARS_MAX), at=at)


def request_of(action: Action) -> Wish:
    """The operator request in an action that `stamp_action` returned."""
    return Wish(action.by, action.why, action.at)


def steer(state: GroupState, steering: Steering, request: Wish) -> GroupState:
    """The group's state after an operator's change. Raises Misconfigured if the change makes no sense.

    Resumes are applied before pauses, so a partition named in both ends up paused. An operator's pause lasts until an
    operator ends it: it replaces the pause of a visit (a seek, for example), and no visit resumes it.
    """
    pauses = _left_by(state, steering) if steering.visit else _resumed(state, steering.resume)
    for partition in steering.pause:
        standing = pauses.get(partition)
        if standing is None or (standing.visit and not steering.visit):
            pauses[partition] = structs.replace(request, visit=steering.visit)
    retired = dict(state.retired)
    for owner in steering.retire:
        retired.setdefault(str(owner), request)
    redrives = dict(state.redrives)
    for partition in steering.redrive:
        redrives[partition] = redrives.get(partition, 0) + 1
    return GroupState(state.source, pauses, retired, redrives)


def _left_by(state: GroupState, steering: Steering) -> dict[PartitionId, Wish]:
    """The pauses that remain when a visit resumes: it ends only its own."""
    return {
        partition: request
        for partition, request in state.pauses.items()
        if partition not in steering.resume or request.visit != steering.visit
    }


def _resumed(state: GroupState, resume: tuple[PartitionId, ...]) -> dict[PartitionId, Wish]:
    if EVERYTHING in resume:
        return {}
    if resume and (request := state.pauses.get(EVERYTHING)) is not None:
        raise Misconfigured(
            f"Cannot resume partition {', '.join(resume)} alone: the whole group is paused"
            f" (by {request.by or 'an operator'}: {request.why or 'no reason given'}). Resume the group, then pause the"
            " partitions that should stay paused."
        )
    return {partition: request for partition, request in state.pauses.items() if partition not in resume}


def prune_retired(state: GroupState, present: Container[str]) -> GroupState:
    """Removes requests to retire members that are no longer present. `present` are incarnations, as text."""
    if all(owner in present for owner in state.retired):
        return state
    retired = {owner: request for owner, request in state.retired.items() if owner in present}
    return structs.replace(state, retired=retired)


def no_such_group(group: Group) -> Misconfigured:
    return Misconfigured(f"The store knows no group {group}: no instance has run in it yet, or it was deleted.")


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."


def begin_transaction(record: Checkpoint | None, checkpoint: Checkpoint, *, committed: int, start: int) -> Checkpoint:
    """The record that a transaction begins from. Raises LeaseLost or AlreadyDone if it must not begin.

    The record may be anywhere between `committed` and `start`: events may have been handled without a transaction, and
    their commit may be unanswered. A record below `committed` has lost effects that the owner relies on; beyond
    `start`, effects would happen twice.
    """
    if record is None or record.epoch != checkpoint.epoch:
        raise LeaseLost(
            f"Partition {checkpoint.partition!r}: its checkpoint is not of epoch {show_epoch(checkpoint.epoch)};"
            " another instance owns the partition. The transaction did not take effect."
        )
    if record.ordinal < committed:
        raise LeaseLost(
            f"Partition {checkpoint.partition!r}: its checkpoint has gone back from {committed} events to"
            f" {record.ordinal}: the store has lost writes. The transaction did not take effect."
        )
    if record.ordinal > start:
        raise AlreadyDone(
            f"Partition {checkpoint.partition!r}: an earlier attempt took effect. {record.ordinal - start} events of"
            " this transaction are handled, with their effects."
        )
    return record
