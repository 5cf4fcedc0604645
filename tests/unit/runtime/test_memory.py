"""What an instance remembers: what it writes when the store has lost writes, and what it may claim at once."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec import structs

from evenflow.core.view import View
from evenflow.model import Checkpoint, Cursor, GroupState, Lease, Owner, restore_epoch
from evenflow.runtime.memory import Memory, Tenure
from tests.unit.core.scenes import lease
from tests.unit.runtime.stage import at

ME = Owner("me", 1)
NOW_S = 100.0


def view(*leases: Lease, lineage: str = "one", history: int = 0, revision: int = 9, floor: int = 0) -> View:
    return View(Cursor(lineage, history, revision), {}, {one.partition: one for one in leases}, GroupState(), 0, floor)


def memory(*, latest: bool = False) -> Memory:
    return Memory(lambda: ME, lambda partition: latest)


def record(ordinal: int, epoch: int = 3, partition: str = "0") -> Checkpoint:
    return Checkpoint(partition=partition, epoch=epoch, position=at(ordinal - 1), ordinal=ordinal)


def left(
    epoch: int = 3, *, deadline_s: float = NOW_S + 1.0, passing: bool = False, sealed_s: float = NOW_S - 2.0
) -> Tenure:
    return Tenure(epoch=epoch, deadline_s=deadline_s, passing=passing, sealed_s=sealed_s)


def lost(
    ordinal: int | None = 5, *, latest: bool = False, before: View | None = None, after: View | None = None, **how: Any
) -> Memory:
    """What is remembered after the store has lost writes; by default it was emptied under the owner."""
    found, before = memory(latest=latest), before or view(lease("0", "me"))
    found.look(None, before, NOW_S - 1.0, NOW_S - 0.9)
    found.leave("0", left(**how))
    if ordinal is not None:
        found.remember(record(ordinal), due=False)
    found.look(before, after or view(lineage="two", history=1, revision=1), NOW_S, NOW_S)
    return found


def written(found: Memory) -> list[tuple[int, int]]:
    """What the store is sent: epochs and ordinals."""
    return [(one.epoch, one.ordinal) for one in found.due()]


# --- who may claim at once
def test_an_owner_within_its_deadline_may_have_its_partition_back() -> None:
    assert set(lost().reclaims) == {"0"}


def test_whoever_may_have_been_followed_may_not() -> None:
    assert not lost(deadline_s=NOW_S).reclaims, "it was late: it may have been taken over"
    assert not lost(passing=True).reclaims, "it may have passed it on"
    assert not lost(before=view(lease("0", "ada"))).reclaims, "another instance had it"
    assert not lost(before=view(lease("0", "me", 4))).reclaims, "it is of another epoch"
    assert not lost(before=view()).reclaims


def test_one_that_had_only_just_begun_leaves_it_to_those_who_remember_more() -> None:
    for sealed_s in (inf, NOW_S - 0.5):
        assert not lost(sealed_s=sealed_s).reclaims
    unsure = lost(sealed_s=NOW_S - 0.5, latest=True)
    assert written(unsure) == [(restore_epoch(1) - 1, 5)], "it may have begun in the emptied store"
    later = view(lineage="three", history=2)
    unsure.look(view(lineage="two", history=1), later, NOW_S, NOW_S)
    assert written(unsure) == [(restore_epoch(2) - 1, 5)], "and may still have"


def test_but_who_began_under_the_first_epoch_knows_that_nobody_remembers_more() -> None:
    """Its claim succeeded in a store that knew it, and there was no lease."""

    def first(epoch: int, floor: int = 0) -> list[tuple[int, int]]:
        found, before = memory(latest=True), view(lease("0", "me", epoch), floor=floor)
        found.look(None, before, NOW_S - 1.0, NOW_S - 0.9)
        found.remember(record(5, epoch), due=False)
        found.leave("0", left(epoch, sealed_s=NOW_S - 0.5))
        found.look(before, view(lineage="two", history=1, floor=floor), NOW_S, NOW_S)
        return written(found)

    assert first(1) == first(4, floor=3) == [(restore_epoch(1), 5)]
    assert first(2) == first(5, floor=3) == [(restore_epoch(1) - 1, 5)]


def test_whoever_misses_nothing_itself_was_first_in_an_emptied_store() -> None:
    mine = lease("0", "me")
    assert not lost(after=view(mine, history=1, revision=9)).reclaims
    assert set(lost(after=view(mine, history=1, revision=8)).reclaims) == {"0"}, "it has seen more than there is"


def test_the_right_ends_with_the_next_loss() -> None:
    found = lost()
    found.look(view(history=1, lineage="two"), view(history=2, lineage="three"), NOW_S, NOW_S)
    assert not found.reclaims


def test_nothing_may_be_claimed_at_once_where_nothing_was_lost() -> None:
    found = lost(after=view(lease("0", "me"), revision=10))
    assert not found.reclaims
    assert written(found) == []


# --- under which epoch
def test_what_the_last_owner_remembers_is_above_all_that_was_begun_meanwhile() -> None:
    assert written(lost()) == [(restore_epoch(1), 5)]


def test_what_others_remember_is_written_under_its_own_epoch() -> None:
    assert written(lost(passing=True)) == [(3, 5)]


def test_where_the_group_starts_at_the_end_it_goes_before_a_newcomers_start_too() -> None:
    assert written(lost(passing=True, latest=True)) == [(restore_epoch(1), 5)]
    newcomer = view(lease("0", "new", 1), lineage="two", history=1)
    assert written(lost(passing=True, latest=True, after=newcomer)) == [(restore_epoch(1), 5)]


def test_but_not_before_an_owner_that_followed() -> None:
    other = lease("1", "bob")
    for follower in (lease("0", "me"), lease("0", "ada", 4, revision=8)):
        before, after = view(lease("0", "me"), other), view(follower, other, lineage="two", history=1)
        assert written(lost(passing=True, latest=True, before=before, after=after)) == [(3, 5)]
    before = view(other)
    assert written(lost(passing=True, latest=True, before=before, after=after)) == [(3, 5)], "it had not been seen yet"


def test_where_others_have_found_out_their_leases_do_not_tell_what_they_knew() -> None:
    """Heirs have restored as much or more, or sealed it again: then the store refuses this."""
    newcomer = structs.replace(lease("0", "new", 4, revision=8), history=1)
    after = view(newcomer, lineage="two", history=1)
    assert written(lost(passing=True, latest=True, after=after)) == [(restore_epoch(1), 5)]


def test_newcomers_in_an_emptied_store_have_not_followed_however_high_their_epochs_are() -> None:
    after = view(lease("0", "new", 9, revision=30), lineage="two", history=1)
    assert written(lost(passing=True, latest=True, after=after)) == [(restore_epoch(1), 5)]


def test_whoever_is_of_another_store_has_not_followed() -> None:
    """There revisions begin anew, and so do epochs."""
    for other in (lease("0", "ada", 9, revision=6), lease("0", "ada", 3, revision=8)):
        after = view(other, lineage="two", history=1)
        assert written(lost(passing=True, latest=True, after=after)) == [(restore_epoch(1), 5)]
    after = view(lease("0", "ada", 2), lineage="two", history=1)
    assert written(lost(passing=True, latest=True, before=view(), after=after)) == [(restore_epoch(1), 5)]


def test_where_a_newcomer_began_it_stays_behind_what_others_remember() -> None:
    """Also when the store loses writes again."""
    found = lost(latest=True, after=view(lease("0", "me"), history=1))
    assert written(found) == [(3, 5)]
    found.look(view(lease("0", "me"), history=1), view(lineage="two", history=2), NOW_S, NOW_S)
    assert written(found) == [(restore_epoch(2) - 2, 5)], "but not behind newcomers who know nothing at all"
    assert not found.reclaims, "what it had was of an older history already"


def test_what_it_had_of_a_deleted_group_is_not_claimed_at_once() -> None:
    assert not lost(after=view(lineage="two", history=1, floor=3)).reclaims
    assert set(lost(after=view(lineage="two", history=1, floor=2)).reclaims) == {"0"}


def test_who_left_it_to_others_once_does_not_go_before_them_later() -> None:
    """They went before it, and the store had what they remember; then it was emptied again."""
    mine, later = view(lease("0", "me"), lineage="two", history=1), view(lineage="three", history=2)
    left_it, went = lost(latest=True, after=mine, passing=True), lost(latest=True, passing=True)
    assert written(left_it) == [(3, 5)]
    assert written(went) == [(restore_epoch(1), 5)]
    for found in (left_it, went):
        found.look(mine, later, NOW_S, NOW_S)
    assert written(left_it) == [(restore_epoch(2) - 1, 5)]
    assert written(went) == [(restore_epoch(2), 5)]


def test_in_the_same_server_epochs_are_enough() -> None:
    assert written(lost(after=view(lease("0", "me"), history=1, revision=8))) == [(3, 5)]


def test_what_was_remembered_before_the_last_tenure_is_not_the_last_owners() -> None:
    found = memory()
    found.look(None, view(lease("0", "me", 9)), NOW_S - 1.0, NOW_S - 0.9)
    found.remember(record(5), due=False)
    found.leave("0", left(9))
    found.look(view(lease("0", "me", 9)), view(lineage="two", history=1), NOW_S, NOW_S)
    assert written(found) == [(3, 5)]


def test_a_second_loss_leaves_what_was_restored_where_it_was() -> None:
    """Those that had it meanwhile have come further."""
    found = lost()
    follower = lease("0", "ada", restore_epoch(1) + 2, history=1)
    found.look(
        view(follower, lineage="two", history=1), view(follower, lineage="three", history=2), NOW_S + 60.0, NOW_S + 60.0
    )
    assert written(found) == [(restore_epoch(1), 5)]


# --- what is due
def test_what_the_store_has_is_not_written_again() -> None:
    found = memory()
    found.remember(record(5), due=False)
    assert written(found) == []
    found.remember(record(6), due=True)
    assert written(found) == [(3, 6)]
    assert found.due("1") == []
    found.written(found.due("0")[0])
    assert written(found) == []


def test_after_a_loss_everything_is_due_until_the_store_has_answered() -> None:
    found, losing = lost(), []
    (sent,) = found.due()
    for one in (record(5), sent):
        losing.append(found.is_losing)
        found.written(one)
    assert [*losing, found.is_losing] == [True, True, False], "the first was another record"
    assert written(found) == []


def test_what_the_store_had_before_says_nothing_afterwards() -> None:
    """The last call returns when the store has lost writes already."""
    found = lost()
    found.remember(record(5), due=False)
    assert written(found) == [(restore_epoch(1), 5)]
    found.written(found.due()[0])
    found.remember(record(5), due=False)
    assert written(found) == []
    found.remember(record(7), due=True)
    assert written(found) == [(restore_epoch(1), 7)]


def test_a_later_tenure_is_written_under_an_epoch_of_its_own() -> None:
    found = lost()
    later = restore_epoch(1) + 1
    found.remember(record(9, later), due=True)
    assert written(found) == [(later, 9)]


# --- what it begins with
def test_it_begins_with_what_it_remembers_of_earlier_epochs() -> None:
    found = lost()
    begun = found.recalled("0", restore_epoch(1) + 1)
    assert begun is not None
    assert (begun.epoch, begun.position, begun.ordinal) == (restore_epoch(1) + 1, at(4), 0)
    assert found.recalled("0", 3) is None
    assert found.recalled("1", 9) is None


def test_what_is_the_stores_to_know_is_forgotten() -> None:
    found = memory()
    found.remember(record(5), due=True)
    found.forget("0")
    assert found.recalled("0", 9) is None


def test_what_was_of_a_deleted_group_is_forgotten() -> None:
    found = memory()
    for name, epoch in (("0", 3), ("1", 4)):
        found.remember(record(5, epoch, name), due=True)
    found.look(view(), view(floor=3), NOW_S, NOW_S)
    assert [one.partition for one in found.due()] == ["1"]
    restored = lost()
    restored.look(view(history=1), view(history=1, floor=3), NOW_S, NOW_S)
    assert written(restored) == []
