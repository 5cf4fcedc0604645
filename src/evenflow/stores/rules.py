"""What a store decides in one atomic step, as plain functions over records, so that no two stores decide differently.

Nothing is read or written here, and there is no clock: a store brings what it has read, in one transaction, and
writes what these say. A store that decides in its server's own language follows the same rules; the contract suite in
`evenflow.testing.store.contract` holds all of them to it.
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
"""A namespace may be a path."""

MOVES_KEPT = 1_000
ACTIONS_KEPT = 1_000
"""Of each group, whether it still exists or not."""
WHY_CHARS_MAX = 500
"""A wish travels with every heartbeat, so that a person's words in it are cut."""
WHAT_CHARS_MAX = 10_000

FORGOTTEN_AFTER_S = 3_600.0
"""So long may a member be silent, by the store's wall clock, before its row is removed (if no lease names it).

The one place where wall clocks count, and harmless where they are wrong: the next heartbeat brings the row back.
"""

DEPARTED_KEPT = 32
"""Of so many members that left a group, a late heartbeat is still known."""

_UNWANTED = {"Cc": "a control character", "Cs": "half a character", "Zl": "a line break", "Zp": "a line break"}


@lru_cache(maxsize=1024)
def check_group(group: Group) -> None:
    """Any name will do that a person can read on one line; Misconfigured for the others."""
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
        raise Misconfigured(f"The {what} has {len(name)} characters, and {chars_max} are the most: {name[:40]!r}...")
    for character in name:
        if (fault := _UNWANTED.get(category(character))) is not None:
            raise Misconfigured(f"The {what} {name!r} has {fault} in it ({character!r}). Leave it out.")


def history_after(since: Cursor | None, now: Cursor) -> int:
    """The store's history once it has seen `since`: higher, when that proves that writes were lost.

    Proof is a cursor of another lineage (the store was emptied), or one from the future (it was put back to an
    older state): somebody saw what the store does not know any more.
    """
    if since is None:
        return now.history
    is_ahead = (since.history, since.revision) > (now.history, now.revision)
    if since.lineage == now.lineage and not is_ahead:
        return now.history
    return max(now.history, since.history + 1)


def first_history(before: int | None, since: Cursor | None, history: int) -> int:
    """The history in which a group began, after this heartbeat. `before`: as known so far; None for a group that this
    heartbeat makes, in this history. Whoever brings a cursor proves that the group was there in the cursor's history.
    """
    known = history if before is None else before
    return known if since is None else min(known, since.history)


def remember_departed(before: Iterable[str], nonce: str) -> tuple[str, ...]:
    """The nonces of those who left last, once this one has left. A heartbeat with one of them changes nothing: it is a
    late one, and nobody is there any more.
    """
    return (*(one for one in before if one != nonce), nonce)[-DEPARTED_KEPT:]


def floor_after(floor: int, epochs: Iterable[int], history: int) -> int:
    """The epoch floor of a group's name once the group is deleted. `epochs`: those of its leases and records.

    It is above all that owners of the deleted group may still send: commits, seals, swaps, and what they remember of an
    older history. No lease has the floor itself: under it, checkpoints are written by those who own nothing.
    """
    return max(floor, restore_epoch(history), *epochs) + 1


def can_send_changes(since: Cursor | None, now: Cursor, born: int) -> bool:
    """Whether what changed after `since` is all that an instance needs; otherwise it is told everything.

    `born` is the group's revision when it was made: a group may be deleted, and made again under the same name.
    """
    return (
        since is not None
        and (since.lineage, since.history) == (now.lineage, now.history)
        and born <= since.revision <= now.revision
    )


def admit_incarnation(row: Member | None, member: Member, *, newest: int, history: int) -> int:
    """The incarnation that this heartbeat counts for, given the row that stands under its id.

    `newest` is the highest incarnation that the group has given or seen. Superseded when the row is a newer one's,
    and also when another process has the same number, which only an emptied store can have given twice.
    """
    if row is not None and row.nonce == member.nonce and member.incarnation in (0, row.incarnation):
        return row.incarnation
    if member.incarnation == 0:
        return next_epoch(newest, history)
    if row is not None and row.incarnation >= member.incarnation:
        raise Superseded(
            f"A newer process runs under the instance id {member.id!r}: pid {row.pid} on host {row.host or '?'!r}. "
            "Give each process its own instance_id (in a change feed processor instance_name), or leave it out."
        )
    return member.incarnation


