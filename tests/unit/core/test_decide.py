"""What an instance does after a heartbeat, rule by rule. (`test_decide_moves` has what it gives away.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from evenflow.core.decide import APPEARED, RECLAIMED, Situation, decide, handoff, is_dead
from evenflow.model import EPOCH_HISTORY_BITS, Owner
from tests.unit.core.scenes import LONGEST_TTL_S, SENT_S, lease, member, situation

if TYPE_CHECKING:
    from evenflow.core.decide import Decision
    from evenflow.model import Change, Lease

ME = Owner("me", 1)
ADA = Owner("ada", 1)
HISTORY_1 = 1 << EPOCH_HISTORY_BITS


def does_nothing(decision: Decision) -> bool:
    return (decision.adopt, decision.swaps, dict(decision.heirs)) == ((), (), {})


def only(decision: Decision) -> Change:
    assert decision.adopt == ()
    assert dict(decision.heirs) == {}
    (change,) = decision.swaps
    return change


# --- what is passed to me
def test_a_lease_that_was_passed_to_me_is_adopted() -> None:
    passed = lease("0", "me")
    decision = decide(situation(passed))
    assert decision.adopt == (passed,)
    assert decision.swaps == ()


def test_the_very_first_epoch_is_adopted_too() -> None:
    """My claim took effect, and nobody told me."""
    assert len(decide(situation(lease("0", "me", epoch=1))).adopt) == 1


@pytest.mark.parametrize(("last_epoch", "adopted"), [(2, True), (3, False), (4, False)])
def test_only_a_new_epoch_is_adopted(last_epoch: int, adopted: bool) -> None:
    decision = decide(situation(lease("0", "me", epoch=3), last_epochs={"0": last_epoch}))
    assert bool(decision.adopt) is adopted
    assert bool(decision.swaps) is not adopted


def test_who_stopped_takes_its_own_lease_again_under_a_new_epoch() -> None:
    change = only(decide(situation(lease("0", "me", epoch=3, late=True), last_epochs={"0": 3})))
    assert (change.owner, change.epoch, change.revision, change.ttl_s) == (ME, 4, 7, 8.0)
    assert (change.still, change.late) == (None, True)
    assert change.reason.startswith("taken again")


def test_what_an_earlier_start_of_mine_had_is_not_adopted() -> None:
    now = situation(lease("0", "me#1"), me=member(incarnation=2), silent={"me#1": 7.9})
    decision = decide(now)
    assert does_nothing(decision)
    assert decision.plan.owners == {"0": "me"}, "it stays mine in the plan: nobody else need have it"
    assert decision.waiting == 1


def test_what_an_earlier_start_of_mine_had_is_taken_over_as_from_anybody() -> None:
    change = only(decide(situation(lease("0", "me#1"), me=member(incarnation=2), silent={"me#1": 8.0})))
    assert (change.owner, change.still) == (Owner("me", 2), (ME, None))


@pytest.mark.parametrize("who", ["me", None, "ada"])
def test_what_is_busy_is_not_touched(who: str | None) -> None:
    """A swap of mine is on its way, or a call of an earlier hold still runs."""
    decision = decide(situation(lease("0", who), silent={"ada": 100.0}, busy={"0"}))
    assert does_nothing(decision)
    assert decision.waiting == 1


def test_what_is_busy_and_planned_for_another_is_not_waited_for() -> None:
    others = [member("ada")]
    decision = decide(situation(lease("0", "me"), lease("1", "ada"), others=others, busy={"0", "1"}))
    assert decision.waiting == 1


def test_what_i_hold_and_keep_needs_nothing() -> None:
    decision = decide(situation(lease("0", "me"), held={"0": 3}, busy={"0"}, last_epochs={"0": 3}))
    assert does_nothing(decision)
    assert decision.waiting == 0


def test_what_was_mine_before_a_restart_stays_mine_in_the_plan() -> None:
    """To anybody else it would have to move; Ada comes before me where all is equal."""
    now = situation(lease("0", "me#1"), me=member(incarnation=2), others=[member("ada")], silent={"me#1": 9.0})
    assert decide(now).plan.owners == {"0": "me"}


def test_nobody_takes_itself_for_dead() -> None:
    now = situation(lease("0", "me"), others=[member("ada")], held={"0": 3}, silent={"me": 100.0})
    assert decide(now).plan.owners == {"0": "me"}
    assert does_nothing(decide(now))


# --- what is free
def test_what_nobody_owns_is_claimed() -> None:
    change = only(decide(situation(lease("0", None, epoch=3, revision=7))))
    assert (change.partition, change.owner, change.epoch, change.revision) == ("0", ME, 4, 7)
    assert (change.ttl_s, change.still, change.late, change.ended) == (8.0, None, False, False)
    assert change.reason == "claimed: nobody owned it"


def test_a_claim_carries_my_own_time_to_live() -> None:
    assert only(decide(situation(lease("0"), me=member(ttl_s=5.0)))).ttl_s == 5.0


def test_what_is_planned_for_another_is_left_to_it() -> None:
    decision = decide(situation(*[lease(name) for name in "0123"], others=[member("ada")]))
    mine = [name for name, who in decision.plan.owners.items() if who == "me"]
    assert len(mine) == 2
    assert [change.partition for change in decision.swaps] == mine


def test_what_has_ended_is_nobodys() -> None:
    decision = decide(situation(lease("0", None, ended=True), lease("1", "me", ended=True), partitions="0 1"))
    assert does_nothing(decision)
    assert decision.plan.owners == {}


def test_a_lease_without_a_partition_in_the_source_is_kept_going() -> None:
    """An absence removes nothing."""
    assert only(decide(situation(lease("9"), partitions=""))).partition == "9"


# --- the dead
@pytest.mark.parametrize(("silent_s", "taken"), [(7.999, False), (8.0, True)])
def test_an_owner_is_dead_after_its_whole_time_to_live(silent_s: float, taken: bool) -> None:
    now = situation(lease("0", "ada"), others=[member("ada")], silent={"ada": silent_s})
    assert is_dead(now, ADA, 8.0) is taken
    decision = decide(now)
    assert bool(decision.swaps) is taken
    assert decision.waiting == 0


def test_a_takeover_names_the_mark_that_stood_still() -> None:
    change = only(decide(situation(lease("0", "ada"), others=[member("ada", mark=41)], silent={"ada": 9.26})))
    assert (change.owner, change.epoch, change.still) == (ME, 4, (ADA, 41))
    assert change.reason == "taken over: no heartbeat of ada for 9.3 s"


def test_a_takeover_from_somebody_without_a_row_says_so() -> None:
    assert only(decide(situation(lease("0", "ada"), silent={"ada": 8.0}))).still == (ADA, None)


def test_the_lease_knows_how_long_its_owner_may_be_silent() -> None:
    """A restart with other settings has overwritten the member's row; the old process may still run."""
    others = [member("ada", ttl_s=6.0)]
    decision = decide(situation(lease("0", "ada", ttl_s=10.0), others=others, silent={"ada": 7.0}))
    assert does_nothing(decision)
    assert (decision.waiting, decision.wake_at_s) == (1, SENT_S + 3.0)
    assert only(decide(situation(lease("0", "ada", ttl_s=6.5), others=others, silent={"ada": 7.0}))).still == (ADA, 5)


