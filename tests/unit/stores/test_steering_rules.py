"""What a store decides on operator requests."""

from __future__ import annotations

import pytest
from msgspec import structs

from evenflow.errors import Misconfigured
from evenflow.model import EVERYTHING, Action, Group, GroupState, Owner, Steering, Wish
from evenflow.stores import rules

ANNA, BERT = Wish("anna", "disk", 1.0), Wish("bert", "too", 2.0)


def state(*paused: str, retired: dict[str, Wish] | None = None) -> GroupState:
    return GroupState("made", dict.fromkeys(paused, ANNA), retired or {})


@pytest.mark.parametrize(
    ("before", "steering", "after"),
    [
        ((), Steering(pause=("0", "1")), {"0": BERT, "1": BERT}),
        (("0",), Steering(pause=("0", "1")), {"0": ANNA, "1": BERT}),
        (("0",), Steering(pause=(EVERYTHING,)), {"0": ANNA, EVERYTHING: BERT}),
        ((EVERYTHING,), Steering(pause=("0",)), {"0": BERT, EVERYTHING: ANNA}),
        (("0", "1"), Steering(resume=("0",)), {"1": ANNA}),
        (("0",), Steering(resume=("7",)), {"0": ANNA}),
        (("0", "1", EVERYTHING), Steering(resume=(EVERYTHING,)), {}),
        (("0", EVERYTHING), Steering(resume=("0", EVERYTHING)), {}),
        (("0",), Steering(resume=("0",), pause=("0",)), {"0": BERT}),
        ((EVERYTHING,), Steering(), {EVERYTHING: ANNA}),
    ],
)
def test_pauses(before: tuple[str, ...], steering: Steering, after: dict[str, Wish]) -> None:
    given = state(*before)
    kept = structs.replace(given, pauses=dict(given.pauses))
    assert rules.steer(given, steering, BERT) == GroupState("made", after)
    assert given == kept, "a state is never changed in place"


def test_one_partition_of_a_paused_group_cannot_be_resumed_alone() -> None:
    expected = r"partition 0 alone: the whole group is paused \(by anna: disk\)\. Resume the group"
    with pytest.raises(Misconfigured, match=expected):
        rules.steer(state(EVERYTHING, "0"), Steering(resume=("0",)), BERT)


def test_who_was_asked_to_retire_is_asked_once() -> None:
    owner = Owner("one", 3)
    once = rules.steer(state(), Steering(retire=(owner,)), ANNA)
    assert once.retired == {"one#3": ANNA}
    assert rules.steer(once, Steering(retire=(owner, Owner("two", 4))), BERT).retired == {
        "one#3": ANNA,
        "two#4": BERT,
    }


def test_who_is_gone_need_not_retire() -> None:
    given = state("0", retired={"one#3": ANNA, "two#4": BERT})
    assert rules.prune_retired(given, {"one#3", "two#4", "three#5"}) is given
    assert rules.prune_retired(given, {"two#4"}) == state("0", retired={"two#4": BERT})


def test_redrives_count_up() -> None:
    once = rules.steer(state(), Steering(redrive=("0",)), ANNA)
    assert rules.steer(once, Steering(redrive=("0", "1")), ANNA).redrives == {"0": 2, "1": 1}


def test_words_are_cut_and_the_stores_time_counts() -> None:
    kept = rules.stamp_action(Action(kind="pause", by="b" * 999, why="y" * 999, what="0", at=77.0), 5.0)
    assert (len(kept.by), len(kept.why), kept.what, kept.at) == (256, 500, "0", 5.0)
    assert kept.why.endswith("y...")
    assert rules.request_of(kept) == Wish(kept.by, kept.why, 5.0)


def test_a_group_that_is_not_there_is_named() -> None:
    assert "local/homes/alerts" in str(rules.no_such_group(Group("local", "homes", "alerts")))
