"""The part of the store contract that is about leases: compare and set, takeovers, passes, races, wake-ups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from evenflow.model import Member, Owner
from evenflow.testing.store.scene import PATIENCE_S, Scene, Stage, after, first, granted, present, scene

if TYPE_CHECKING:
    from evenflow.model import Change, Lease

NO_MEMBER = Owner("absent", 1)


class SwapContract(Stage):
    """Compare and set."""

    @scene
    async def test_a_claim_makes_the_lease_as_it_says(self, play: Scene) -> None:
        me = await play.join("a")
        change = first("0", me.owner, epoch=7, ttl_s=6.5, reason="unowned", late=True, ended=True)
        lease = granted(await play.swap(change))
        wanted = (lease.partition, lease.owner, lease.epoch, lease.ttl_s, lease.reason, lease.late, lease.ended)
        assert wanted == ("0", me.owner, 7, 6.5, "unowned", True, True)
        assert lease.history == 0
        assert lease.revision > 0
        assert lease.changed_at > 0
        assert (await play.other.heartbeat(play.group, me, None)).leases == (lease,)

    @scene
    async def test_a_change_replaces_every_part_of_the_lease(self, play: Scene) -> None:
        me = await play.join("a")
        old = granted(await play.swap(first("0", me.owner, reason="unowned", late=True, ended=True)))
        new = granted(await play.swap(after(old, None, ttl_s=0.0)))
        assert (new.owner, new.epoch, new.ttl_s, new.reason, new.late, new.ended) == (
            (None, old.epoch + 1, 0.0, "", False, False)
        )
        assert new.revision > old.revision

    @scene
    async def test_another_revision_refuses(self, play: Scene) -> None:
        me = await play.join("a")
        old = await play.claim(me)
        lease = granted(await play.swap(after(old, me.owner)))
        for change in (after(old, me.owner), first("0", me.owner), after(lease, None, revision=lease.revision + 1)):
            await _refused(play, change, "revision", lease)
        await _refused(play, after(lease, me.owner, partition="none"), "revision", None)

    @scene
    async def test_another_history_refuses(self, play: Scene) -> None:
        me = await play.join("a")
        lease = await play.claim(me)
        await _refused(play, after(lease, me.owner, history=lease.history + 1), "history", lease)
        cursor = (await play.heartbeat(me)).cursor
        await play.heartbeat(me, structs.replace(cursor, lineage="another"))
        await _refused(play, after(lease, me.owner), "history", lease)
        assert granted(await play.swap(after(lease, me.owner, history=1))).history == 1

    @scene
    async def test_an_owner_must_have_a_row_of_its_incarnation(self, play: Scene) -> None:
        me = await play.join("a")
        lease = await play.claim(me)
        for absent in (NO_MEMBER, Owner("a", me.incarnation + 1), Owner("b", me.incarnation)):
            await _refused(play, after(lease, absent), "owner", lease)
            await _refused(play, first("1", absent), "owner", None)

    @scene
    async def test_nothing_is_passed_to_who_has_left(self, play: Scene) -> None:
        me, heir = await play.join("a"), await play.join("b")
        lease = await play.claim(me)
        await play.other.heartbeat(play.group, structs.replace(heir, leaving=True), None)
        await _refused(play, after(lease, heir.owner), "owner", lease)
        again = await play.join("b", "another start")
        await _refused(play, after(lease, heir.owner), "owner", lease)
        assert granted(await play.swap(after(lease, again.owner))).owner == again.owner

    @scene
    async def test_a_group_without_members_refuses(self, play: Scene) -> None:
        await _refused(play, first("0", NO_MEMBER), "owner", None)

    @scene
    async def test_every_change_is_on_its_own(self, play: Scene) -> None:
        me = await play.join("a")
        zero = await play.claim(me, "0")
        outcomes = await play.store.swap(
            play.group,
            [first("1", me.owner), after(zero, NO_MEMBER), after(zero, me.owner), after(zero, None), first("2", None)],
        )
        assert [(outcome.partition, outcome.ok, outcome.why) for outcome in outcomes] == [
            ("1", True, ""),
            ("0", False, "owner"),
            ("0", True, ""),
            ("0", False, "revision"),
            ("2", True, ""),
        ]
        assert outcomes[3].lease == outcomes[2].lease
        leases = (await play.other.heartbeat(play.group, me, None)).leases
        assert {lease.partition: lease for lease in leases} == {
            "0": outcomes[2].lease,
            "1": outcomes[0].lease,
            "2": outcomes[4].lease,
        }

    @scene
    async def test_revisions_of_a_lease_only_grow(self, play: Scene) -> None:
        a, b = await play.join("a"), await play.join("b")
        lease = await play.claim(a)
        seen = [lease.revision]
        for client, owner in ((play.other, b), (play.store, None), (play.other, a), (play.store, a)):
            (outcome,) = await client.swap(play.group, [after(lease, owner.owner if owner else None)])
            lease = granted(outcome)
            seen.append(lease.revision)
        assert seen == sorted(set(seen))

    @scene
    async def test_one_of_eight_wins(self, play: Scene) -> None:
        members = [await play.join(f"m{number}") for number in range(8)]
        lease: Lease | None = None
        for _ in range(10):
            changes = [after(lease, m.owner) if lease else first("0", m.owner) for m in members]
            clients = [play.store, play.other] * 4
            answers = await asyncio.gather(*(c.swap(play.group, [x]) for c, x in zip(clients, changes, strict=True)))
            outcomes = [answer[0] for answer in answers]
            (winner,) = [outcome for outcome in outcomes if outcome.ok]
            lease = granted(winner)
            assert {(outcome.why, outcome.lease) for outcome in outcomes if not outcome.ok} == {("revision", lease)}
            assert (await play.heartbeat(members[0])).leases == (lease,)


class TakeoverContract(Stage):
    """A takeover is conditional on the mark that stood still."""

    @scene
    async def test_a_mark_that_stood_still_lets_it_be_taken(self, play: Scene) -> None:
        silent, me = await play.join("a"), await play.join("b")
        lease = await play.claim(silent)
        mark = await _mark(play, me, silent)
        taken = granted(await play.swap(after(lease, me.owner, still=(silent.owner, mark), reason="silent")))
        assert (taken.owner, taken.reason) == (me.owner, "silent")

    @scene
    async def test_a_heartbeat_in_between_refuses(self, play: Scene) -> None:
        silent, me = await play.join("a"), await play.join("b")
        lease = await play.claim(silent)
        mark = await _mark(play, me, silent)
        await play.other.heartbeat(play.group, silent, None)
        await _refused(play, after(lease, me.owner, still=(silent.owner, mark)), "mark", lease)
        await _refused(play, after(lease, me.owner, still=(silent.owner, None)), "mark", lease)

    @scene
    async def test_a_row_that_a_newer_start_took_counts_as_gone(self, play: Scene) -> None:
        silent, me = await play.join("a", "1"), await play.join("b")
        lease = await play.claim(silent)
        mark = await _mark(play, me, silent)
        newer = await play.join("a", "2")
        for still in ((silent.owner, mark), (silent.owner, newer.mark), (newer.owner, None)):
            await _refused(play, after(lease, me.owner, still=still), "mark", lease)
        assert granted(await play.swap(after(lease, me.owner, still=(silent.owner, None)))).owner == me.owner

    @scene
    async def test_a_row_that_is_gone_has_no_mark(self, play: Scene) -> None:
        me, left = await play.join("a"), await play.join("b")
        await play.heartbeat(structs.replace(left, leaving=True))
        lease = await play.claim(me)
        await _refused(play, after(lease, me.owner, still=(left.owner, left.mark)), "mark", lease)
        assert granted(await play.swap(after(lease, me.owner, still=(left.owner, None))))
        back = present(await play.heartbeat(structs.replace(left, nonce="its row comes back")))
        lease = (await play.heartbeat(me)).leases[0]
        await _refused(play, after(lease, me.owner, still=(back.owner, None)), "mark", lease)
        await _refused(play, after(lease, me.owner, still=(back.owner, left.mark)), "mark", lease)

    @scene
    async def test_a_taker_races_the_heartbeat_of_the_silent(self, play: Scene) -> None:
        """Whichever comes first, the other must see it: never both succeed."""
        silent, me = await play.join("a"), await play.join("b")
        lease = await play.claim(silent)
        for _ in range(20):
            mark = await _mark(play, me, silent)
            taken, answer = await asyncio.gather(
                play.store.swap(play.group, [after(lease, me.owner, still=(silent.owner, mark))]),
                play.other.heartbeat(play.group, silent, None),
            )
            shown = {found.partition: found for found in answer.leases}["0"]
            assert shown == (taken[0].lease if taken[0].ok else lease)
            assert taken[0].ok or taken[0].why == "mark"
            lease = granted(await play.swap(after(shown, silent.owner)))


class WatchContract(Stage):
    """Wake-ups. They may be spurious, so that no test here counts them."""

    @scene
    async def test_a_pass_wakes_the_heir_on_its_loop(self, play: Scene) -> None:
        me, heir = await play.join("a"), await play.join("b")
        lease = await play.claim(me)
        woken, loops = asyncio.Event(), []

        def wake() -> None:
            loops.append(asyncio.get_running_loop())
            woken.set()

        end = play.watchable.watch(play.group, heir.id, wake)
        await play.swap(after(lease, heir.owner))
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()
        assert set(loops) == {asyncio.get_running_loop()}
        end()
        end()

    @scene
    async def test_a_change_of_the_groups_state_wakes_everybody(self, play: Scene) -> None:
        await play.join("a")
        woken = [asyncio.Event(), asyncio.Event()]
        ends = [play.watchable.watch(play.group, id, event.set) for id, event in zip("ab", woken, strict=True)]
        await play.join("c", source="made")
        async with asyncio.timeout(PATIENCE_S):
            for event in woken:
                await event.wait()
        for end in ends:
            end()

    @scene
    async def test_who_has_ended_its_watch_is_not_woken(self, play: Scene) -> None:
        me, heir = await play.join("a"), await play.join("b")
        lease = await play.claim(me)
        calls: list[int] = []
        play.watchable.watch(play.group, heir.id, lambda: calls.append(1))()
        woken = asyncio.Event()
        end = play.watchable.watch(play.group, heir.id, woken.set)
        await play.swap(after(lease, heir.owner))
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()
        assert calls == []
        end()


async def _mark(play: Scene, looker: Member, silent: Member) -> int:
    (found,) = [member for member in (await play.heartbeat(looker)).members if member.owner == silent.owner]
    return found.mark


async def _refused(play: Scene, change: Change, why: str, lease: Lease | None) -> None:
    outcome = await play.swap(change)
    assert (outcome.partition, outcome.ok, outcome.why) == (change.partition, False, why)
    assert outcome.lease == lease
