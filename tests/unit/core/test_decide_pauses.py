"""What is paused belongs to nobody: who has it lets go, nobody claims it, and no plan counts it."""

from __future__ import annotations

from typing import Any

import pytest

from evenflow.core.decide import decide, paused_by
from evenflow.model import Wish
from tests.unit.core.scenes import lease, member, situation

ADA = member("ada")


def test_what_i_hold_is_drained_and_released() -> None:
    made = decide(situation(lease("0", "me"), lease("1", "me"), held={"0": 3, "1": 3}, paused="0"))
    assert made.heirs == {"0": None}
    assert (made.swaps, made.adopt) == ((), ())
    assert set(made.paused) == {"0"}


@pytest.mark.parametrize("paused", ["all", "0 1", "0 1 all"])
def test_nobody_claims_it_and_no_plan_counts_it(paused: str) -> None:
    made = decide(situation(lease("0"), lease("1"), paused=paused))
    assert (made.swaps, made.plan.owners, made.waiting) == ((), {}, 0)
    assert set(made.paused) == {"0", "1"}


def test_shares_are_even_over_what_is_left() -> None:
    """Ada has two that are not paused, and I have none: one of them is mine, whatever she had before."""
    leases = [lease(name, "ada") for name in "0123"]
    made = decide(situation(*leases, me=ADA, others=[member("me")], held=dict.fromkeys("0123", 3), paused="0 1"))
    assert made.plan.shares == {"ada": 1, "me": 1}
    assert sorted(partition for partition, heir in made.heirs.items() if heir is None) == ["0", "1"]
    assert len(made.heirs) == 3


def test_it_is_claimed_like_an_orphan_once_it_is_resumed() -> None:
    (claim,) = decide(situation(lease("0", reason="released: paused by anna: disk"))).swaps
    assert (claim.owner, claim.epoch, claim.reason) == (member().owner, 4, "claimed: nobody owned it")


@pytest.mark.parametrize("last_epochs", [{}, {"0": 3}])
def test_what_is_mine_but_not_held_is_let_go(last_epochs: dict[str, int]) -> None:
    """It was passed to me, or I had stopped: neither adopted nor taken again."""
    made = decide(situation(lease("0", "me"), paused="0", last_epochs=last_epochs))
    assert made.adopt == ()
    (release,) = made.swaps
    assert (release.owner, release.epoch, release.reason) == (None, 4, "released: paused by anna: disk")


@pytest.mark.parametrize("facts", [{"busy": ("0",)}, {"history": 1}])
def test_what_is_in_doubt_is_left_alone(facts: dict[str, Any]) -> None:
    """A swap is under way, or the lease was written before the store lost writes."""
    assert decide(situation(lease("0", "me"), paused="0", **facts)).swaps == ()


def test_the_answer_to_a_swap_is_no_heartbeat() -> None:
    assert decide(situation(lease("0", "me", revision=100), paused="0")).swaps == ()


def test_a_silent_owner_keeps_what_is_paused() -> None:
    made = decide(situation(lease("0", "ada"), others=[ADA], silent={"ada": 99.0}, paused="0"))
    assert made.swaps == ()


def test_leases_are_made_although_all_is_paused() -> None:
    """Or the partitions would seem to have appeared late, when the pause ends."""
    made = decide(situation(partitions="0 1", paused="all"))
    assert [(swap.partition, swap.owner, swap.late) for swap in made.swaps] == [("0", None, False), ("1", None, False)]
    assert decide(situation(lease("0"), partitions="0 1", paused="all")).swaps == ()


def test_who_leaves_lets_go_too() -> None:
    made = decide(situation(lease("0", "me"), me=member(retiring=True), others=[ADA], held={"0": 3}, paused="0"))
    assert made.heirs == {"0": None}


def test_what_has_ended_is_not_paused() -> None:
    assert decide(situation(lease("0", ended=True), paused="all")).paused == {}


def test_who_paused_it_and_why_is_told() -> None:
    assert paused_by(Wish("anna", "disk")) == "paused by anna: disk"
    assert paused_by(Wish()) == "paused by somebody"
