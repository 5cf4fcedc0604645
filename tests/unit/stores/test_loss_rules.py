"""What a store decides after it has lost writes, and after a group was deleted."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost
from evenflow.model import Change, Checkpoint, Cursor, Lease, Owner, next_epoch, restore_epoch
from evenflow.stores import rules
from evenflow.testing.store.scene import at

ME = Owner("me", 1)
OLD, LATER = 5, next_epoch(0, 1)


def record(epoch: int, ordinal: int = 5, edition: int = 0, **facts: object) -> Checkpoint:
    return structs.replace(at(ordinal, epoch=epoch), edition=edition, **facts)


def since(history: int) -> Cursor:
    return Cursor("store", history, 1)


@pytest.mark.parametrize(
    ("before", "cursor", "history", "after"),
    [
        (None, None, 0, 0),
        (None, None, 3, 3),
        (None, since(2), 3, 2),
        (None, since(7), 3, 3),
        (3, None, 5, 3),
        (3, since(1), 5, 1),
        (3, since(4), 5, 3),
        (0, since(4), 5, 0),
    ],
)
def test_when_a_group_began(before: int | None, cursor: Cursor | None, history: int, after: int) -> None:
    assert rules.first_history(before, cursor, history) == after


def test_the_last_who_left_are_known() -> None:
    known: tuple[str, ...] = ()
    for number in range(rules.DEPARTED_KEPT + 2):
        known = rules.remember_departed(known, str(number))
    assert known == tuple(map(str, range(2, rules.DEPARTED_KEPT + 2)))
    assert rules.remember_departed(known, "5") == (*(one for one in known if one != "5"), "5")


def test_a_floor_is_above_all_that_a_group_may_have_had() -> None:
    assert rules.floor_after(0, (), 0) == 1
    assert rules.floor_after(4, (3, 9, 2), 0) == 10
    assert rules.floor_after(12, (3, 9), 0) == 13
    assert rules.floor_after(4, (9,), 2) == restore_epoch(2) + 1, "what is remembered of older histories comes no more"
    assert rules.floor_after(4, (LATER + 3,), 1) == LATER + 4


def test_no_lease_ever_has_the_epoch_of_what_is_restored() -> None:
    for epoch, history in product((0, 1, OLD, LATER), (1, 2)):
        assert next_epoch(epoch, history) > restore_epoch(history) > next_epoch(restore_epoch(history) - 2, 0)
    assert restore_epoch(0) == 0


@pytest.mark.parametrize(("epoch", "floor", "why"), [(1, 0, ""), (4, 4, "epoch"), (3, 4, "epoch"), (5, 4, "")])
def test_no_lease_is_given_at_or_below_the_floor(epoch: int, floor: int, why: str) -> None:
    change = Change(partition="0", revision=0, history=0, owner=None, epoch=epoch)
    assert rules.why_refused(change, None, 0, lambda owner: 1, floor) == why
    assert rules.why_refused(change, Lease(partition="0", revision=3), 0, lambda owner: 1, floor) == "revision"
    taken = structs.replace(change, owner=ME)
    assert rules.why_refused(taken, None, 0, lambda owner: None, floor) == (why or "owner")


def sealed(before: Checkpoint | None, epoch: int, *, history: int = 0, floor: int = 0) -> Checkpoint | None:
    return rules.seal(before, "0", epoch, record(epoch, 9, 9), 1.0, history=history, floor=floor)


@pytest.mark.parametrize("before", [None, record(2)])
def test_a_seal_below_the_floor_is_refused(before: Checkpoint | None) -> None:
    for epoch in (2, 3):
        with pytest.raises(LeaseLost, match=f"epoch {epoch} .*deleted.*above 4") as caught:
            sealed(before, epoch, floor=4)
        assert caught.value.lowest_epoch == 4
    assert sealed(before, 4, floor=4) is not None, "one of no lease"
    with pytest.raises(LeaseLost) as caught:
        sealed(before, 3, floor=4, history=1)
    assert caught.value.lowest_epoch == restore_epoch(1), "no record, or one of the deleted group"
    with pytest.raises(LeaseLost) as caught:
        sealed(record(4), 3, floor=4, history=1)
    assert caught.value.lowest_epoch == 4


def test_a_seal_of_an_older_history_makes_no_record() -> None:
    for history in (1, 2):
        with pytest.raises(LeaseLost, match=r"epoch 5 is stale because the store has lost writes") as caught:
            sealed(None, OLD, history=history)
        assert caught.value.lowest_epoch == restore_epoch(history)
        assert sealed(None, restore_epoch(history), history=history) is not None, "one of no lease"
    with pytest.raises(LeaseLost):
        sealed(None, LATER, history=2)
    assert sealed(None, LATER, history=1) is not None
    assert sealed(None, LATER, history=0) is not None, "one that the store has yet to hear of"
    assert sealed(record(OLD - 1), OLD, history=1) is not None, "nothing is created"


def test_a_seal_begins_a_new_count_of_editions() -> None:
    for before, epoch in ((None, 6), (record(OLD, 5, 7), 6), (record(OLD, 5, 7), LATER)):
        after = sealed(before, epoch)
        assert after is not None
        assert (after.epoch, after.edition) == (epoch, 0)
    assert sealed(record(OLD, 5, 7), OLD) is None


@pytest.mark.parametrize(
    ("before", "checkpoint", "history"),
    [
        (None, record(OLD), 1),
        (None, record(restore_epoch(1)), 1),
        (None, record(LATER), 2),
        (record(OLD, 4), record(OLD, 5), 1),
        (record(OLD, 9), record(OLD + 1, 5), 1),
        (record(OLD, 4, 7), record(restore_epoch(1), 3), 1),
        (record(LATER, 4), record(restore_epoch(2), 5), 2),
    ],
)
def test_what_is_remembered_is_restored(before: Checkpoint | None, checkpoint: Checkpoint, history: int) -> None:
    assert rules.may_commit(before, checkpoint, history=history)
    assert not rules.is_late_commit(before, checkpoint)
    after = rules.commit(before, checkpoint, 1.0)
    assert (after.epoch, after.ordinal) == (checkpoint.epoch, checkpoint.ordinal)


@pytest.mark.parametrize(
    ("before", "checkpoint", "history"),
    [
        (None, record(OLD), 0),
        (None, record(0), 0),
        (None, record(LATER), 1),
        (None, record(restore_epoch(1) + 1), 1),
        (record(OLD, 4), record(OLD + 1, 5), 0),
        (record(LATER, 4), record(OLD, 5), 1),
        (record(LATER, 4), record(restore_epoch(1), 5), 1),
        (record(OLD + 1, 4), record(OLD, 5), 1),
        (record(OLD, 4, effects=True), record(OLD + 1, 5), 1),
        (record(OLD, 4), record(LATER, 5), 1),
    ],
)
def test_what_is_remembered_is_not_restored(before: Checkpoint | None, checkpoint: Checkpoint, history: int) -> None:
    assert not rules.may_commit(before, checkpoint, history=history)


def test_a_record_below_the_floor_is_none() -> None:
    late = record(OLD, 9, fruitless=2, begun=9)
    made = sealed(late, OLD + 2, floor=OLD + 1)
    assert made == sealed(None, OLD + 2, floor=OLD + 1)
    assert rules.may_commit(late, record(restore_epoch(1), 3), history=1, floor=OLD + 1)
    with pytest.raises(LeaseLost):
        sealed(late, OLD + 2, floor=OLD + 1, history=1)


@pytest.mark.parametrize(("floor", "counts"), [(OLD - 1, True), (OLD, True), (OLD + 1, False), (OLD + 2, False)])
def test_no_commit_counts_below_the_floor(floor: int, counts: bool) -> None:
    assert rules.may_commit(record(OLD, 4), record(OLD, 5), floor=floor) == counts
    assert rules.may_commit(None, record(OLD, 5), history=1, floor=floor) == counts


@pytest.mark.parametrize(
    ("ordinal", "edition", "overtaken"),
    [(4, 9, True), (5, 2, True), (5, 3, False), (5, 4, False), (6, 0, False)],
)
def test_editions_order_what_has_the_same_ordinal(ordinal: int, edition: int, overtaken: bool) -> None:
    assert rules.is_late_commit(record(OLD, 5, 3), record(OLD, ordinal, edition)) == overtaken
    assert rules.may_commit(record(OLD, 5, 3), record(OLD, ordinal, edition)), "and is fine"


def test_what_a_seal_counted_stays_where_there_is_a_record() -> None:
    kept = rules.commit(record(OLD, 4, begun=2, fruitless=1, effects=True), record(OLD, 5, begun=9), 1.0)
    assert (kept.begun, kept.fruitless, kept.effects, kept.changed_at) == (2, 1, True, 1.0)
    made = rules.commit(None, record(OLD, 5, begun=3), 1.0)
    assert (made.begun, made.ordinal, made.changed_at) == (3, 5, 1.0)
