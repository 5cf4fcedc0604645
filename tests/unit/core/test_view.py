"""Ledgers, which tell only what changed, merged into one picture."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evenflow.core.view import View, merge, with_lease
from evenflow.model import (
    EVERYTHING,
    Change,
    Cursor,
    Group,
    GroupState,
    Lease,
    Ledger,
    Member,
    Owner,
    Wish,
    next_epoch,
)
from evenflow.stores.memory import MemoryStore
from tests.unit.core.scenes import lease, member, view

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

GROUP = Group("homes.example", "sensors", "alerts")


def ledger(*leases: Lease, members: tuple[Member, ...] = (), **facts: Any) -> Ledger:
    return Ledger(
        leases=leases,
        members=members,
        **{"cursor": Cursor("store", 0, 9), "me": None, "whole": False, "roster": False, **facts},
    )


def test_the_first_ledger_is_the_view() -> None:
    state = GroupState(source="made")
    seen = merge(None, ledger(lease("0"), members=(member("ada"),), whole=True, roster=True, state=state))
    assert seen == View(Cursor("store", 0, 9), {"ada": member("ada")}, {"0": lease("0")}, state)
    assert seen.history == 0


def test_what_changed_replaces_what_was_and_the_rest_stays() -> None:
    before = view([lease("0", "ada"), lease("1", "bo")], [member("ada")])
    after = merge(before, ledger(lease("1", "ada", revision=8)))
    assert after.leases == {"0": lease("0", "ada"), "1": lease("1", "ada", revision=8)}
    assert after.members == before.members
    assert before.leases["1"] == lease("1", "bo"), "a view does not change"


def test_nothing_changed_leaves_all_as_it_is() -> None:
    before = view([lease("0", "ada")], [member("ada")])
    after = merge(before, ledger(cursor=Cursor("store", 0, 100)))
    assert (after.leases, after.members, after.cursor) == (before.leases, before.members, Cursor("store", 0, 100))


def test_a_whole_ledger_forgets_what_is_not_in_it() -> None:
    before = view([lease("0"), lease("1")])
    assert merge(before, ledger(lease("1"), whole=True)).leases == {"1": lease("1")}
    assert merge(before, ledger(whole=True)).leases == {}


def test_those_who_stood_still_are_no_roster() -> None:
    before = view([], [member("ada"), member("bo")])
    assert merge(before, ledger(members=(member("ada"),))).members == before.members
    assert merge(before, ledger(members=(member("ada"),), roster=True)).members == {"ada": member("ada")}
    assert merge(before, ledger(roster=True)).members == {}


def test_an_answer_that_comes_late_takes_nothing_back() -> None:
    """The heartbeat took effect before a swap of our own, and was answered after it."""
    before = view([lease("0", "me", revision=8)])
    for whole in (True, False):
        late = merge(before, ledger(lease("0", "ada", revision=7), whole=whole))
        assert late.leases["0"] == lease("0", "me", revision=8)
        newer = merge(before, ledger(lease("0", "ada", revision=9), whole=whole))
        assert newer.leases["0"] == lease("0", "ada", revision=9)


def test_in_a_new_history_older_revisions_are_the_truth() -> None:
    before = view([lease("0", "me", revision=8)])
    lost = ledger(lease("0", "ada", revision=3), whole=True, cursor=Cursor("store", 1, 4))
    assert merge(before, lost).leases["0"] == lease("0", "ada", revision=3)


def test_the_state_of_the_group_is_the_ledgers() -> None:
    paused = GroupState(pauses={EVERYTHING: Wish()})
    assert merge(view(), ledger(state=paused)).state == paused


def test_the_answer_to_a_swap_goes_into_the_view() -> None:
    before = view([lease("0", None, revision=7)], [member()])
    mine = lease("0", "me", revision=8)
    after = with_lease(before, mine)
    assert after.leases == {"0": mine}
    assert (after.cursor, after.members, after.state) == (before.cursor, before.members, before.state)
    assert with_lease(before, lease("1", "me", revision=8)).leases.keys() == {"0", "1"}


def test_the_answer_to_a_swap_is_dropped_when_the_view_knows_better() -> None:
    before = view([lease("0", "ada", revision=8)])
    assert with_lease(before, lease("0", "me", revision=7)) is before
    assert with_lease(before, lease("0", "me", revision=8)) is before
    assert with_lease(before, lease("0", "me", revision=9, history=1)) is before
    assert with_lease(view(history=1), lease("0", "me", history=1)).leases.keys() == {"0"}


def test_a_row_is_one_of_this_very_incarnation() -> None:
    seen = view([], [member("ada", 2)])
    assert seen.has(Owner("ada", 2))
    assert not seen.has(Owner("ada", 1))
    assert not seen.has(Owner("bo", 2))


# --- against a store
class Crowd:
    """A store in which others heartbeat, claim, release and leave, and one who only ever asks what changed."""

    def __init__(self) -> None:
        self.store = MemoryStore(wall=lambda: 0.0)
        self.members: dict[str, Member] = {}
        self.view: View | None = None
        self._saved = self.store.snapshot()
        self._starts = count()

    def heartbeat(self, name: str, *, leaving: bool = False, retiring: bool = False) -> None:
        me = self.members.get(name, Member(id=name, nonce=f"{name} {next(self._starts)}", ttl_s=8.0))
        me = replace(me, leaving=leaving, retiring=retiring)
        answer = now(self.store.heartbeat(GROUP, me, None))
        if answer.me is None:
            self.members.pop(name, None)
        else:
            self.members[name] = answer.me

    def swap(self, name: str, partition: str, *, release: bool) -> None:
        if name not in self.members:
            self.heartbeat(name)
        seen = now(self.store.peek(GROUP))
        assert seen is not None
        known = {one.partition: one for one in seen.leases}.get(partition, Lease(partition=partition))
        history = seen.cursor.history
        change = Change(
            partition=partition,
            revision=known.revision,
            history=history,
            owner=None if release else self.members[name].owner,
            epoch=next_epoch(known.epoch, history),
        )
        now(self.store.swap(GROUP, [change]))

    def save(self) -> None:
        self._saved = self.store.snapshot()

    def lose_writes(self) -> None:
        self.store.restore(self._saved)
        self.members = {}

    def watch(self) -> None:
        me = self.members.get("watcher", Member(id="watcher", nonce="watcher", ttl_s=8.0))
        answer = now(self.store.heartbeat(GROUP, me, self.view.cursor if self.view else None))
        assert answer.me is not None
        self.members["watcher"] = answer.me
        self.view = merge(self.view, answer)


def now(request: Coroutine[Any, Any, T]) -> T:
    """The memory store never waits."""
    try:
        request.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    raise AssertionError("it waited")


STEPS: st.SearchStrategy[tuple[str, Any, dict[str, bool]]] = st.one_of(
    st.tuples(st.just("heartbeat"), st.sampled_from("abc"), st.fixed_dictionaries({"retiring": st.booleans()})),
    st.tuples(st.just("heartbeat"), st.sampled_from("abc"), st.just({"leaving": True})),
    st.tuples(
        st.just("swap"),
        st.tuples(st.sampled_from("abc"), st.sampled_from("0123")),
        st.fixed_dictionaries({"release": st.booleans()}),
    ),
    st.tuples(st.sampled_from(["watch", "watch", "save", "lose_writes"]), st.just(()), st.just({})),
)


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=30))
def test_what_changed_since_adds_up_to_the_whole(steps: list[tuple[str, Any, dict[str, bool]]]) -> None:
    crowd = Crowd()
    for name, args, options in steps:
        getattr(crowd, name)(*args, **options)
    crowd.watch()
    everything = now(crowd.store.peek(GROUP))
    assert everything is not None
    assert crowd.view is not None
    assert crowd.view.leases == {one.partition: one for one in everything.leases}
    assert crowd.view.state == everything.state
    assert crowd.view.cursor == everything.cursor
    assert without_marks(crowd.view.members.values()) == without_marks(everything.members)


def without_marks(members: Any) -> dict[str, Member]:
    """A ledger of what changed does not tell the marks of those who moved: that they did is all one needs."""
    return {one.id: replace(one, mark=0) for one in members}


def test_an_epoch_is_above_what_there_was_in_groups_of_this_name() -> None:
    seen = merge(None, ledger(lease("0", epoch=3), whole=True, roster=True, began=2, epoch_floor=7))
    assert (seen.began, seen.epoch_floor) == (2, 7)
    assert seen.epoch_after(lease("0", epoch=3)) == 8
    assert seen.epoch_after(lease("0", epoch=9)) == 10
    assert merge(seen, ledger(began=1, epoch_floor=9)).epoch_after(Lease(partition="1")) == 10
    later = merge(seen, ledger(cursor=Cursor("store", 1, 9), epoch_floor=7))
    assert later.epoch_after(lease("0", epoch=9)) == next_epoch(0, 1)
    assert with_lease(seen, lease("1", revision=12)).epoch_floor == 7