def test_a_member_counts_until_its_own_time_to_live_has_passed() -> None:
    """Its lease has run out, but it may be back: it still has a seat."""
    others = [member("ada", ttl_s=10.0)]
    decision = decide(
        situation(lease("0", "ada", ttl_s=6.0), lease("1", "me"), others=others, silent={"ada": 7.0}, held={"1": 3})
    )
    assert decision.plan.shares == {"ada": 1, "me": 1}


def test_a_lease_that_has_run_out_is_free_though_its_owner_may_be_back() -> None:
    """I come before Bo where all is equal."""
    now = situation(lease("0", "bo", ttl_s=6.0), others=[member("bo", ttl_s=10.0)], silent={"bo": 7.0})
    assert only(decide(now)).still == (Owner("bo", 1), 5)


def test_an_owner_that_nobody_has_watched_yet_is_not_dead() -> None:
    decision = decide(replace(situation(lease("0", "ada")), sightings={}))
    assert does_nothing(decision)
    assert decision.wake_at_s == SENT_S + 8.0


def test_the_dead_get_no_share() -> None:
    dead = situation(lease("0"), lease("1"), others=[member("ada")], silent={"ada": 8.0})
    assert decide(dead).plan.shares == {"me": 2}


def test_i_have_a_seat_whatever_became_of_my_row() -> None:
    now = situation(lease("0"), me=member(weight=2.0, max_partitions=3))
    assert decide(now).plan.shares == {"me": 1}
    assert decide(replace(now, view=replace(now.view, members={}))).plan.shares == {"me": 1}


def test_weights_and_caps_reach_the_plan() -> None:
    leases = [lease(str(number)) for number in range(6)]
    heavy = situation(*leases, me=member(weight=2.0), others=[member("ada")])
    assert decide(heavy).plan.shares == {"me": 4, "ada": 2}
    capped = situation(*leases, others=[member("ada", max_partitions=1)])
    assert decide(capped).plan.shares == {"me": 5, "ada": 1}
    both = situation(*leases, me=member(max_partitions=2), others=[member("ada", weight=9.0, max_partitions=1)])
    assert decide(both).plan.shares == {"me": 2, "ada": 1}


