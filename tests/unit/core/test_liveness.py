"""Who is alive: what one instance saw of another's heartbeats, on its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.core.liveness import UNSEEN, Sighting, silence_s, watch
from evenflow.core.view import merge
from evenflow.model import Cursor, Ledger, Owner
from tests.unit.core.scenes import lease, member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.core.view import View
    from evenflow.model import Lease, Member

ADA = Owner("ada", 1)


def whole(*members: Member, leases: tuple[Lease, ...] = ()) -> Ledger:
    return Ledger(cursor=Cursor("store", 0, 1), me=None, whole=True, members=members, leases=leases)


def still(*members: Member) -> Ledger:
    """A ledger of what changed: these stood still since the one before, all others have moved."""
    return Ledger(cursor=Cursor("store", 0, 1), me=None, whole=False, roster=False, members=members)


class Watcher:
    """One instance that takes in ledger after ledger."""

    def __init__(self) -> None:
        self.view: View | None = None
        self.sightings: Mapping[Owner, Sighting] | None = None

    def sees(self, ledger: Ledger, now_s: float) -> Sighting | None:
        self.view = merge(self.view, ledger)
        self.sightings = watch(self.sightings, ledger, self.view, now_s)
        return self.sightings.get(ADA)

    def is_interrupted(self) -> None:
        self.sightings = None


# --- one ledger after the other
def test_the_first_sight_proves_nothing() -> None:
    assert Watcher().sees(whole(member("ada", mark=5)), 10.0) == Sighting(5, 10.0, False)


def test_a_mark_that_stands_still_is_as_old_as_its_first_sight() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    assert watcher.sees(whole(member("ada", mark=5)), 12.0) == Sighting(5, 10.0, False)
    assert watcher.sees(still(member("ada", mark=5)), 14.0) == Sighting(5, 10.0, False)


def test_a_mark_that_moves_is_a_sign_of_life() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    assert watcher.sees(whole(member("ada", mark=6)), 12.0) == Sighting(6, 12.0, True)


def test_who_is_not_listed_among_those_who_stood_still_has_moved() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    assert watcher.sees(still(), 12.0) == Sighting(UNSEEN, 12.0, True)
    assert watcher.sees(still(), 14.0) == Sighting(UNSEEN, 14.0, True)


def test_who_moved_and_then_stands_still_does_so_since_it_was_seen_to_move() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    watcher.sees(still(), 12.0)
    assert watcher.sees(still(member("ada", mark=9)), 14.0) == Sighting(9, 12.0, True)
    assert watcher.sees(still(member("ada", mark=9)), 16.0) == Sighting(9, 12.0, True)


def test_a_whole_roster_cannot_tell_since_when() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    watcher.sees(still(), 12.0)
    assert watcher.sees(whole(member("ada", mark=9)), 14.0) == Sighting(9, 14.0, True)


def test_a_newcomer_has_just_beaten() -> None:
    watcher = Watcher()
    watcher.sees(whole(), 10.0)
    assert watcher.sees(whole(member("ada", mark=5)), 12.0) == Sighting(5, 12.0, True)


def test_after_an_interruption_all_watching_starts_anew() -> None:
    """While we did not watch, it may have beaten, and stopped, and beaten."""
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    watcher.sees(whole(member("ada", mark=6)), 12.0)
    watcher.is_interrupted()
    assert watcher.sees(whole(member("ada", mark=6)), 50.0) == Sighting(6, 50.0, False)


def test_after_an_interruption_one_that_moved_meanwhile_may_be_gone_by_now() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    watcher.is_interrupted()
    assert watcher.sees(still(), 50.0) == Sighting(UNSEEN, 50.0, False)
    assert watcher.sees(still(member("ada", mark=9)), 52.0) == Sighting(9, 50.0, False)
    assert watcher.sees(still(), 54.0) == Sighting(UNSEEN, 54.0, True)


def test_a_roster_after_an_interruption_proves_no_life_either() -> None:
    """It only names the mark to which she had moved while nobody watched."""
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5)), 10.0)
    watcher.is_interrupted()
    watcher.sees(still(), 50.0)
    assert watcher.sees(whole(member("ada", mark=9)), 52.0) == Sighting(9, 52.0, False)


def test_an_owner_without_a_row_can_not_heartbeat_any_more() -> None:
    watcher = Watcher()
    assert watcher.sees(whole(leases=(lease("0", "ada"),)), 10.0) == Sighting(None, 10.0, False)
    assert watcher.sees(still(), 12.0) == Sighting(None, 10.0, False)
    assert watcher.sees(whole(leases=(lease("0", "ada"),)), 14.0) == Sighting(None, 10.0, False)


def test_an_owner_whose_row_goes_is_silent_from_then_on() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada", mark=5), leases=(lease("0", "ada"),)), 10.0)
    assert watcher.sees(whole(leases=(lease("0", "ada"),)), 12.0) == Sighting(None, 12.0, False)


def test_incarnations_are_watched_apart() -> None:
    watcher = Watcher()
    leases = (lease("0", "ada"),)
    watcher.sees(whole(member("ada", mark=5), leases=leases), 10.0)
    assert watcher.sees(whole(member("ada", 2, mark=6), leases=leases), 12.0) == Sighting(None, 12.0, False)
    assert watcher.sightings is not None
    assert watcher.sightings[Owner("ada", 2)] == Sighting(6, 12.0, True)
    assert watcher.sees(still(), 14.0) == Sighting(None, 12.0, False), (
        "that its successor heartbeats is no heartbeat of its own"
    )


def test_who_has_left_and_owns_nothing_is_forgotten() -> None:
    watcher = Watcher()
    watcher.sees(whole(member("ada")), 10.0)
    assert watcher.sees(whole(), 12.0) is None
    assert watcher.sightings == {}


@pytest.mark.parametrize(("since_s", "silent_s"), [(10.0, 4.0), (14.0, 0.0), (14.5, -0.5)])
def test_silence_ends_at_the_sending_of_the_last_answered_heartbeat(since_s: float, silent_s: float) -> None:
    """Below zero when that very heartbeat's answer first showed the mark: nothing is known about the time after."""
    assert silence_s(Sighting(5, since_s, True), 14.0) == silent_s