def why_refused(
    change: Change, lease: Lease | None, history: int, mark_of: Callable[[Owner], int | None], floor: int = 0
) -> str:
    """What refuses this change, in a word; "" when nothing does.

    `mark_of` tells the mark of an incarnation; None when it has no row, or a newer one has taken it. `floor` is the
    group's epoch floor.
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
    """The lease as this change makes it."""
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
    """What there is to tell people of this change; None when the lease had no owner and has none."""
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
    """Whom this change gives a lease without being asked: the instance to wake.

    Who claims or takes over is awake already; a wake-up would only make it heartbeat twice.
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
    """The record as this seal makes it; None when it stands under this very epoch. LeaseLost for a passed epoch.

    `history` is the store's, and `floor` the group's epoch floor. A seal that was on its way when the store was emptied
    makes no record: what it took for the start may be the end of the log.
    """
    record = _live_record(record, floor)
    lowest = max(floor, restore_epoch(history)) if record is None else floor
    if epoch < floor:
        raise LeaseLost(
            f"Partition {partition!r}: epoch {show_epoch(epoch)} belongs to a group that was deleted. A group of the"
            f" same name goes on with epochs above {show_epoch(floor)}.",
            lowest_epoch=lowest,
        )
    if epoch < lowest:
        raise LeaseLost(
            f"Partition {partition!r}: the store has lost writes since epoch {show_epoch(epoch)} was given, so that it"
            " is over: the partition is claimed anew.",
            lowest_epoch=lowest,
        )
    if record is None:
        return structs.replace(
            default, partition=partition, epoch=epoch, edition=0, begun=default.ordinal, fruitless=0, changed_at=at
        )
    if record.epoch > epoch:
        raise LeaseLost(
            f"Partition {partition!r} was sealed under epoch {show_epoch(record.epoch)}, so that "
            f"{show_epoch(epoch)} is over: somebody else owns it."
        )
    if record.epoch == epoch:
        return None
    fruitless = 0 if record.ordinal > record.begun else record.fruitless + unplanned
    return structs.replace(record, epoch=epoch, edition=0, begun=record.ordinal, fruitless=fruitless, changed_at=at)


def may_commit(record: Checkpoint | None, checkpoint: Checkpoint, *, history: int = 0, floor: int = 0) -> bool:
    """A commit counts under the very epoch that sealed the record, whoever owns the lease by now; or it restores. It
    passes over no effects of transactions that the store has lost together with their record."""
    if checkpoint.epoch < floor:
        return False
    record = _live_record(record, floor)
    if checkpoint.effects_to > (record.ordinal if record is not None else 0):
        return False
    is_of_this_epoch = record is not None and record.epoch == checkpoint.epoch
    return is_of_this_epoch or _restores(record, checkpoint, history)


def _live_record(record: Checkpoint | None, floor: int) -> Checkpoint | None:
    """A late request may have written a record of a deleted group where its store cannot check both in one step: it
    counts for nothing."""
    return record if record is not None and record.epoch >= floor else None


def _restores(record: Checkpoint | None, checkpoint: Checkpoint, history: int) -> bool:
    """What an instance remembers of an older history counts where the store has lost the record, or has an older one
    that nobody has sealed in this history. Effects of transactions went back with their record: it is the truth."""
    if history == 0 or checkpoint.epoch > restore_epoch(history):
        return False
    if record is None:
        return True
    return _age(record) < _age(checkpoint) and not record.effects


def _age(record: Checkpoint) -> tuple[int, int, int]:
    return record.epoch, record.ordinal, record.edition


def commit(record: Checkpoint | None, checkpoint: Checkpoint, at: float) -> Checkpoint:
    """The record after a commit: what a seal counted stays, and that there are effects."""
    if record is None:
        return structs.replace(checkpoint, changed_at=at)
    effects = record.effects or checkpoint.effects
    counted = {"begun": record.begun, "fruitless": record.fruitless}
    return structs.replace(checkpoint, **counted, effects=effects, effects_to=0, changed_at=at)