# --- when to look again
def test_it_wakes_at_the_next_expiry() -> None:
    others = [member("ada"), member("bo")]
    now = situation(lease("0", "ada"), lease("1", "bo"), others=others, silent={"ada": 3.0, "bo": 5.0})
    assert decide(now).wake_at_s == SENT_S + 3.0


def test_it_wakes_for_an_expiry_that_is_near() -> None:
    assert decide(situation(lease("0", "ada"), others=[member("ada")], silent={"ada": 7.75})).wake_at_s == SENT_S + 0.25


def test_it_waits_for_nothing_of_its_own_and_nothing_that_is_free() -> None:
    assert decide(situation(lease("0", "me"), lease("1"), held={"0": 3})).wake_at_s is None


def test_what_has_run_out_is_not_waited_for() -> None:
    others = [member("ada"), member("bo")]
    now = situation(lease("0", "ada"), lease("1", "bo"), others=others, silent={"ada": 9.0, "bo": 1.0})
    assert decide(now).wake_at_s == SENT_S + 7.0


# --- history
def test_epochs_carry_the_history() -> None:
    change = only(decide(situation(lease("0", None, epoch=3, history=1), history=1)))
    assert (change.epoch, change.history) == (HISTORY_1 + 1, 1)
    grown = lease("0", None, epoch=HISTORY_1 + 9, history=1)
    assert only(decide(situation(grown, history=1))).epoch == HISTORY_1 + 10


@pytest.mark.parametrize("who", [None, "ada", "me"])
def test_a_lease_of_an_older_history_waits_for_the_longest_time_to_live(who: str | None) -> None:
    """Whoever the old lease names, somebody else may have been given it by a write that is lost."""
    old = lease("0", who, history=0)
    early = situation(old, history=1, silent={"ada": 59.0}, history_since_s=SENT_S - LONGEST_TTL_S + 0.5)
    decision = decide(early)
    assert does_nothing(decision)
    assert decision.waiting == 1
    change = only(decide(situation(old, history=1, history_since_s=SENT_S - LONGEST_TTL_S, silent={"ada": 59.0})))
    assert (change.owner, change.epoch, change.still) == (ME, HISTORY_1 + 1, None)
    assert change.reason.startswith("claimed")


def test_a_lease_of_this_history_waits_for_nothing_but_its_owner() -> None:
    free = situation(lease("0", None, history=1), history=1, history_since_s=SENT_S - 1.0)
    assert only(decide(free)).owner == ME
    silent = situation(lease("0", "ada", history=1), history=1, history_since_s=SENT_S - 1.0, silent={"ada": 8.0})
    assert only(decide(silent)).still == (ADA, None)


@pytest.mark.parametrize("revision", [1, 2])
def test_the_very_first_lease_can_be_old_too(revision: int) -> None:
    assert does_nothing(decide(situation(lease("0", "ada", revision=revision), history=1, silent={"ada": 59.0})))


def test_it_wakes_when_the_old_history_is_over() -> None:
    now = situation(lease("0", None, history=0), history=1, history_since_s=SENT_S - 20.0)
    assert decide(now).wake_at_s == SENT_S + 40.0


def test_a_missing_lease_in_a_store_that_lost_writes_waits_too() -> None:
    now = situation(partitions="0", history=1, history_since_s=SENT_S - 59.0)
    decision = decide(now)
    assert does_nothing(decision)
    assert decision.waiting == 1
    change = only(decide(situation(partitions="0", history=1, history_since_s=SENT_S - 60.0)))
    assert (change.epoch, change.revision, change.history) == (HISTORY_1 + 1, 0, 1)


# --- the first leases
def test_whoever_comes_first_makes_all_leases() -> None:
    decision = decide(situation(partitions="0 1 2 3", others=[member("ada")]))
    made = {change.partition: change for change in decision.swaps}
    assert sorted(made) == ["0", "1", "2", "3"]
    assert {change.owner for change in decision.swaps} == {ME, None}
    assert all((change.revision, change.epoch, change.late) == (0, 1, False) for change in decision.swaps)
    unowned = [change for change in decision.swaps if change.owner is None]
    assert [change.reason for change in unowned] == ["appeared", "appeared"]
    assert [change.partition for change in unowned] == [
        name for name, who in decision.plan.owners.items() if who == "ada"
    ]


def test_who_may_not_have_all_makes_the_others_too() -> None:
    decision = decide(situation(partitions="0 1 2", me=member(max_partitions=1)))
    assert sorted(str(change.owner) for change in decision.swaps) == ["None", "None", "me#1"]


def test_nobody_makes_leases_for_others_while_an_old_history_may_still_act() -> None:
    now = situation(partitions="0 1", others=[member("ada")], history=1, history_since_s=SENT_S - 59.0)
    assert does_nothing(decide(now))


