"""What stores decide in one step, as far as no store's contract shows it alone."""

from __future__ import annotations

import pytest
from msgspec import structs

from evenflow.errors import AlreadyDone, LeaseLost
from evenflow.model import Checkpoint, Position
from evenflow.stores import rules


def record(ordinal: int = 10, epoch: int = 3, *, effects: bool = False) -> Checkpoint:
    return Checkpoint(partition="0", epoch=epoch, position=Position(str(ordinal)), ordinal=ordinal, effects=effects)


# --- transactions
@pytest.mark.parametrize("ordinal", [8, 9, 10])
def test_a_transaction_begins_where_the_record_stands_between_what_is_committed_and_its_start(ordinal: int) -> None:
    found = record(ordinal)
    assert rules.begin_transaction(found, record(12), committed=8, start=10) is found


@pytest.mark.parametrize(
    ("found", "error", "what"),
    [
        (None, LeaseLost, "not of epoch 3"),
        (record(epoch=2), LeaseLost, "not of epoch 3"),
        (record(epoch=4), LeaseLost, "not of epoch 3"),
        (record(7), LeaseLost, "gone back from 8 events to 7"),
        (record(11), AlreadyDone, "1 events of this transaction are handled"),
    ],
)
def test_otherwise_a_transaction_does_not_begin(found: Checkpoint | None, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        rules.begin_transaction(found, record(12), committed=8, start=10)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True), (False, False)])
def test_that_there_are_effects_is_never_forgotten(before: bool, after: bool) -> None:
    written = rules.commit(record(effects=before), record(11, effects=after), at=1.0)
    assert written.effects is (before or after)


# --- epochs without progress
@pytest.mark.parametrize(
    ("ordinal", "options", "fruitless"),
    [(10, {"unplanned": True}, 3), (10, {"unplanned": False}, 2), (10, {}, 2), (11, {"unplanned": True}, 0)],
)
def test_unplanned_epochs_are_counted_until_there_is_progress(
    ordinal: int, options: dict[str, bool], fruitless: int
) -> None:
    before = structs.replace(record(ordinal), begun=10, fruitless=2)
    after = rules.seal(before, "0", 4, record(), 1.0, **options)
    assert after is not None
    assert (after.epoch, after.begun, after.fruitless) == (4, ordinal, fruitless)
