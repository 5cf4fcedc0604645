"""The Operable part of the store contract: reading groups, and deleting them."""

from __future__ import annotations

from msgspec import structs

from evenflow.model import Member
from evenflow.testing.store.scene import Scene, Stage, after, at, first, granted, present, scene


class OperateContract(Stage):
    """For stores that are Operable."""

    @scene
    async def test_groups_are_listed(self, play: Scene) -> None:
        assert list(await play.operable.groups()) == []
        another = structs.replace(play.group, name="another")
        await play.join("a")
        await play.store.heartbeat(another, Member(id="a", nonce="n", ttl_s=8.0), None)
        assert sorted(await play.operable.groups(), key=str) == sorted([play.group, another], key=str)

    @scene
    async def test_a_peek_is_the_whole_ledger_and_no_heartbeat(self, play: Scene) -> None:
        assert await play.operable.peek(play.group) is None
        me = await play.join("a", source="made")
        await play.claim(me)
        ledger = await play.heartbeat(me)
        for _ in range(2):
            seen = await play.operable.peek(play.group)
            assert seen == structs.replace(ledger, me=None)
        assert list(await play.operable.groups()) == [play.group]

    @scene
    async def test_checkpoints_are_listed(self, play: Scene) -> None:
        assert list(await play.operable.checkpoints(play.group)) == []
        sealed = [await play.seal(1, at(0, partition=partition), partition) for partition in "01"]
        found = await play.operable.checkpoints(play.group)
        assert sorted(found, key=lambda record: record.partition) == sealed

    @scene
    async def test_moves_are_listed_newest_first_with_their_reasons(self, play: Scene) -> None:
        assert list(await play.operable.moves(play.group)) == []
        a, b = await play.join("a"), await play.join("b")
        claimed = granted(await play.swap(first("0", a.owner, reason="unowned")))
        passed = granted(await play.swap(after(claimed, b.owner, reason="even shares")))
        await play.swap(after(claimed, a.owner, reason="refused"))
        assert (await play.swap(first("1", None, reason="no owner before and after"))).ok
        released = granted(await play.swap(after(passed, None, reason="stopping")))
        listed = [(m.before, m.after, m.epoch, m.reason, m.at) for m in await play.operable.moves(play.group)]
        assert listed == [
            ("b", None, released.epoch, "stopping", released.changed_at),
            ("a", "b", passed.epoch, "even shares", passed.changed_at),
            (None, "a", claimed.epoch, "unowned", claimed.changed_at),
        ]
        assert [move.reason for move in await play.operable.moves(play.group, limit=1)] == ["stopping"]
        assert list(await play.operable.moves(play.group, limit=0)) == []

    @scene
    async def test_a_deleted_group_is_forgotten_and_others_stay(self, play: Scene) -> None:
        other = structs.replace(play.group, name="other")
        neighbour = present(await play.store.heartbeat(other, Member(id="a", nonce="n", ttl_s=8.0), None))
        await play.store.seal(other, "0", 1, at(2))
        me = await play.join("a")
        await play.claim(me)
        await play.seal(1)
        await play.operable.delete(play.group)
        await play.operable.delete(play.group)
        assert list(await play.operable.groups()) == [other]
        assert await play.operable.peek(play.group) is None
        assert list(await play.operable.checkpoints(play.group)) == []
        assert list(await play.operable.moves(play.group)) == []
        assert (await play.commit(at(1))).why == "epoch"
        assert present(await play.store.heartbeat(other, neighbour, None)).incarnation == neighbour.incarnation
        assert (await play.store.seal(other, "0", 1, at(0))).ordinal == 2

    @scene
    async def test_a_group_that_is_created_again_shares_nothing_with_the_old_one(self, play: Scene) -> None:
        """Instances may still have a cursor or an incarnation of the deleted group."""
        me = await play.join("a", "1")
        await play.claim(me)
        since = (await play.heartbeat(me)).cursor
        await play.operable.delete(play.group)
        newer = await play.join("b")
        assert newer.incarnation > me.incarnation
        for _ in range(20):
            ledger = await play.heartbeat(newer)
        assert ledger.cursor.history == since.history
        seen = await play.heartbeat(me, since)
        assert (seen.whole, seen.roster, seen.leases) == (True, True, ())
        assert seen.cursor.history == since.history, "nothing was lost"
        assert list(await play.operable.moves(play.group)) == []
        await play.claim(newer)
        assert [move.after for move in await play.operable.moves(play.group)] == ["b"]

    @scene
    async def test_a_peek_is_as_good_a_cursor_as_any(self, play: Scene) -> None:
        """A heartbeat with the peek's cursor does not report again what the peek showed."""
        a, b = await play.join("a"), await play.join("b")
        await play.claim(a)
        peeked = await play.operable.peek(play.group)
        assert peeked is not None
        ledger = await play.heartbeat(b, peeked.cursor)
        assert (ledger.whole, ledger.leases, ledger.roster) == (False, (), False)
        assert [member.id for member in ledger.members] == ["a"]
