"""The part of the store contract that is about what is gone: lost writes, deleted groups, members that left."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost
from evenflow.model import Checkpoint, Cursor, Group, Ledger, Member, next_epoch, restore_epoch
from evenflow.ports import Operable
from evenflow.testing.store.scene import Scene, Stage, after, at, first, granted, present, scene

EPOCH = 7
"""Of a group that is deleted or loses writes."""


class LossContract(Stage):
    """What was lost, deleted or left does not come back, and what is remembered does."""

    # --- in which history a group began
    @scene
    async def test_a_group_began_in_the_history_in_which_it_was_made(self, play: Scene) -> None:
        ledger = await play.heartbeat(await play.join("a"))
        assert ledger.began == ledger.cursor.history
        later = await _lose(play, "a")
        assert later.began == ledger.began < later.cursor.history
        seen = await play.other.heartbeat(play.group, Member(id="b", nonce="n", ttl_s=8.0), None)
        assert (seen.began, seen.cursor.history) == (later.began, later.cursor.history)

    @scene
    async def test_a_group_that_is_made_after_a_loss_has_lost_nothing(self, play: Scene) -> None:
        await play.join("a")
        lost = await _lose(play, "a")
        for again in (structs.replace(play.group, name="another"), await _deleted(play)):
            ledger = await play.store.heartbeat(again, Member(id="b", nonce="m", ttl_s=8.0), None)
            assert ledger.began == ledger.cursor.history
            seen = await play.other.heartbeat(again, Member(id="c", nonce="o", ttl_s=8.0), None)
            assert seen.began == ledger.began
        assert ledger.cursor.history == lost.cursor.history

    @scene
    async def test_who_was_there_before_proves_when_the_group_began(self, play: Scene) -> None:
        old = (await play.heartbeat(await play.join("a"))).cursor
        newer = (await _lose(play, "a")).cursor
        await _deleted(play)
        made = await play.store.heartbeat(play.group, Member(id="b", nonce="m", ttl_s=8.0), newer)
        assert made.began == newer.history > old.history
        assert (await play.other.heartbeat(play.group, present(made), old)).began == old.history
        for since in (newer, old, None):
            assert (await play.heartbeat(present(made), since)).began == old.history, "it never rises"
        await _deleted(play)
        again = await play.store.heartbeat(play.group, Member(id="c", nonce="m", ttl_s=8.0), old)
        assert again.began == old.history, "the heartbeat that makes the group proves it, too"

    # --- members that left
    @scene
    async def test_a_late_heartbeat_does_not_bring_a_member_back(self, play: Scene) -> None:
        stays, *leavers = [await play.join(instance) for instance in "abcd"]
        lease = await play.claim(stays)
        for member in leavers:
            assert (await play.heartbeat(structs.replace(member, leaving=True))).me is None
        since = (await play.heartbeat(stays)).cursor
        for member in leavers:
            for late in (member, structs.replace(member, incarnation=0, mark=0), structs.replace(member, leaving=True)):
                assert (await play.other.heartbeat(play.group, late, None)).me is None
        ledger = await play.heartbeat(stays, since)
        assert (ledger.roster, ledger.members, ledger.leases) == (False, (), ())
        assert (await play.swap(after(lease, leavers[0].owner))).why == "owner"

    @scene
    async def test_who_left_may_start_again(self, play: Scene) -> None:
        me = await play.join("a", "1")
        await play.heartbeat(structs.replace(me, leaving=True))
        again = await play.join("a", "2")
        assert again.incarnation > me.incarnation
        assert (await play.heartbeat(me)).me is None, "a late heartbeat of the start before"
        assert again.owner in [member.owner for member in (await play.heartbeat(again)).members]

    @scene
    async def test_who_could_not_leave_yet_goes_on(self, play: Scene) -> None:
        me = await play.join("a")
        await play.claim(me)
        assert (await play.heartbeat(structs.replace(me, leaving=True))).me is not None
        assert present(await play.heartbeat(me)).incarnation == me.incarnation

    # --- deleted groups
    @scene
    async def test_a_group_that_was_never_deleted_has_no_floor(self, play: Scene) -> None:
        assert (await play.heartbeat(await play.join("a"))).epoch_floor == 0
        assert (await play.seal(0)).epoch == 0
        await play.operable.delete(structs.replace(play.group, name="another"))
        assert (await play.heartbeat(await play.join("a"))).epoch_floor == 0

    @scene
    async def test_epochs_are_never_given_twice(self, play: Scene) -> None:
        await _fill(play)
        await _deleted(play)
        me = await play.join("b")
        floor = await _floor(play, me)
        assert floor > EPOCH + 2
        for epoch in (1, EPOCH, floor):
            outcome = await play.swap(first("0", me.owner, epoch=epoch))
            assert (outcome.ok, outcome.why, outcome.lease) == (False, "epoch", None)
        lease = granted(await play.swap(first("0", me.owner, epoch=floor + 1)))
        assert (await play.swap(after(lease, None, epoch=floor))).why == "epoch"
        assert (await play.seal(lease.epoch)).epoch == floor + 1

    @scene
    async def test_a_late_owner_of_a_deleted_group_changes_nothing(self, play: Scene) -> None:
        await _fill(play)
        await _deleted(play)
        await _nothing_counts(play)
        assert list(await play.operable.groups()) == [], "a name with a floor is no group"
        assert await play.operable.peek(play.group) is None
        me = await play.join("b")
        await _nothing_counts(play)
        floor = await _floor(play, me)
        assert (await play.seal(floor + 1, at(3))).ordinal == 3, "it starts again"
        await _nothing_counts(play)
        assert (await play.commit(at(4, epoch=floor + 1))).ok
        assert [record.ordinal for record in await play.operable.checkpoints(play.group)] == [4]

    @scene
    async def test_checkpoints_without_a_lease_go_on_at_the_floor(self, play: Scene) -> None:
        await _fill(play)
        await _deleted(play)
        with pytest.raises(LeaseLost) as caught:
            await play.seal(0)
        floor = caught.value.lowest_epoch
        assert floor is not None
        assert (await play.seal(floor, at(2))).epoch == floor
        assert (await play.commit(at(3, epoch=floor))).ok
        assert (await play.seal(floor + 1, at(0))).ordinal == 3, "the first owner goes on from there"
        assert (await play.commit(at(4, epoch=floor))).why == "epoch"

    @scene
    async def test_leases_alone_and_records_alone_leave_a_floor(self, play: Scene) -> None:
        play.group = structs.replace(play.group, name="leases")
        granted(await play.swap(first("0", (await play.join("a")).owner, epoch=EPOCH)))
        await _deleted(play)
        assert await _floor(play, await play.join("b")) > EPOCH
        play.group = structs.replace(play.group, name="records")
        await play.seal(EPOCH)
        await _deleted(play)
        assert await _floor(play, await play.join("b")) > EPOCH

    @scene
    async def test_a_floor_only_rises(self, play: Scene) -> None:
        await _fill(play)
        await _deleted(play)
        once = await _floor(play, await play.join("b"))
        for _ in range(2):
            await _deleted(play)
        again = await play.join("c")
        assert await _floor(play, again) >= once
        lease = granted(await play.swap(first("0", again.owner, epoch=once + 40)))
        await _deleted(play)
        assert await _floor(play, await play.join("d")) > lease.epoch
        assert (await play.heartbeat(await play.join("d", "2"))).epoch_floor > lease.epoch

    @scene
    async def test_a_floor_is_of_one_name(self, play: Scene) -> None:
        await _fill(play)
        await _deleted(play)
        for part in ("namespace", "hub", "name"):
            other = structs.replace(play.group, **{part: "elsewhere"})
            ledger = await play.store.heartbeat(other, Member(id="a", nonce="n", ttl_s=8.0), None)
            assert ledger.epoch_floor == 0
            assert (await play.store.seal(other, "0", 1, at(0))).epoch == 1

    @scene
    async def test_a_delete_races_late_owners(self, play: Scene) -> None:
        """Whichever comes first: in the group that is made again, nothing of theirs is found."""
        for _ in range(5):
            floor = await _floor(play, await play.join("a"))
            await play.seal(floor + 1, at(0))
            await asyncio.gather(
                play.operable.delete(play.group),
                *(play.other.commit(play.group, [at(ordinal, epoch=floor + 1)]) for ordinal in (7, 8)),
                play.other.seal(play.group, "0", floor + 1, at(9)),
                return_exceptions=True,
            )
            await play.operable.delete(play.group)
            next_floor = await _floor(play, await play.join("b"))
            assert (await play.seal(next_floor + 1, at(2))).ordinal == 2
            await play.operable.delete(play.group)

    # --- lost writes
    @scene
    async def test_a_seal_of_an_older_history_makes_no_record(self, play: Scene) -> None:
        """It was on its way when the store was emptied: what it takes for the start may be the end of the log."""
        await play.join("a")
        history = (await _lose(play, "a")).cursor.history
        with pytest.raises(LeaseLost) as caught:
            await play.seal(EPOCH, at(5))
        assert caught.value.lowest_epoch == restore_epoch(history)
        assert list(await play.operable.checkpoints(play.group)) == []
        assert (await play.seal(next_epoch(0, history), at(2))).ordinal == 2

    @scene
    async def test_what_is_remembered_is_restored_where_it_is_lost(self, play: Scene) -> None:
        await play.join("a")
        history = (await _lose(play, "a")).cursor.history
        remembered = structs.replace(at(5, epoch=EPOCH, notes={"kept": [1]}), edition=3, event_at=12.5)
        outcome = await play.commit(remembered)
        assert (outcome.partition, outcome.ok, outcome.why) == ("0", True, "")
        (found,) = await play.operable.checkpoints(play.group)
        assert structs.replace(found, changed_at=0.0) == remembered
        sealed = await play.seal(next_epoch(0, history), at(0))
        assert (sealed.ordinal, sealed.position, sealed.notes) == (5, remembered.position, {"kept": [1]})

    @scene
    async def test_what_is_remembered_is_restored_where_it_went_back(self, play: Scene) -> None:
        await play.join("a")
        await play.seal(EPOCH, at(2))
        history = (await _lose(play, "a")).cursor.history
        for commit, found in (
            (at(4, epoch=EPOCH), (EPOCH, 4)),
            (at(3, epoch=EPOCH + 1), (EPOCH + 1, 3)),
            (at(6, epoch=restore_epoch(history)), (restore_epoch(history), 6)),
            (at(5, epoch=restore_epoch(history)), (restore_epoch(history), 6)),
            (at(8, epoch=restore_epoch(history)), (restore_epoch(history), 8)),
        ):
            assert (await play.other.commit(play.group, [commit]))[0].ok
            (record,) = await play.operable.checkpoints(play.group)
            assert (record.epoch, record.ordinal) == found
        assert (await play.seal(next_epoch(0, history))).ordinal == 8

    @scene
    async def test_what_is_remembered_yields_to_what_is_known(self, play: Scene) -> None:
        await play.join("a")
        effects = structs.replace(at(2, epoch=EPOCH, partition="effects"), effects=True)
        assert (await play.seal(EPOCH, effects, "effects")).effects
        await play.seal(EPOCH + 1, at(2, partition="newer"), "newer")
        history = (await _lose(play, "a")).cursor.history
        await play.seal(next_epoch(0, history), at(2, partition="sealed"), "sealed")
        commits = [
            at(9, epoch=EPOCH + 1, partition="effects"),
            at(9, epoch=EPOCH, partition="newer"),
            at(9, epoch=EPOCH, partition="sealed"),
            at(9, epoch=restore_epoch(history), partition="sealed"),
            at(9, epoch=next_epoch(0, history), partition="missing"),
            at(9, epoch=EPOCH, partition="lost"),
        ]
        outcomes = await play.store.commit(play.group, commits)
        assert [outcome.why for outcome in outcomes] == ["epoch"] * 5 + [""], "each on its own"
        found = {record.partition: record.ordinal for record in await play.operable.checkpoints(play.group)}
        assert found == {"effects": 2, "newer": 2, "sealed": 2, "lost": 9}

    @scene
    async def test_nothing_is_restored_where_nothing_was_lost(self, play: Scene) -> None:
        await play.join("a")
        await play.seal(EPOCH, at(2))
        for commit in (at(5, epoch=EPOCH + 1), at(5, epoch=EPOCH - 1), at(5, epoch=EPOCH, partition="1")):
            assert (await play.commit(commit)).why == "epoch"
        assert (await play.seal(EPOCH)).ordinal == 2

    @scene
    async def test_a_loss_is_counted_once(self, play: Scene) -> None:
        """Restoring and reclaiming after a loss does not count as a second loss."""
        me = await play.join("a")
        await play.claim(me)
        await play.seal(next_epoch(0, 0), at(2))
        lost = await _lose(play, "a")
        history = lost.cursor.history
        for partition in ("0", "1"):
            remembered = at(5, epoch=restore_epoch(history), partition=partition)
            assert (await play.other.commit(play.group, [remembered]))[0].ok
        assert (await play.other.heartbeat(play.group, me, lost.cursor)).cursor.history == history
        assert (await play.swap(first("1", me.owner, history=history))).why == ""
        assert (await play.seal(next_epoch(0, history), partition="1")).ordinal == 5
        for client in (play.store, play.other):
            assert (await client.heartbeat(play.group, me, lost.cursor)).cursor.history == history

    @scene
    async def test_a_checkpoint_without_a_lease_proves_no_loss(self, play: Scene) -> None:
        """The first claim of its partition creates the lease."""
        me = await play.join("a")
        await play.seal(0, at(2))
        await play.claim(me)
        assert (await play.heartbeat(me)).cursor.history == 0

    @scene
    async def test_a_late_commit_to_a_deleted_group_proves_no_loss(self, play: Scene) -> None:
        await play.join("a")
        await play.seal(EPOCH, at(2))
        if not isinstance(play.other, Operable):
            pytest.skip("this store is not Operable")
        await play.other.delete(play.group)
        before = (await play.other.heartbeat(play.group, Member(id="b", nonce="n", ttl_s=8.0), None)).cursor
        assert (await play.commit(at(9, epoch=EPOCH))).why == "epoch"
        assert (await play.heartbeat(await play.join("a", "later"))).cursor.history == before.history

    @scene
    async def test_nothing_of_a_deleted_group_is_restored(self, play: Scene) -> None:
        """Also if writes were lost before the delete and nothing was sealed since."""
        await _fill(play)
        history = (await _lose(play, "a")).cursor.history
        await _deleted(play)
        await play.join("b")
        for epoch in (EPOCH, EPOCH + 2, EPOCH + 100, restore_epoch(history)):
            assert (await play.commit(at(9, epoch=epoch))).why == "epoch"
        assert list(await play.operable.checkpoints(play.group)) == []

    # --- editions
    @scene
    async def test_a_late_commit_of_an_older_edition_changes_nothing(self, play: Scene) -> None:
        await play.seal(1, at(5))
        for edition, ordinal, found in ((2, 5, 2), (1, 5, 2), (3, 5, 3), (9, 4, 3), (4, 6, 4), (3, 6, 4)):
            commit = structs.replace(at(ordinal, notes={"edition": edition}), edition=edition)
            assert (await play.commit(commit)).ok
            record = await play.other.seal(play.group, "0", 1, at(0))
            assert (record.edition, record.notes) == (found, {"edition": found})

    @scene
    async def test_a_seal_begins_a_new_count_of_editions(self, play: Scene) -> None:
        first_record = await play.seal(1, structs.replace(at(5), edition=8))
        assert first_record.edition == 0
        await play.commit(structs.replace(at(5), edition=4))
        assert (await play.seal(1)).edition == 4, "sealing again only reads"
        assert (await play.seal(2)).edition == 0
        assert (await play.commit(structs.replace(at(5, epoch=2, notes={"new": 1}), edition=1))).ok
        assert (await play.seal(2)).notes == {"new": 1}


async def _lose(play: Scene, instance: str) -> Ledger:
    """Proves to the store that it has lost writes."""
    me = await play.join(instance)
    before = (await play.heartbeat(me)).cursor
    ledger = await play.heartbeat(me, Cursor("another", before.history, before.revision))
    assert ledger.cursor.history == before.history + 1
    return ledger


async def _fill(play: Scene) -> None:
    """A group whose highest epoch is that of a record."""
    me = await play.join("a")
    granted(await play.swap(first("0", me.owner, epoch=EPOCH)))
    await play.seal(EPOCH, at(5))
    await play.seal(EPOCH + 2, at(5, partition="1"), "1")


async def _deleted(play: Scene) -> Group:
    await play.operable.delete(play.group)
    return play.group


async def _floor(play: Scene, member: Member) -> int:
    """As every instance sees it."""
    floor = (await play.heartbeat(member)).epoch_floor
    assert (await play.other.heartbeat(play.group, member, None)).epoch_floor == floor
    peeked = await play.operable.peek(play.group)
    assert peeked is not None
    assert peeked.epoch_floor == floor
    return floor


async def _nothing_counts(play: Scene) -> None:
    """Of what owners of the deleted group may send."""
    for partition, epoch in (("0", 1), ("0", EPOCH), ("0", EPOCH + 2), ("1", EPOCH + 2)):
        for client in (play.store, play.other):
            late: Checkpoint = at(9, epoch=epoch, partition=partition)
            assert (await client.commit(play.group, [late]))[0].why == "epoch"
            with pytest.raises(LeaseLost):
                await client.seal(play.group, partition, epoch, late)
