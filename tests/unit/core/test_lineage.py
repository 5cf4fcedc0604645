"""Whom a child waits for: parents, as the source lists them and as leases tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from evenflow.core.decide import decide
from evenflow.core.lineage import ended_into, left_at, open_ones, parents_of, unended
from evenflow.model import BEGINNING, Checkpoint, Lease, Partition, Position
from tests.unit.core.scenes import LONGEST_TTL_S, lease, member, situation

if TYPE_CHECKING:
    from evenflow.core.decide import Decision

PARENTS = {"left": ("0",), "right": ("0",), "merged": ("1", "2")}


def test_a_parent_that_is_not_listed_any_more_is_waited_for_only_where_parents_vanish() -> None:
    known = [Partition("0"), Partition("left", ("0",)), Partition("leaf", ("gone", "left"))]
    assert parents_of(known, {"0", "left", "leaf"}, vanish=False) == {"left": ("0",), "leaf": ("left",)}
    assert parents_of(known, {"left", "leaf"}, vanish=False) == {"leaf": ("left",)}
    assert parents_of(known, {"leaf"}, vanish=True) == {"left": ("0",), "leaf": ("gone", "left")}


def test_a_child_waits_for_each_parent_that_anybody_knows_and_that_has_not_ended() -> None:
    leases = {one.partition: one for one in (lease("1", ended=True), lease("2", "me"))}
    there = open_ones(["0", "left", "right", "merged"], leases)
    assert there == {"0", "left", "right", "merged", "2"}
    assert unended(PARENTS, there) == {"left": ("0",), "right": ("0",), "merged": ("2",)}
    assert unended(PARENTS, there - {"0", "2"}) == {}
    assert unended(PARENTS, {"0"}) == {}


@pytest.mark.parametrize(
    ("children", "told"),
    [("", "ended"), ("4 5", "ended: split into 4, 5"), ("6", "ended: merged into 6")],
)
def test_the_reason_of_an_end_names_the_children(children: str, told: str) -> None:
    assert ended_into([Partition(name) for name in children.split()]) == told


# --- what is decided
def decided(*leases: Any, parents: dict[str, tuple[str, ...]] | None = None, **facts: Any) -> Decision:
    return decide(situation(*leases, parents=PARENTS if parents is None else parents, **facts))


def claimed(decision: Decision) -> set[str]:
    return {change.partition for change in decision.swaps if change.owner is not None}


def test_nobody_gets_a_child_before_its_parent_has_ended() -> None:
    decision = decided(lease("0", "me"), partitions="0 left right", held={"0": 3})
    assert decision.unborn == {"left": ("0",), "right": ("0",)}
    assert set(decision.plan.owners) == {"0"}
    assert decision.swaps == ()


def test_children_are_claimed_once_their_parent_has_ended_and_it_is_in_no_plan_any_more() -> None:
    decision = decided(lease("0", ended=True), partitions="0 left right")
    assert claimed(decision) == {"left", "right"}
    assert all(change.late for change in decision.swaps)
    assert set(decision.plan.owners) == {"left", "right"}


def test_a_merged_child_waits_for_the_last_of_its_parents() -> None:
    decision = decided(lease("1", ended=True), lease("2", "me"), partitions="1 2 merged", held={"2": 3})
    assert decision.unborn == {"merged": ("2",)}
    assert claimed(decided(lease("1", ended=True), lease("2", ended=True), partitions="1 2 merged")) == {"merged"}


def test_parents_that_nobody_knows_keep_nobody_waiting() -> None:
    assert claimed(decided(lease("9", "me"), held={"9": 3}, partitions="9 left")) == {"left"}


def test_whoever_comes_first_makes_leases_for_the_unborn_too() -> None:
    """So that they are not taken for late ones: where they begin is what the group's start says."""
    decision = decided(partitions="0 left right")
    assert {change.partition: (change.owner is not None, change.late) for change in decision.swaps} == {
        "0": (True, False),
        "left": (False, False),
        "right": (False, False),
    }


def test_shares_count_neither_the_ended_nor_the_unborn() -> None:
    ended = [lease(name, ended=True) for name in "abcdef"]
    mine = [lease(name, "me") for name in ("0", "1")]
    decision = decided(
        *ended, *mine, others=[member("you")], partitions="a b c d e f 0 1 left right", held={"0": 3, "1": 3}
    )
    assert decision.plan.shares == {"me": 1, "you": 1}


def test_a_child_that_somebody_has_stays_there() -> None:
    """Its parent came back into the listing, say. To stop it would mend nothing."""
    decision = decided(
        lease("left", "you"), lease("0", "me"), others=[member("you")], partitions="0 left", held={"0": 3}
    )
    assert decision.unborn == {}
    assert decision.plan.owners["left"] == "you"


def test_after_lost_history_a_child_waits_again_for_its_parent_to_end() -> None:
    """The end was lost, too: the parent is claimed and ends anew, and then the child is claimed."""
    old = [lease("0", "gone"), lease("left", "me", history=0)]
    facts: dict[str, Any] = {"history": 1, "partitions": "0 left", "history_since_s": 1000.0 - LONGEST_TTL_S}
    decision = decided(*old, **facts)
    assert decision.unborn == {"left": ("0",)}
    assert claimed(decision) == {"0"}
    assert [change.partition for change in decision.swaps if change.owner is None] == ["left"], "so that it may leave"


def test_what_a_lease_alone_names_waits_until_the_source_was_asked() -> None:
    decision = decided(lease("left"), strangers=["left"])
    assert claimed(decision) == set()
    assert decision.waiting == 1
    passed = decided(lease("left", "me", epoch=4), strangers=["left"], parents={})
    assert passed.adopt == ()
    assert decided(lease("left", "me", epoch=4), parents={}).adopt != ()


def test_a_pause_goes_before_waiting() -> None:
    decision = decided(lease("0", "me"), partitions="0 left", held={"0": 3}, paused="all")
    assert set(decision.paused) == {"0", "left"}
    assert decision.unborn == {}


def test_nobody_waits_for_the_expiry_of_what_has_ended() -> None:
    decision = decided(lease("0", ended=True, history=0), history=1, partitions="0")
    assert decision.wake_at_s is None


# --- where a parent was left
@pytest.mark.parametrize(
    ("late", "ordinal", "told"),
    [(True, 0, BEGINNING), (True, 3, Position("9", 9)), (False, 0, Position("9", 9))],
    ids=["never got anywhere", "somebody handled some, or sought", "it began with the group"],
)
def test_a_late_parent_that_never_got_anywhere_says_nothing(late: bool, ordinal: int, told: Position) -> None:
    """It may have been gone before anybody saw whom it follows, and have begun at its beginning: those know better."""
    parent = Lease(partition="7", epoch=2, late=late, ended=True)
    record = Checkpoint(partition="7", epoch=2, position=Position("9", 9), ordinal=ordinal)
    assert left_at(parent, record) == told