def is_late_commit(record: Checkpoint | None, checkpoint: Checkpoint) -> bool:
    """A commit that arrives late changes nothing. One of an equal ordinal does, unless a later edition is there: its
    notes may be new."""
    if record is None or record.epoch != checkpoint.epoch:
        return False
    return (checkpoint.ordinal, checkpoint.edition) < (record.ordinal, record.edition)


def stamp_action(action: Action, at: float) -> Action:
    """The action as it is kept: with the store's time, and with texts of bounded length."""
    by, why = _cut(action.by, NAME_CHARS_MAX), _cut(action.why, WHY_CHARS_MAX)
    return structs.replace(action, by=by, why=why, what=_cut(action.what, WHAT_CHARS_MAX), at=at)


def request_of(action: Action) -> Wish:
    """What the action asks of the group; of one that is `recorded`."""
    return Wish(action.by, action.why, action.at)


def steer(state: GroupState, steering: Steering, wish: Wish) -> GroupState:
    """The state as this steering makes it; Misconfigured when it makes no sense.

    What is to be resumed is resumed first, so that a steering which names a partition twice leaves it paused. A pause
    by a person stands until a person ends it: it takes the place of a visit's, and no visit resumes it.
    """
    pauses = _left_by(state, steering) if steering.visit else _resumed(state, steering.resume)
    for partition in steering.pause:
        standing = pauses.get(partition)
        if standing is None or (standing.visit and not steering.visit):
            pauses[partition] = structs.replace(wish, visit=steering.visit)
    retired = dict(state.retired)
    for owner in steering.retire:
        retired.setdefault(str(owner), wish)
    redrives = dict(state.redrives)
    for partition in steering.redrive:
        redrives[partition] = redrives.get(partition, 0) + 1
    return GroupState(state.source, pauses, retired, redrives)


def _left_by(state: GroupState, steering: Steering) -> dict[PartitionId, Wish]:
    """What stays paused when a visit resumes: all but its own, whatever else is paused."""
    return {
        partition: wish
        for partition, wish in state.pauses.items()
        if partition not in steering.resume or wish.visit != steering.visit
    }


def _resumed(state: GroupState, resume: tuple[PartitionId, ...]) -> dict[PartitionId, Wish]:
    if EVERYTHING in resume:
        return {}
    if resume and (wish := state.pauses.get(EVERYTHING)) is not None:
        raise Misconfigured(
            f"The whole group is paused (by {wish.by or 'somebody'}: {wish.why or 'no reason given'}), so that"
            f" partition {', '.join(resume)} cannot be resumed alone. Resume the group; then pause the partitions that"
            " shall stay so."
        )
    return {partition: wish for partition, wish in state.pauses.items() if partition not in resume}


def prune_retired(state: GroupState, present: Container[str]) -> GroupState:
    """Without the wishes that somebody retire who is not there any more. `present` are incarnations, as text."""
    if all(owner in present for owner in state.retired):
        return state
    retired = {owner: wish for owner, wish in state.retired.items() if owner in present}
    return structs.replace(state, retired=retired)


def no_such_group(group: Group) -> Misconfigured:
    return Misconfigured(f"The store knows no group {group}: nobody has run in it yet, or it was deleted.")


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."


def begin_transaction(record: Checkpoint | None, checkpoint: Checkpoint, *, committed: int, start: int) -> Checkpoint:
    """The record that a transaction begins on; LeaseLost or AlreadyDone when it must not begin.

    Between `committed` and `start` the record may stand anywhere: events may have been handled without a transaction,
    and a commit of them may have had no answer. Below, effects are missing that the owner believes in; beyond, some
    would happen twice.
    """
    if record is None or record.epoch != checkpoint.epoch:
        raise LeaseLost(
            f"Partition {checkpoint.partition!r}: its record is not of epoch {show_epoch(checkpoint.epoch)}, so that"
            " somebody else owns it. The transaction did not take effect."
        )
    if record.ordinal < committed:
        raise LeaseLost(
            f"Partition {checkpoint.partition!r}: its record has gone back from {committed} events to {record.ordinal}:"
            " the store has lost writes. The transaction did not take effect."
        )
    if record.ordinal > start:
        raise AlreadyDone(
            f"Partition {checkpoint.partition!r}: an earlier try took effect. {record.ordinal - start} events of this"
            " transaction are handled, with their effects."
        )
    return record