def test_nobody_unknown_is_silent() -> None:
    assert silence_s(None, 14.0) == 0.0


# --- whatever happens
class Round(NamedTuple):
    """An answered heartbeat of the watcher: sent, taken effect, answered. The ledger shows the moment of its effect."""

    sent_s: float
    effect_s: float
    answered_s: float
    roster: bool
    interrupted: bool


@st.composite
def rounds(draw: st.DrawFn) -> list[Round]:
    now_s, made = 0.0, list[Round]()
    for _ in range(draw(st.integers(1, 12))):
        sent_s = now_s + draw(st.sampled_from([0.25, 1.0, 2.0]))
        effect_s = sent_s + draw(st.sampled_from([0.0, 0.1, 1.0]))
        now_s = effect_s + draw(st.sampled_from([0.0, 0.1, 1.0]))
        interrupted = draw(st.sampled_from([False, False, False, False, True]))
        made.append(Round(sent_s, effect_s, now_s, draw(st.booleans()) or not made, interrupted))
    return made


@settings(max_examples=300)
@given(rounds(), st.lists(st.floats(0.0, 40.0), max_size=12))
def test_silence_is_never_more_than_there_was_and_at_most_one_round_less(
    rounds: list[Round], heartbeats_s: list[float]
) -> None:
    """Ada heartbeats at `heartbeats_s`; the first made her row. Her mark is how often she has."""
    watcher = Watcher()
    heartbeats_s = [-1.0, *sorted(heartbeats_s)]
    before_s, watched_from = float("-inf"), 0
    for number, now in enumerate(rounds):
        beaten = [heartbeat_s for heartbeat_s in heartbeats_s if heartbeat_s <= now.effect_s]
        stood_still = beaten[-1] <= before_s
        if now.interrupted:
            watcher.is_interrupted()
            watched_from = number
        ada = member("ada", mark=len(beaten))
        ledger = whole(ada) if now.roster else still(ada) if stood_still else still()
        seen = watcher.sees(ledger, now.answered_s)
        silent_s = silence_s(seen, now.sent_s)
        assert silent_s <= max(0.0, now.sent_s - beaten[-1])
        looks = [one for one in rounds[watched_from : number + 1] if one.effect_s >= beaten[-1]]
        assert silent_s >= now.sent_s - looks[min(1, len(looks) - 1)].answered_s
        assert seen is not None
        if seen.moved:
            assert any(rounds[watched_from].effect_s < heartbeat_s for heartbeat_s in beaten)
        before_s = now.effect_s
