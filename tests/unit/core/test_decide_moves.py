"""What an instance gives away, and to whom; and what holds for every decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from evenflow.core.decide import decide, handoff, is_dead
from evenflow.model import EPOCH_HISTORY_BITS, GroupState, Owner, Wish
from tests.unit.core.scenes import SENT_S, lease, member, situation, view

if TYPE_CHECKING:
    from evenflow.core.decide import Situation

ME = Owner("me", 1)
ADA = Owner("ada", 1)
HISTORY_1 = 1 << EPOCH_HISTORY_BITS
ALL = {"0": 3, "1": 3, "2": 3, "3": 3}


def full_hands(**facts: Any) -> Situation:
    """I hold four partitions, and Ada has come."""
    return situation(
        *[lease(name, "me") for name in ALL], **{"others": [member("ada")], "held": ALL, "busy": set(ALL), **facts}
    )


def test_a_newcomer_is_handed_its_share() -> None:
    decision = decide(full_hands())
    assert list(decision.heirs.values()) == [ADA, ADA]
    assert set(decision.heirs) == {name for name, who in decision.plan.owners.items() if who == "ada"}
    assert (decision.adopt, decision.swaps) == ((), ())


def test_nothing_is_passed_to_somebody_who_was_never_seen_to_heartbeat() -> None:
    """A row alone proves nothing: its owner may have died long ago."""
    assert decide(full_hands(unmoved="ada")).heirs == {}


@pytest.mark.parametrize(("silent_s", "passed"), [(3.99, 2), (4.0, 0)])
def test_nothing_is_passed_to_somebody_who_has_missed_heartbeats(silent_s: float, passed: int) -> None:
    assert len(decide(full_hands(silent={"ada": silent_s})).heirs) == passed


def test_how_often_the_heir_heartbeats_is_its_own_setting() -> None:
    others = [member("ada", heartbeat_s=3.0, ttl_s=20.0)]
    assert len(decide(full_hands(silent={"ada": 5.9}, others=others)).heirs) == 2
    assert len(decide(full_hands(silent={"ada": 6.0}, others=others)).heirs) == 0


def test_nothing_is_passed_to_another_incarnation_than_the_one_that_was_seen() -> None:
    now = full_hands(others=[member("ada", incarnation=2)])
    assert decide(replace(now, sightings={ADA: now.sightings[Owner("ada", 2)]})).heirs == {}


def test_nothing_is_passed_to_an_owner_that_was_not_seen_to_heartbeat_yet() -> None:
    """It has a share, for nobody knows yet whether it lives; more it gets only once it was seen to."""
    leases = [*(lease(name, "me") for name in ALL), lease("4", "ada"), lease("5", "bo")]
    others = [member("ada"), member("bo")]
    staying, leaving = (
        decide(situation(*leases, me=me, others=others, held=ALL, busy=set(ALL), unmoved="ada"))
        for me in (member(), member(retiring=True))
    )
    assert staying.plan.shares == {"me": 2, "ada": 2, "bo": 2}
    assert list(staying.heirs.values()) == [Owner("bo", 1)]
    assert dict(leaving.heirs) == dict.fromkeys(ALL, Owner("bo", 1))


# --- leaving
def test_who_leaves_passes_all_on() -> None:
    decision = decide(full_hands(me=member(retiring=True)))
    assert dict(decision.heirs) == dict.fromkeys(ALL, ADA)


@pytest.mark.parametrize("facts", [{"unmoved": "ada"}, {"silent": {"ada": 5.0}}, {"others": []}])
def test_who_leaves_waits_for_nobody_and_releases(facts: dict[str, Any]) -> None:
    assert dict(decide(full_hands(me=member(retiring=True), **facts)).heirs) == dict.fromkeys(ALL)


@pytest.mark.parametrize("facts", [{"unmoved": "bo"}, {"silent": {"bo": 4.0}}])
def test_who_leaves_plans_for_those_alone_who_were_seen_alive(facts: dict[str, Any]) -> None:
    """It cannot wait until it is known whether Bo lives; what went to nobody would stand still."""
    others = [member("ada"), member("bo")]
    assert dict(decide(full_hands(me=member(retiring=True), others=others, **facts)).heirs) == dict.fromkeys(ALL, ADA)
    assert set(decide(full_hands(others=others, **facts)).heirs.values()) == {ADA}


def test_a_row_alone_gets_no_share_and_an_owner_of_whom_nothing_is_known_yet_keeps_its_own() -> None:
    """It may be the row of a process that was killed an hour ago: nothing waits for that."""
    others = [member("ada"), member("bo")]
    assert decide(full_hands(others=others, unmoved="bo")).plan.shares.keys() == {"me", "ada"}
    owner = situation(lease("0", "ada"), lease("1"), others=[member("ada")], unmoved="ada")
    assert decide(owner).plan.owners == {"0": "ada", "1": "me"}


def test_who_leaves_passes_on_what_it_does_not_hold_any_more() -> None:
    others = [member("ada", ttl_s=5.0)]
    now = situation(lease("0", "me", late=True), me=member(retiring=True), others=others, last_epochs={"0": 3})
    (change,) = decide(now).swaps
    assert (change.owner, change.epoch, change.ttl_s, change.late) == (ADA, 4, 5.0, True)
    assert change.still is None
    assert change.reason == "handed over: me leaves"


@pytest.mark.parametrize("last_epoch", [0, 3])
def test_who_leaves_adopts_nothing_any_more(last_epoch: int) -> None:
    now = situation(lease("0", "me"), me=member(retiring=True), last_epochs={"0": last_epoch})
    decision = decide(now)
    assert decision.adopt == ()
    (change,) = decision.swaps
    assert (change.owner, change.epoch, change.ttl_s) == (None, 4, 0.0)


def test_who_leaves_claims_nothing() -> None:
    now = situation(lease("0"), lease("1", "ada"), me=member(retiring=True), silent={"ada": 99.0}, partitions="0 1 2")
    decision = decide(now)
    assert decision.swaps == ()
    assert decision.waiting == 0


def test_who_leaves_gets_nothing() -> None:
    others = [member("ada", retiring=True), member("bo")]
    decision = decide(full_hands(others=others))
    assert set(decision.heirs.values()) == {Owner("bo", 1)}
    assert decision.plan.shares == {"me": 2, "bo": 2}


def test_who_was_asked_to_retire_gets_nothing_though_its_row_does_not_say_so_yet() -> None:
    now = full_hands(others=[member("ada"), member("bo")])
    asked = GroupState(retired={str(ADA): Wish("anna", "disk", 1.0)})
    decision = decide(replace(now, view=replace(now.view, state=asked)))
    assert set(decision.heirs.values()) == {Owner("bo", 1)}
    assert decision.plan.shares == {"me": 2, "bo": 2}


def test_what_somebody_who_leaves_still_has_is_waited_for() -> None:
    decision = decide(situation(lease("0", "ada"), others=[member("ada", retiring=True)]))
    assert decision.swaps == ()
    assert decision.waiting == 1


# --- the swap that passes it on
def test_a_handoff_is_one_swap_to_a_new_epoch() -> None:
    seen = view([lease("0", "me", late=True)], [member(), member("ada", ttl_s=5.0)], history=1)
    change = handoff(seen, seen.leases["0"], ADA, "handed over")
    assert (change.partition, change.revision, change.history) == ("0", 7, 1)
    assert (change.owner, change.epoch, change.ttl_s) == (ADA, HISTORY_1 + 1, 5.0)
    assert (change.reason, change.late, change.still) == ("handed over", True, None)


def test_a_release_has_no_owner_and_no_time_to_live() -> None:
    seen = view([lease("0", "me")], [member()])
    change = handoff(seen, seen.leases["0"], None, "leaving")
    assert (change.owner, change.epoch, change.ttl_s) == (None, 4, 0.0)


# --- what holds for every decision
NAMES = ["me", "ada", "bo"]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    others = [
        member(name, ttl_s=draw(st.sampled_from([6.0, 8.0])), retiring=draw(st.booleans()))
        for name in NAMES[1:]
        if draw(st.booleans())
    ]
    owners = st.sampled_from([None, "me", "me", "ada", "bo", "me#2", "ada#2"])
    history = draw(st.sampled_from([0, 0, 1]))
    leases = [
        lease(
            str(number),
            draw(owners),
            epoch=draw(st.integers(1, 4)),
            history=draw(st.integers(0, history)),
            ended=draw(st.sampled_from([False, False, False, True])),
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    mine = [one for one in leases if one.owner == ME and one.history == history and not one.ended]
    held = {one.partition: one.epoch for one in mine if draw(st.booleans())}
    silences = st.sampled_from([0.0, 3.0, 5.0, 7.0, 9.0])
    return situation(
        *leases,
        me=member(retiring=draw(st.booleans())),
        others=others,
        partitions="0 1 2 3 4 5 6 7",
        held=held,
        silent={name: draw(silences) for name in ("ada", "bo", "ada#2", "me#2")},
        unmoved=draw(st.sampled_from(["", "ada", "ada bo"])),
        history=history,
        busy=set(held) | {name for name in "01234567" if draw(st.sampled_from([False, False, True]))},
        last_epochs={name: draw(st.integers(0, 4)) for name in "01234567"} | held,
        history_since_s=SENT_S - draw(st.sampled_from([10.0, 60.0])),
    )


@given(situations())
def test_a_decision_never_contradicts_itself(now: Situation) -> None:
    decision = decide(now)
    adopted = [one.partition for one in decision.adopt]
    swapped = [change.partition for change in decision.swaps]
    assert len({*adopted, *swapped, *decision.heirs}) == len(adopted) + len(swapped) + len(decision.heirs)
    assert set(decision.heirs) <= set(now.held)
    assert not (set(now.busy) | set(now.held)) & {*adopted, *swapped}


@given(situations())
def test_every_swap_is_one_that_the_rules_allow(now: Situation) -> None:
    for change in decide(now).swaps:
        known = now.view.leases.get(change.partition)
        assert change.revision == (known.revision if known else 0)
        assert change.history == now.view.history
        assert change.epoch > max(known.epoch if known else 0, now.view.history << EPOCH_HISTORY_BITS)
        if known is None or known.history != now.view.history:
            assert now.view.history == 0 or now.heartbeat_sent_s - now.history_since_s >= now.longest_ttl_s
        elif known.owner is not None and known.owner != ME:
            assert is_dead(now, known.owner, known.ttl_s)
            assert change.still == (known.owner, now.sightings[known.owner].mark)
        if now.me.retiring:
            assert change.owner != ME


@given(situations())
def test_only_what_is_mine_under_a_new_epoch_is_adopted(now: Situation) -> None:
    for adopted in decide(now).adopt:
        assert adopted.owner == ME
        assert adopted.epoch > now.last_epochs.get(adopted.partition, 0)
        assert adopted.history == now.view.history
        assert not adopted.ended
        assert not now.me.retiring


@given(situations())
def test_heirs_are_alive(now: Situation) -> None:
    for heir in decide(now).heirs.values():
        if heir is None:
            assert now.me.retiring
        else:
            seen = now.sightings[heir]
            assert seen.moved
            assert now.heartbeat_sent_s - seen.since_s < 4.0
            assert now.view.has(heir)
            assert not now.view.members[heir.id].retiring


@given(st.lists(st.sampled_from([None, *NAMES]), max_size=8))
def test_all_who_see_the_same_plan_the_same(owners: list[str | None]) -> None:
    leases = [lease(str(number), who) for number, who in enumerate(owners)]
    everybody = [member(name) for name in NAMES]
    plans = []
    for me in everybody:
        others = [one for one in everybody if one is not me]
        plans.append(decide(situation(*leases, me=me, others=others)).plan)
    assert plans[0] == plans[1] == plans[2]


# --- by load
LOADS = {"0": 0.4, "1": 0.3, "2": 0.1, "3": 0.1}


def heirs_by(my_load: dict[str, float] | None, others_load: dict[str, float] | None) -> dict[str, Owner | None]:
    leases = [lease(name, "me" if name in "01" else "ada") for name in LOADS]
    now = situation(
        *leases,
        me=member(load=my_load),
        others=[member("ada", load=others_load)],
        held=dict.fromkeys("01", 3),
        loads=LOADS if my_load is not None else None,
    )
    return dict(decide(now).heirs)


def test_with_balance_by_load_the_load_is_evened_out() -> None:
    assert heirs_by({}, {}) == {"1": Owner("ada", 1)}


def test_as_long_as_one_member_balances_by_count_all_do() -> None:
    """Two kinds of plans would pass a partition to and fro."""
    assert heirs_by({}, None) == {}
    assert heirs_by(None, {}) == {}
