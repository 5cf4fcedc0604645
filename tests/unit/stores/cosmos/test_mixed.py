"""A lease container that processors of another make use, too: what they write is read, and what they drop is missed by
nobody."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from evenflow.errors import LeaseLost
from evenflow.model import Owner, Position
from tests.unit.stores.cosmos.scene import EXPIRY_S, GROUP, PREFIX, Place, changed, scene

pytestmark = pytest.mark.process

THEIRS = Owner("dotnet", 0)


# --- who is there
@scene
async def test_a_stranger_is_a_member_with_an_expiry_of_its_own(place: Place) -> None:
    await place.their_lease("0")
    me = await place.join()
    ledger = await place.heartbeat(me)
    (stranger,) = [member for member in ledger.members if member.foreign]
    assert (stranger.owner, stranger.ttl_s) == (THEIRS, EXPIRY_S)
    assert [(lease.partition, lease.owner, lease.ttl_s) for lease in ledger.leases] == [("0", THEIRS, EXPIRY_S)]


@scene
async def test_its_renewals_are_signs_of_life_and_no_news(place: Place) -> None:
    await place.their_lease("0")
    me = await place.join()
    first = await place.heartbeat(me)
    still = await place.heartbeat(me, first.cursor)
    assert [member.id for member in still.members] == ["dotnet"], "it stood still"
    await place.their_lease("0")
    moved = await place.heartbeat(me, still.cursor)
    assert (moved.leases, moved.roster, moved.members) == ((), False, ())


@scene
async def test_one_that_is_gone_is_forgotten(place: Place) -> None:
    await place.their_lease("0")
    me = await place.join()
    await place.heartbeat(me)
    await place.their_lease("0", Owner=None)
    ledger = await place.heartbeat(me)
    assert [member.id for member in ledger.members] == ["me"]
    assert ledger.leases[0].owner is None


@scene
async def test_a_lease_that_they_deleted_is_gone_and_nothing_was_lost(place: Place) -> None:
    """After a split they make leases for the children, and delete that of the parent."""
    await place.their_lease("0")
    me = await place.join()
    since = (await place.heartbeat(me)).cursor
    await place.their_lease("1")
    await place.container.delete_item(f"{PREFIX}..0", f"{PREFIX}..0")
    place.store._room(GROUP)._whole_at_s = 0.0
    ledger = await place.heartbeat(me, since)
    assert (ledger.whole, [lease.partition for lease in ledger.leases]) == (True, ["1"])
    assert ledger.cursor.history == since.history


# --- going on
@scene
async def test_ours_goes_on_from_their_continuation(place: Place) -> None:
    await place.their_lease("0", Owner=None, ContinuationToken='"1234"')
    me = await place.join()
    lease = await place.claim(me.owner)
    assert (await place.seal(lease)).position == Position("1234", 1234)
    document = await place.document()
    assert (document["Owner"], document["ContinuationToken"]) == ("me", '"1234"')
    assert (await place.commit(lease, 1300, 66)).ok
    assert (await place.document())["ContinuationToken"] == '"1300"'


@scene
async def test_who_never_checkpointed_left_nothing(place: Place) -> None:
    await place.their_lease("0", Owner=None, ContinuationToken=None)
    me = await place.join()
    lease = await place.claim(me.owner)
    assert (await place.seal(lease, Position("7", 7))).position == Position("7", 7)


@scene
async def test_what_is_released_they_can_take_and_go_on_with(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    await place.commit(lease, 40, 40)
    assert (await place.swap(lease, None)).ok
    document = await place.document()
    assert (document["Owner"], document["ContinuationToken"], document["Mode"]) == (None, '"40"', "Incremental Feed")
    assert document["FeedRange"] == {"Range": {"min": "", "max": "3F"}}
    assert (document["version"], document["LeaseToken"]) == (0, "0")


@scene
async def test_notes_and_ordinals_outlive_those_who_carry_properties_along(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    await place.commit(lease, 40, 12, tries=3)
    properties = (await place.document())["properties"]
    await place.their_lease("0", Owner=None, ContinuationToken='"40"', properties=properties)
    again = await place.seal(await place.claim(me.owner))
    assert (again.ordinal, again.notes) == (12, {"tries": 3}), "nothing was handled meanwhile"
    properties = (await place.document())["properties"]
    await place.their_lease("0", Owner=None, ContinuationToken='"45"', properties=properties)
    later = await place.seal(await place.claim(me.owner))
    assert (later.position, later.ordinal, later.notes) == (Position("45", 45), 17, {})


@scene
async def test_a_continuation_that_a_person_has_set_is_gone_on_from(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    await place.commit(lease, 40, 12)
    document = await place.document()
    await place.container.upsert_item({**document, "ContinuationToken": '"10"', "Owner": None})
    again = await place.seal(await place.claim(me.owner))
    assert again.position == Position("10@-3F", 10)
    assert again.ordinal > 12, "progress is counted on"


# --- epochs
@scene
async def test_no_epoch_is_given_twice_whatever_they_drop(place: Place) -> None:
    me = await place.join()
    given = []
    for _ in range(20):
        lease = await place.claim(me.owner)
        given.append(lease.epoch)
        await place.their_lease("0")  # without anything of ours
        other = place.client()
        try:
            await place.store.aclose()
            place.store = other  # one that has seen nothing
            me = await place.join()
        except BaseException:
            await other.aclose()
            raise
    assert given == sorted(set(given))


@scene
async def test_who_was_robbed_by_them_is_fenced(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    assert (await place.commit(lease, 5, 5)).ok
    await place.their_lease("0", ContinuationToken='"5"')
    assert (await place.commit(lease, 6, 6)).why == "epoch"
    with pytest.raises(LeaseLost, match="'dotnet'"):
        await place.seal(lease)
    ledger = await place.heartbeat(me)
    assert ledger.leases[0].owner == THEIRS
    assert ledger.leases[0].epoch > lease.epoch
    again = await place.claim(me.owner)
    assert again.epoch > ledger.leases[0].epoch
    assert (await place.commit(lease, 7, 7)).why == "epoch", "also once it is ours again"
    assert (await place.seal(again)).position == Position("5", 5)


@scene
async def test_many_that_are_free_are_claimed_in_one_call(place: Place) -> None:
    """Their epochs are given above one floor for each: one claim must not stand in the way of another."""
    for number in range(8):
        await place.their_lease(str(number), Owner=None)
    me = await place.join()
    claims = [changed(lease, me.owner) for lease in (await place.leases()).values()]
    assert [outcome.ok for outcome in await place.store.swap(GROUP, claims)] == [True] * 8


# --- taking
@scene
async def test_what_is_taken_from_the_living_is_not_begun_before_it_has_noticed(place: Place) -> None:
    await place.their_lease("0")
    me = await place.join()
    began_s = monotonic()
    outcome = await place.swap((await place.leases())["0"], me.owner)
    assert outcome.lease is not None
    assert (outcome.ok, outcome.lease.settled) == (True, False)
    while not (await place.leases())["0"].settled:
        await asyncio.sleep(0.05)
        me = await place.join()
    assert EXPIRY_S * 17 / 60 <= monotonic() - began_s < EXPIRY_S


@scene
async def test_what_is_taken_from_the_dead_is_begun_at_once(place: Place) -> None:
    await place.their_lease("0")
    me = await place.join()
    ledger = await place.heartbeat(me)
    (mark,) = [member.mark for member in ledger.members if member.foreign]
    await place.their_lease("0")  # it lives
    refused = await place.swap(ledger.leases[0], me.owner, still=(THEIRS, mark))
    assert (refused.ok, refused.why) == (False, "mark")
    ledger = await place.heartbeat(me)
    (mark,) = [member.mark for member in ledger.members if member.foreign]
    taken = await place.swap(ledger.leases[0], me.owner, still=(THEIRS, mark))
    assert taken.lease is not None
    assert (taken.ok, taken.lease.settled) == (True, True)


# --- timestamps
@scene
async def test_alone_timestamps_are_ahead_and_beside_others_they_are_the_time(place: Place) -> None:
    me = await place.join()
    await place.claim(me.owner, "0")
    alone = (await place.document("0"))["timestamp"]
    await place.their_lease("1")
    shown = (await place.document("1"))["timestamp"]
    assert alone[:16] > shown[:16], "one who comes takes our owner for alive"
    await place.heartbeat(me)
    await place.heartbeat(me)
    beside = (await place.document("0"))["timestamp"]
    assert beside[:19] >= shown[:19]
    assert beside < alone


@scene
async def test_who_is_told_that_nobody_else_takes_part_renews_nothing(place: Place) -> None:
    await place.store.aclose()
    place.store = place.client("&shared=no")
    me = await place.join()
    await place.claim(me.owner)
    before = await place.document()
    for _ in range(3):
        me = await place.join()
    assert await place.document() == before
    assert not place.store.shared


# --- partitions that ended
@scene
async def test_one_that_has_ended_is_out_of_their_sight_and_stays_known_to_ours(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    await place.commit(lease, 9, 9)
    outcome = await place.swap(lease, None, ended=True)
    assert outcome.ok
    assert not [name for name in await place.ids() if name.startswith(f"{PREFIX}..")]
    assert outcome.lease is not None
    known = place.client()
    try:
        place.store, before = known, place.store
        await before.aclose()
        found = (await place.leases())["0"]
        assert (found.ended, found.owner, found.epoch) == (True, None, outcome.lease.epoch)
        record = await place.seal(found)
        assert (record.position, record.epoch) == (Position("9", 9), found.epoch)
        with pytest.raises(LeaseLost):
            await place.seal(lease)
    finally:
        place.store = known


@scene
async def test_what_was_left_half_done_is_finished_by_the_next_heartbeat(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.swap(lease, None, ended=True)
    (past,) = [one async for one in place.container.read_all_items() if ".past." in one["id"]]
    await place.container.create_item({**past, "id": f"{PREFIX}..0"})
    await place.container.delete_item(past["id"], past["id"])
    await place.store.aclose()
    place.store = place.client()
    await place.join()
    assert past["id"] in await place.ids()
    assert f"{PREFIX}..0" not in await place.ids()
