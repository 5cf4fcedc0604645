"""The Steerable part of the store contract: operator requests, and the log of actions."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from evenflow.errors import Misconfigured
from evenflow.model import EVERYTHING, Action, GroupState, Member, Steering
from evenflow.ports import Steerable
from evenflow.testing.store.scene import PATIENCE_S, Scene, Stage, after, scene

BOUND = 1_100
"""More actions than any store keeps."""


class SteerContract(Stage):
    """For stores that are Steerable."""

    @scene
    async def test_a_pause_keeps_the_first_request_until_it_is_resumed(self, play: Scene) -> None:
        me = await play.join("a")
        steerable = play.steerable
        paused = await steerable.steer(play.group, Steering(pause=("0",)), said("pause", "anna", "disk"))
        assert (paused.pauses["0"].by, paused.pauses["0"].why) == ("anna", "disk")
        assert paused.pauses["0"].at > 0
        again = await steerable.steer(play.group, Steering(pause=("0", "1")), said("pause", "bert", "too"))
        assert again.pauses["0"] == paused.pauses["0"]
        assert again.pauses["1"].by == "bert"
        assert (await play.heartbeat(me)).state == again
        resumed = await steerable.steer(play.group, Steering(resume=("0", "7")), said("resume"))
        assert resumed.pauses == {"1": again.pauses["1"]}
        assert (await play.heartbeat(me)).state == resumed

    @scene
    async def test_a_visits_pause_gives_way_to_a_persons(self, play: Scene) -> None:
        await play.join("a")
        steerable = play.steerable
        visit = Steering(pause=("0", "1", "2"), visit="v1")
        state = await steerable.steer(play.group, visit, said("pause", "anna", "for a seek"))
        assert {request.visit for request in state.pauses.values()} == {"v1"}
        await steerable.steer(play.group, Steering(pause=("1",), visit="v2"), said("pause", "anna", "for another"))
        await steerable.steer(play.group, Steering(pause=("0",)), said("pause", "anna", "for a seek"))
        await steerable.steer(play.group, Steering(pause=("0",), visit="v2"), said("pause", "carl"))
        state = await _state(play)
        assert [(name, state.pauses[name].visit) for name in "012"] == [("0", ""), ("1", "v1"), ("2", "v1")]

    @scene
    async def test_a_visit_resumes_its_own_and_nothing_else(self, play: Scene) -> None:
        await play.join("a")
        steerable = play.steerable
        await steerable.steer(play.group, Steering(pause=("0", "1"), visit="v1"), said("pause"))
        await steerable.steer(play.group, Steering(pause=("2",), visit="v2"), said("pause"))
        await steerable.steer(play.group, Steering(pause=("0", EVERYTHING)), said("pause", "bert"))
        ended = Steering(resume=("0", "1", "2"), visit="v1")
        state = await steerable.steer(play.group, ended, said("resume"))
        assert set(state.pauses) == {"0", "2", EVERYTHING}, "also while a person has paused the whole group"
        assert await _state(play) == state
        assert (await steerable.steer(play.group, Steering(resume=(EVERYTHING,)), said("resume"))).pauses == {}

    @scene
    async def test_to_resume_everything_ends_every_pause(self, play: Scene) -> None:
        await play.join("a")
        steerable = play.steerable
        state = await steerable.steer(play.group, Steering(pause=("0", EVERYTHING)), said("pause"))
        assert state.pause_of("0") is not None
        assert state.pause_of("anything") is not None
        with pytest.raises(Misconfigured, match=r"[Rr]esume the group"):
            await steerable.steer(play.group, Steering(resume=("0",)), said("resume"))
        assert await _state(play) == state, "what is refused changes nothing"
        assert [action.kind for action in await steerable.actions(play.group)] == ["pause"]
        assert (await steerable.steer(play.group, Steering(resume=(EVERYTHING,)), said("resume"))).pauses == {}

    @scene
    async def test_a_request_to_retire_goes_with_the_one_who_leaves(self, play: Scene) -> None:
        me, other = await play.join("a"), await play.join("b")
        steering = Steering(retire=(me.owner, other.owner))
        state = await play.steerable.steer(play.group, steering, said("retire", "anna", "old machine"))
        assert set(state.retired) == {str(me.owner), str(other.owner)}
        lease = await play.claim(me)
        assert (await play.heartbeat(structs.replace(me, leaving=True))).me is not None, "a lease names it"
        assert str(me.owner) in (await _state(play)).retired
        assert (await play.swap(after(lease, None))).ok
        ledger = await play.heartbeat(structs.replace(me, leaving=True))
        assert ledger.me is None
        assert set(ledger.state.retired) == {str(other.owner)}
        assert set((await _state(play)).retired) == {str(other.owner)}

    @scene
    async def test_a_newer_start_is_not_the_one_who_was_asked_to_retire(self, play: Scene) -> None:
        me = await play.join("a", "1")
        await play.steerable.steer(play.group, Steering(retire=(me.owner,)), said("retire"))
        await play.join("a", "2")
        assert (await _state(play)).retired == {}

    @scene
    async def test_redrives_are_counted(self, play: Scene) -> None:
        await play.join("a")
        await play.steerable.steer(play.group, Steering(redrive=("0", "1")), said("redrive"))
        state = await play.steerable.steer(play.group, Steering(redrive=("0",)), said("redrive"))
        assert state.redrives == {"0": 2, "1": 1}

    @scene
    async def test_a_group_that_does_not_exist_cannot_be_steered(self, play: Scene) -> None:
        with pytest.raises(Misconfigured):
            await play.steerable.steer(play.group, Steering(pause=("0",)), said("pause"))
        assert list(await play.steerable.actions(play.group)) == []
        other = structs.replace(play.group, name="other")
        await play.join("a")
        await play.steerable.steer(play.group, Steering(pause=("0",)), said("pause"))
        ledger = await play.store.heartbeat(other, Member(id="a", nonce="n", ttl_s=8.0), None)
        assert ledger.state == GroupState(), "groups are independent of each other"

    @scene
    async def test_what_was_steered_outlives_its_clients(self, play: Scene) -> None:
        """As after a restart of everybody: a client that comes later sees the same, and so does a first heartbeat."""
        me = await play.join("a", source="made")
        steering = Steering(pause=("0",), retire=(me.owner,), redrive=("1",))
        state = await play.steerable.steer(play.group, steering, said("pause", "anna", "später"))
        again = self.make_client(play.store)
        try:
            ledger = await again.heartbeat(play.group, Member(id="b", nonce="n", ttl_s=8.0), None)
            assert ledger.state == state
            assert ledger.state.source == "made"
            assert isinstance(again, Steerable)
            assert await again.actions(play.group) == await play.steerable.actions(play.group)
        finally:
            await again.aclose()

    @scene
    async def test_the_hub_that_a_group_belongs_to_stays_when_it_is_steered(self, play: Scene) -> None:
        me = await play.join("a")
        await play.steerable.steer(play.group, Steering(pause=("0",)), said("pause"))
        ledger = await play.heartbeat(structs.replace(me, source="made"))
        assert (ledger.state.source, set(ledger.state.pauses)) == ("made", {"0"})
        await play.steerable.steer(play.group, Steering(resume=("0",)), said("resume"))
        assert await _state(play) == GroupState("made")

    @scene
    async def test_concurrent_operator_requests_are_all_kept(self, play: Scene) -> None:
        await play.join("a")
        first, second = play.steerable, play.other
        assert isinstance(second, Steerable)
        requests = [Steering(pause=(str(number),), redrive=("0",)) for number in range(20)]
        clients = [first, second] * 10
        await asyncio.gather(
            *(
                client.steer(play.group, request, said("pause", f"person {number}"))
                for number, (client, request) in enumerate(zip(clients, requests, strict=True))
            )
        )
        state = await _state(play)
        assert {name: request.by for name, request in state.pauses.items()} == {
            str(number): f"person {number}" for number in range(20)
        }
        assert state.redrives == {"0": 20}
        assert len(await first.actions(play.group)) == 20

    @scene
    async def test_steering_wakes_everybody(self, play: Scene) -> None:
        await play.join("a")
        steerable = play.steerable
        woken = [asyncio.Event(), asyncio.Event()]
        ends = [play.watchable.watch(play.group, id, event.set) for id, event in zip("ab", woken, strict=True)]
        await steerable.steer(play.group, Steering(pause=(EVERYTHING,)), said("pause"))
        async with asyncio.timeout(PATIENCE_S):
            for event in woken:
                await event.wait()
        for end in ends:
            end()

    @scene
    async def test_steering_makes_no_heartbeat_report_leases_or_members(self, play: Scene) -> None:
        me = await play.join("a")
        await play.claim(me)
        since = (await play.heartbeat(me)).cursor
        await play.steerable.steer(play.group, Steering(pause=("0",)), said("pause"))
        ledger = await play.heartbeat(me, since)
        assert (ledger.whole, ledger.leases, ledger.roster, ledger.members) == (False, (), False, ())
        assert set(ledger.state.pauses) == {"0"}
        assert ledger.cursor.history == since.history

    @scene
    async def test_actions_are_listed_newest_first_and_outlive_the_group(self, play: Scene) -> None:
        await play.join("a")
        steerable = play.steerable
        await steerable.steer(play.group, Steering(pause=("0",)), said("pause", "anna", "disk", "0"))
        await steerable.record(play.group, said("seek", "bert", "again", "0: 5 -> 1"))
        await play.operable.delete(play.group)
        await steerable.record(play.group, said("delete", "carl", "gone", "all of it"))
        listed = [(action.kind, action.by, action.why, action.what) for action in await steerable.actions(play.group)]
        assert listed == [
            ("delete", "carl", "gone", "all of it"),
            ("seek", "bert", "again", "0: 5 -> 1"),
            ("pause", "anna", "disk", "0"),
        ]
        assert all(action.at > 0 for action in await steerable.actions(play.group))
        assert [action.kind for action in await steerable.actions(play.group, limit=1)] == ["delete"]
        assert list(await steerable.actions(play.group, limit=0)) == []
        assert list(await play.operable.groups()) == []
        await play.join("b")
        assert (await _state(play)).pauses == {}, "a group that is made again owes nothing to the old"

    @scene
    async def test_only_so_many_actions_are_kept(self, play: Scene) -> None:
        other = structs.replace(play.group, name="other")
        await play.steerable.record(other, said("drop"))
        for number in range(BOUND):
            await play.steerable.record(play.group, said("drop", what=str(number)))
        found = await play.steerable.actions(play.group, limit=2 * BOUND)
        assert 100 <= len(found) < BOUND
        assert [action.what for action in found[:2]] == [str(BOUND - 1), str(BOUND - 2)]
        assert len(await play.steerable.actions(other)) == 1

    @scene
    async def test_what_is_kept_of_words_is_bounded(self, play: Scene) -> None:
        await play.join("a")
        long = said("pause", "x" * 10_000, "y" * 100_000, "z" * 1_000_000)
        state = await play.steerable.steer(play.group, Steering(pause=("0",)), long)
        assert len(state.pauses["0"].by) + len(state.pauses["0"].why) < 2_000
        (action,) = await play.steerable.actions(play.group)
        assert len(action.what) < 100_000


def said(kind: str, by: str = "anna", why: str = "", what: str = "") -> Action:
    return Action(kind=kind, by=by, why=why, what=what)


async def _state(play: Scene) -> GroupState:
    ledger = await play.operable.peek(play.group)
    assert ledger is not None
    return ledger.state
