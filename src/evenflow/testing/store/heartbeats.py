"""The part of the store contract that is about heartbeats: members, incarnations, ledgers, histories, names."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from msgspec import structs

from evenflow.errors import Misconfigured, Superseded
from evenflow.model import EPOCH_HISTORY_BITS, Cursor, Group, Ledger, Member
from evenflow.testing.store.scene import Scene, Stage, after, at, first, present, scene

if TYPE_CHECKING:
    from collections.abc import Sequence

ODD_NAMES = ("a/b", "a//b", "..", " blank ", 'it\'s "quoted"', "%s;--", "naïve 家 🏠", "A", "a", "x" * 256)
BAD_NAMES = ("", "x" * 257, "line\nbreak", "nul\0", "bell\x07", "\x7f", "\u2028", "\ud800")


class HeartbeatContract(Stage):
    """Members."""

    odd_names: ClassVar[Sequence[str]] = ODD_NAMES
    """Override for stores whose third-party layout distinguishes fewer of them."""

    @scene
    async def test_a_first_heartbeat_makes_the_group_and_the_row(self, play: Scene) -> None:
        ledger = await play.heartbeat(Member(id="a", nonce="n", ttl_s=8.0))
        assert present(ledger).incarnation > 0
        assert (ledger.whole, ledger.roster, ledger.leases) == (True, True, ())
        assert ledger.members == (ledger.me,)

    @scene
    async def test_a_member_is_stored_as_it_was_sent(self, play: Scene) -> None:
        facts = Member(
            id="a", nonce="n", ttl_s=6.5, heartbeat_s=1.5, weight=2.0, max_partitions=7, min_partitions=2,
            retiring=True, version="1.2", host="kitchen", pid=4711, started_at=12.25, source="made",
            load={"0": 0.5, "1": 0.25}, charges={"read feed": 12.5, "write lease": 0.25},
        )  # fmt: skip
        me = present(await play.heartbeat(facts))
        seen = (await play.other.heartbeat(play.group, Member(id="b", nonce="m", ttl_s=8.0), None)).members
        assert structs.replace(facts, incarnation=me.incarnation, mark=me.mark, heartbeat_at=me.heartbeat_at) in seen

    @scene
    async def test_every_start_gets_a_higher_incarnation(self, play: Scene) -> None:
        starts = [await play.join(instance, nonce) for instance, nonce in ("a1", "b1", "a2", "c1", "a3")]
        numbers = [member.incarnation for member in starts]
        assert numbers == sorted(set(numbers))
        ledger = await play.heartbeat(starts[-1])
        assert {(m.id, m.nonce) for m in ledger.members} == {("a", "3"), ("b", "1"), ("c", "1")}

    @scene
    async def test_a_repeated_first_heartbeat_is_the_same_start(self, play: Scene) -> None:
        start = Member(id="a", nonce="n", ttl_s=8.0)
        once = present(await play.heartbeat(start))
        again = present(await play.other.heartbeat(play.group, start, None))
        assert again.incarnation == once.incarnation
        assert again.mark != once.mark

    @scene
    async def test_a_superseded_heartbeat_is_refused_and_changes_nothing(self, play: Scene) -> None:
        old = await play.join("twin", "1", host="attic", pid=1)
        new = await play.join("twin", "2", host="cellar", pid=4711)
        with pytest.raises(Superseded, match=r"'twin'.*4711.*'cellar'"):
            await play.heartbeat(old)
        with pytest.raises(Superseded):
            await play.heartbeat(structs.replace(old, leaving=True))
        ledger = await play.heartbeat(await play.join("looker"))
        assert new in ledger.members

    @scene
    async def test_two_processes_with_one_number_never_share_a_row(self, play: Scene) -> None:
        """An emptied store gives numbers again: who came back first keeps the row."""
        mine = await play.join("a", "1")
        with pytest.raises(Superseded):
            await play.heartbeat(structs.replace(mine, nonce="2"))

    @scene
    async def test_a_mark_moves_with_every_heartbeat_and_only_then(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        marks = {present(await play.heartbeat(a)).mark for _ in range(3)}
        assert len(marks | {a.mark}) == 4
        assert _member(await play.other.heartbeat(play.group, a, None), "b").mark == b.mark

    @scene
    async def test_a_row_that_is_missing_comes_back_with_its_incarnation(self, play: Scene) -> None:
        """As after lost writes."""
        await play.join("b")
        me = Member(id="a", nonce="n", incarnation=7, ttl_s=8.0)
        back = present(await play.heartbeat(me))
        assert back.incarnation == me.incarnation
        assert back.mark != me.mark

    @scene
    async def test_an_incarnation_replaces_the_row_of_an_older_one(self, play: Scene) -> None:
        """After lost writes the row may be older than the process that heartbeats; what is given next is above both."""
        old = await play.join("a", "1")
        newer = structs.replace(old, nonce="2", incarnation=old.incarnation + 100)
        assert present(await play.heartbeat(newer)).incarnation == newer.incarnation
        with pytest.raises(Superseded):
            await play.heartbeat(old)
        assert (await play.join("b")).incarnation > newer.incarnation

    # --- leaving
    @scene
    async def test_who_leaves_takes_the_row_along(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        since = (await play.heartbeat(b)).cursor
        assert (await play.heartbeat(structs.replace(a, leaving=True))).me is None
        seen = await play.other.heartbeat(play.group, b, since)
        assert (seen.roster, [member.id for member in seen.members]) == (True, ["b"])
        assert (await play.heartbeat(structs.replace(a, leaving=True))).me is None, "and may say so twice"

    @scene
    async def test_who_is_named_by_a_lease_cannot_leave(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        lease = await play.claim(a)
        ledger = await play.heartbeat(structs.replace(a, leaving=True))
        stays = present(ledger)
        assert (stays.incarnation, stays.leaving, stays.mark != a.mark) == (a.incarnation, False, True)
        assert _member(await play.heartbeat(b), "a") == stays
        await play.swap(after(lease, b.owner))
        assert (await play.heartbeat(structs.replace(a, leaving=True))).me is None

    @scene
    async def test_a_lease_of_an_older_incarnation_keeps_no_member(self, play: Scene) -> None:
        await play.claim(await play.join("a", "1"))
        later = await play.join("a", "2")
        assert (await play.heartbeat(structs.replace(later, leaving=True))).me is None

    @scene
    async def test_who_leaves_takes_no_other_row_along(self, play: Scene) -> None:
        old = await play.join("a", "1")
        lost = structs.replace(old, nonce="2", incarnation=old.incarnation + 100)
        assert (await play.heartbeat(structs.replace(lost, leaving=True))).me is None
        assert old in (await play.heartbeat(await play.join("b"))).members

    @scene
    async def test_who_never_came_leaves_without_a_trace(self, play: Scene) -> None:
        assert (await play.heartbeat(Member(id="a", nonce="n", ttl_s=8.0, leaving=True))).me is None
        assert [member.id for member in (await play.heartbeat(await play.join("b"))).members] == ["b"]

    # --- the group
    @scene
    async def test_the_first_source_becomes_the_groups(self, play: Scene) -> None:
        await play.join("a")
        b = await play.join("b", source="made once")
        c = await play.join("c", source="made again")
        assert (await play.heartbeat(b)).state.source == (await play.heartbeat(c)).state.source == "made once"

    @scene
    async def test_groups_know_nothing_of_each_other(self, play: Scene) -> None:
        me = await play.join("a")
        await play.claim(me)
        await play.seal(1)
        mine = await play.heartbeat(me)
        for other in _neighbours(play.group):
            ledger = await play.store.heartbeat(other, Member(id="b", nonce="n", ttl_s=8.0), None)
            assert (ledger.leases, [member.id for member in ledger.members]) == ((), ["b"])
            assert (await play.store.commit(other, [at(1)]))[0].why == "epoch"
            assert (await play.store.swap(other, [first("0", me.owner)]))[0].why == "owner"
        again = await play.heartbeat(me, mine.cursor)
        assert (again.leases, again.roster, again.members) == ((), False, ())

    @scene
    async def test_odd_names_are_names(self, play: Scene) -> None:
        for name in self.odd_names:
            group = Group(name, name, name)
            me = present(await play.store.heartbeat(group, Member(id=name, nonce="n", ttl_s=8.0), None))
            assert (await play.store.swap(group, [first(name, me.owner)]))[0].ok
            await play.store.seal(group, name, 1, at(3, partition=name))
            assert (await play.store.commit(group, [at(4, partition=name)]))[0].ok
            ledger = await play.other.heartbeat(group, me, None)
            assert [(lease.partition, lease.owner) for lease in ledger.leases] == [(name, me.owner)]
            assert (await play.other.seal(group, name, 1, at(0, partition=name))).ordinal == 4

    @scene
    async def test_bad_names_are_refused_by_name(self, play: Scene) -> None:
        for name in BAD_NAMES:
            group = structs.replace(play.group, name=name)
            for request in (
                play.store.heartbeat(group, Member(id="a", nonce="n", ttl_s=8.0), None),
                play.store.heartbeat(play.group, Member(id=name, nonce="n", ttl_s=8.0), None),
                play.store.swap(group, [first("0", None)]),
                play.store.seal(group, "0", 1, at(0)),
                play.store.commit(group, [at(0)]),
            ):
                with pytest.raises(Misconfigured, match=r"name|instance_id"):
                    await request


class LedgerContract(Stage):
    """What a heartbeat answers: everything, or what changed."""

    @scene
    async def test_without_changes_the_ledger_is_empty(self, play: Scene) -> None:
        me = await play.join("a", load={"0": 0.5})
        await play.claim(me)
        since = (await play.heartbeat(me)).cursor
        ledger = await play.heartbeat(me, since)
        assert (ledger.whole, ledger.leases, ledger.roster, ledger.members) == (False, (), False, ())
        assert present(ledger).incarnation == me.incarnation

    @scene
    async def test_silent_members_are_listed(self, play: Scene) -> None:
        a, b, c = [await play.join(instance) for instance in "abc"]
        since = (await play.heartbeat(a)).cursor
        await play.other.heartbeat(play.group, b, None)
        ledger = await play.heartbeat(a, since)
        assert (ledger.roster, ledger.members) == (False, (c,))

    @scene
    async def test_who_heartbeat_last_stands_still_from_then_on(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        since = (await play.heartbeat(b)).cursor
        seen = (await play.other.heartbeat(play.group, a, since)).members
        assert [member.id for member in seen] == ["b"]

    @scene
    async def test_a_heartbeat_that_brings_nothing_new_changes_no_roster(self, play: Scene) -> None:
        start = Member(id="a", nonce="n", ttl_s=8.0, load={"0": 0.5})
        a, b = present(await play.heartbeat(start)), await play.join("b")
        await play.claim(a)
        since = (await play.heartbeat(b)).cursor
        for again in (start, a, structs.replace(a, leaving=True)):
            await play.other.heartbeat(play.group, again, None)
        ledger = await play.heartbeat(b, since)
        assert (ledger.roster, ledger.members) == (False, ())

    @scene
    async def test_a_changed_fact_is_reported_to_all(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        for change in ({"retiring": True}, {"load": {"0": 0.5}}, {"load": {"0": 0.75}}, {"weight": 3.0}):
            since = (await play.other.heartbeat(play.group, b, None)).cursor
            a = structs.replace(a, **change)
            await play.heartbeat(a)
            ledger = await play.other.heartbeat(play.group, b, since)
            assert ledger.roster
            assert structs.replace(_member(ledger, "a"), mark=a.mark, heartbeat_at=a.heartbeat_at) == a

    @scene
    async def test_changed_leases_are_reported_once(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        for partition in "012":
            await play.claim(a, partition)
        since = (await play.other.heartbeat(play.group, b, None)).cursor
        zero, one, _ = sorted((await play.heartbeat(a)).leases, key=lambda lease: lease.partition)
        await play.store.swap(play.group, [after(one, b.owner), first("3", a.owner), after(zero, None, revision=99)])
        ledger = await play.other.heartbeat(play.group, b, since)
        assert not ledger.whole
        assert sorted(lease.partition for lease in ledger.leases) == ["1", "3"]
        assert (await play.other.heartbeat(play.group, b, ledger.cursor)).leases == ()

    @scene
    async def test_a_heartbeat_sees_what_was_answered_before_it(self, play: Scene) -> None:
        me = await play.join("a")
        for partition in map(str, range(20)):
            since = (await play.heartbeat(me)).cursor
            claimed = (await play.other.swap(play.group, [first(partition, me.owner)]))[0].lease
            assert (await play.heartbeat(me, since)).leases == (claimed,)

    # --- history
    @scene
    async def test_both_clients_speak_of_one_history(self, play: Scene) -> None:
        mine = (await play.heartbeat(await play.join("a"))).cursor
        theirs = (await play.other.heartbeat(play.group, Member(id="b", nonce="n", ttl_s=8.0), None)).cursor
        assert (mine.lineage, mine.history) == (theirs.lineage, theirs.history)
        assert theirs.revision > mine.revision

    @scene
    async def test_a_cursor_of_another_lineage_raises_the_history_above_it(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        lease = await play.claim(a)
        before = (await play.heartbeat(b)).cursor
        ledger = await play.heartbeat(a, Cursor("another", before.history + 4, before.revision))
        assert ledger.cursor.history == before.history + 5
        assert (ledger.whole, ledger.roster, ledger.leases) == (True, True, (lease,))
        # A second witness of the same loss changes nothing, and neither does one of an older loss.
        for history in (before.history + 4, before.history):
            later = await play.heartbeat(a, Cursor("another", history, 1))
            assert (later.cursor.history, later.whole) == (before.history + 5, True)
        seen = await play.other.heartbeat(play.group, b, before)
        assert (seen.cursor.history, seen.whole, seen.roster) == (before.history + 5, True, True)
        assert seen.cursor.lineage == before.lineage

    @scene
    async def test_incarnations_of_a_later_history_are_higher(self, play: Scene) -> None:
        a = await play.join("a")
        before = (await play.heartbeat(a)).cursor
        raised = (await play.heartbeat(a, Cursor("another", before.history, 1))).cursor
        assert (await play.join("b")).incarnation > raised.history << EPOCH_HISTORY_BITS

    @scene
    async def test_a_cursor_from_the_future_proves_a_loss_too(self, play: Scene) -> None:
        """The store was put back to an older state under the same name, by a backup for instance."""
        a = await play.join("a")
        now = (await play.heartbeat(a)).cursor
        ledger = await play.heartbeat(a, structs.replace(now, revision=now.revision + 1_000))
        assert (ledger.cursor.history, ledger.whole) == (now.history + 1, True)
        ledger = await play.heartbeat(a, structs.replace(now, history=now.history + 7))
        assert (ledger.cursor.history, ledger.whole) == (now.history + 8, True)


def _member(ledger: Ledger, instance: str) -> Member:
    (found,) = [member for member in ledger.members if member.id == instance]
    return found


def _neighbours(group: Group) -> list[Group]:
    return [structs.replace(group, **{part: "elsewhere"}) for part in ("namespace", "hub", "name")]