def test_a_partition_that_appears_later_is_late() -> None:
    change = only(decide(situation(lease("0", "me"), partitions="0 1", held={"0": 3})))
    assert (change.partition, change.late, change.revision, change.epoch) == ("1", True, 0, 1)


def test_once_the_group_has_begun_each_makes_its_own() -> None:
    leases = [lease("0", "me"), lease("1", "ada")]
    now = situation(*leases, partitions="0 1 2 3", others=[member("ada")], held={"0": 3})
    decision = decide(now)
    mine = [name for name, who in decision.plan.owners.items() if who == "me" and name != "0"]
    assert len(mine) == 1
    assert [change.partition for change in decision.swaps] == mine


def test_late_stays_late() -> None:
    assert only(decide(situation(lease("0", None, late=True)))).late


# --- what nobody may have
FULL = member(max_partitions=1)


def test_the_start_of_what_nobody_has_ever_had_is_to_be_written_down() -> None:
    waiting = lease("1", None, epoch=1, reason=APPEARED)
    assert decide(situation(lease("0", "me"), waiting, me=FULL, held={"0": 3})).unplaced == (waiting,)
    assert decide(situation(waiting, paused="1")).unplaced == (waiting,)


@pytest.mark.parametrize(
    "other",
    [
        lease("1", None, epoch=2, reason="released: me leaves"),
        lease("1", None, epoch=1, reason=APPEARED, late=True),
        lease("1", "ada", epoch=1, reason=APPEARED),
    ],
    ids=["somebody had it", "it is late", "somebody has it"],
)
def test_the_start_of_others_is_not(other: Lease) -> None:
    assert decide(situation(lease("0", "me"), other, me=FULL, others=[member("ada")], held={"0": 3})).unplaced == ()


def test_nor_is_it_where_somebody_is_to_have_it() -> None:
    assert decide(situation(lease("1", None, epoch=1, reason=APPEARED))).unplaced == ()


def test_epochs_go_on_above_those_of_a_deleted_group() -> None:
    now = situation(partitions="0")
    now = replace(now, view=replace(now.view, epoch_floor=41))
    (claim,) = decide(now).swaps
    assert claim.epoch == 42
    assert handoff(now.view, lease("0", "me", 50), None, "released").epoch == 51
    assert handoff(now.view, lease("0", "me", 3), None, "released").epoch == 42


# --- after lost writes
def test_what_was_held_when_the_store_lost_writes_is_claimed_at_once() -> None:
    """Whoever the plan wants it to have in the end."""
    for known in ((), (lease("0", "ada", history=0),)):
        now = situation(*known, partitions="0 1", history=1, reclaims={"0"}, others=[member("ada")])
        change = only(decide(now))
        assert (change.partition, change.owner, change.epoch, change.late) == ("0", ME, HISTORY_1 + 1, False)
        assert change.reason == RECLAIMED


def test_once_it_is_claimed_it_is_no_longer_its_own() -> None:
    now = situation(lease("0", "ada", history=1), history=1, reclaims={"0"}, others=[member("ada")])
    assert does_nothing(decide(now))


def test_nobody_claims_at_once_who_leaves_or_still_runs_a_call_or_may_not_have_it() -> None:
    facts: dict[str, Any] = {"partitions": "0", "history": 1, "reclaims": {"0"}}
    assert does_nothing(decide(situation(**facts, me=member(retiring=True))))
    assert does_nothing(decide(situation(**facts, busy={"0"})))
    assert does_nothing(decide(situation(**facts, paused="0")))


def in_a_later_history(now: Situation, began: int) -> Situation:
    return replace(now, view=replace(now.view, began=began))


def test_a_group_that_began_after_the_loss_waits_for_nothing() -> None:
    now = situation(partitions="0 1", history=2)
    assert does_nothing(decide(in_a_later_history(now, 1)))
    assert [change.partition for change in decide(in_a_later_history(now, 2)).swaps] == ["0", "1"]


def test_what_is_missing_after_a_loss_is_not_late() -> None:
    now = situation(lease("0", "me", history=1), partitions="0 1", held={"0": 3}, history=1, history_since_s=0.0)
    assert not only(decide(in_a_later_history(replace(now, history_since_s=SENT_S - 119.0), 0))).late
    assert only(decide(in_a_later_history(replace(now, history_since_s=SENT_S - 120.0), 0))).late, "it is new"
    assert only(decide(in_a_later_history(now, 1))).late


def test_after_a_loss_nobody_writes_down_the_end_as_the_start_of_the_group() -> None:
    unowned = lease("0", None, 1, history=1, reason=APPEARED)
    now = situation(unowned, history=1, me=member(max_partitions=1), partitions="0", paused="0")
    assert decide(in_a_later_history(now, 0)).unplaced == ()
    assert decide(in_a_later_history(now, 1)).unplaced == (unowned,)
