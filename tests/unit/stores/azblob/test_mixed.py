"""One group of ours and of Azure's make: each sees the other's ownership and goes on from the other's checkpoints.

Epochs grow and progress does not go back although they drop what is ours from every blob that they write.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import json, structs

from evenflow.core.view import merge
from evenflow.errors import LeaseLost
from evenflow.model import Change, Checkpoint, Lease, Member, Owner, Position, next_epoch
from evenflow.operate.inspect.survey import find_group
from tests.unit.stores.azblob.scene import EXPIRY_S, GROUP, NAMES, ROOT, at, scene, strangers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.stores.azblob.client import Blob
    from evenflow.stores.azblob.store import AzureBlobStore
    from tests.servers.azurite import Azurite
    from tests.unit.stores.azblob.scene import Place

THEM = "6d1c1b0a-official"
SCRIPT = Path(__file__).parents[3] / "node" / "checkpoints.cjs"


# --- the layout
@scene
async def test_what_azures_store_reads_is_as_it_would_have_written_it(here: Place) -> None:
    me = await here.join("house-1")
    await here.claim(me.owner, "0")
    await here.claim(None, "1")
    await here.store.seal(GROUP, "0", 1, at(7, epoch=1))
    assert f"{ROOT}/ownership/0" in here.names()
    assert {name: found["owner_id"] or "" for name, found in (await here.listed()).items()} == {
        "0": "house-1",
        "1": "",
    }
    (read,) = await here.official.list_checkpoints(GROUP.namespace, GROUP.hub, GROUP.name)
    assert (read["partition_id"], read["offset"], read["sequence_number"]) == ("0", "700", 7)
    assert set(here.metadata("checkpoint/0")) == {"offset", "sequencenumber", "evenflow"}
    assert set(here.metadata("ownership/0")) == {"ownerid", "evenflow"}
    with here.azurite.container(here.name) as container:
        official = [blob for blob in container.list_blobs() if "evenflow/" not in blob.name]
    assert {blob.name: blob.size for blob in official} == {
        f"{ROOT}/checkpoint/0": 0,
        f"{ROOT}/ownership/0": 0,
        f"{ROOT}/ownership/1": 0,
    }


@scene
async def test_names_are_lower_case_as_azures(here: Place) -> None:
    await here.join("me")
    await here.take(THEM, "0")
    await here.checkpoint("0", 5)
    upper = structs.replace(GROUP, hub="SENSORS", name="$DEFAULT")
    ledger = await here.store.peek(upper)
    assert ledger is not None
    assert [lease.owner for lease in ledger.leases] == [Owner(THEM, 0)]
    assert [record.position for record in await here.store.checkpoints(upper)] == [Position("500", 5)]


@scene
async def test_a_group_is_found_whatever_the_case_of_its_name(here: Place) -> None:
    await here.take(THEM, "0")
    theirs = await find_group(here.store, "$Default", None)
    assert theirs.name == "$default", "as their blobs have it"
    await here.join()
    assert await find_group(here.store, "$default", None) == GROUP


@scene
async def test_azures_javascript_store_reads_ours_and_we_read_what_it_wrote(here: Place) -> None:
    me = await here.join("house-1")
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(7, epoch=lease.epoch))
    names = GROUP.namespace, GROUP.hub, GROUP.name
    command = "node", str(SCRIPT), here.azurite.connection_string, here.name, *names, THEM
    node = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await node.communicate()
    told = json.decode(said)
    assert [(found["partitionId"], found["ownerId"]) for found in told["owned"]] == [("0", "house-1")]
    assert [(found["offset"], found["sequenceNumber"]) for found in told["checkpoints"]] == [("700", 7)]
    assert [found["ownerId"] for found in told["claimed"]] == [THEM]
    assert (await here.lease("0")).owner == Owner(THEM, 0)
    (again,) = await here.claim(me.owner, "0")
    record = await here.store.seal(GROUP, "0", again.epoch, at(0, epoch=again.epoch))
    assert record.position == Position("900", 9)


# --- who is there
@scene
async def test_a_stranger_is_a_member_whose_mark_moves_when_it_renews(here: Place) -> None:
    me = await here.join()
    await here.take(THEM, "0", "1")
    first = await here.store.heartbeat(GROUP, me, None)
    seen = strangers(first)[THEM]
    assert (seen.ttl_s, seen.incarnation, seen.heartbeat_s) == (EXPIRY_S, 0, EXPIRY_S / 6 * 1.2)
    assert {lease.ttl_s for lease in first.leases} == {EXPIRY_S}
    still = await here.store.heartbeat(GROUP, me, first.cursor)
    assert (still.whole, still.leases, still.roster, [one.id for one in still.members]) == (
        False,
        (),
        False,
        [THEM],
    )
    await here.take(THEM, "0", "1")
    moved = await here.store.heartbeat(GROUP, me, still.cursor)
    assert (moved.leases, moved.members) == ((), ()), "who renews has changed nothing, and does not stand still"
    assert strangers(await here.store.heartbeat(GROUP, me, None))[THEM].mark > seen.mark
    await here.take("", "0", "1")
    gone = await here.store.heartbeat(GROUP, me, moved.cursor)
    assert (gone.roster, strangers(gone), [lease.owner for lease in gone.leases]) == (True, {}, [None, None])


@scene
async def test_a_stranger_steals_and_the_next_heartbeat_tells(here: Place) -> None:
    me = await here.join()
    (before,) = await here.claim(me.owner, "0")
    since = (await here.store.heartbeat(GROUP, me, None)).cursor
    assert list(await here.take(THEM, "0")) == ["0"]
    assert "evenflow" not in here.metadata("ownership/0"), "it drops what is ours"
    (told,) = (await here.store.heartbeat(GROUP, me, since)).leases
    assert (told.owner, told.epoch) == (Owner(THEM, 0), before.epoch)
    assert told.revision > before.revision


@scene
async def test_a_heartbeat_renews_so_that_a_stranger_cannot_take_what_it_saw_before(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    seen = await here.listed()
    await here.store.heartbeat(GROUP, me, None)
    late = [{**seen["0"], "owner_id": THEM}]
    assert list(await here.official.claim_ownership(late)) == []
    assert (await here.lease("0")).owner == me.owner


# --- epochs
@scene
async def test_a_listing_that_is_older_than_my_own_claim_is_put_right(here: Place) -> None:
    await _claimed_during_a_listing(here, here.store)


@scene
async def test_a_listing_that_is_older_than_anothers_claim_is_put_right(here: Place) -> None:
    other = here.client()
    try:
        await _claimed_during_a_listing(here, other)
    finally:
        await other.aclose()


async def _claimed_during_a_listing(here: Place, claimer: AzureBlobStore) -> None:
    """What a stranger has let go of is claimed while a listing, which still shows it as free, is on its way to me."""
    me = await here.join("me")
    other = (await claimer.heartbeat(GROUP, Member(id="other", nonce="other", ttl_s=8.0), None)).me
    assert other is not None
    await here.take(THEM, "0")
    view = merge(None, await here.store.heartbeat(GROUP, me, None))
    await claimer.heartbeat(GROUP, other, None)
    listed, go_on = asyncio.Event(), asyncio.Event()
    arrive = here.store._link.list

    async def late(prefix: str) -> Sequence[Blob]:
        found = await arrive(prefix)
        listed.set()
        await go_on.wait()
        return found

    await here.take("", "0")
    ledger = await claimer.heartbeat(GROUP, other, None)
    free = next(lease for lease in ledger.leases if lease.partition == "0")
    assert free.owner is None
    here.store._link.list = late  # type: ignore[method-assign]
    beating = asyncio.create_task(here.store.heartbeat(GROUP, me, view.cursor))
    await listed.wait()
    claim = Change(
        partition="0", revision=free.revision, history=0, owner=other.owner, epoch=next_epoch(free.epoch, 0), ttl_s=8.0
    )
    (outcome,) = await claimer.swap(GROUP, [claim])
    assert outcome.ok
    go_on.set()
    view = merge(view, await beating)
    view = merge(view, await here.store.heartbeat(GROUP, me, view.cursor))
    assert view.leases["0"].owner == other.owner
    assert view.leases["0"].revision == (await here.lease("0")).revision, "nothing could be swapped any more"


@scene
async def test_epochs_grow_although_strangers_forget_them(here: Place) -> None:
    me = await here.join()
    epochs = []
    for _ in range(3):
        (lease,) = await here.claim(me.owner, "0")
        epochs.append(lease.epoch)
        await here.take(THEM, "0")
    fresh = here.client()
    try:
        assert (await here.lease("0", fresh)).epoch == epochs[-1], "also for who comes anew"
    finally:
        await fresh.aclose()
    assert epochs == sorted(set(epochs))


@scene
async def test_an_epoch_that_is_too_low_by_now_is_refused_and_told(here: Place) -> None:
    """Another of ours had it in between, and this one did not see it."""
    me = await here.join()
    await here.take(THEM, "0")
    ledger = await here.store.heartbeat(GROUP, me, None)
    other = here.client()
    try:
        there = await other.peek(GROUP)
        assert there is not None
        steal = Change(partition="0", revision=there.leases[0].revision, history=0, owner=me.owner, epoch=1, ttl_s=8.0)
        assert (await other.swap(GROUP, [steal]))[0].ok
    finally:
        await other.aclose()
    await here.take(THEM, "0")
    late = structs.replace(steal, revision=ledger.leases[0].revision)
    (outcome,) = await here.store.swap(GROUP, [late])
    assert (outcome.ok, outcome.why) == (False, "revision")
    assert outcome.lease is not None
    assert outcome.lease.epoch == 1
    again = structs.replace(late, epoch=2, revision=outcome.lease.revision)
    assert (await here.store.swap(GROUP, [again]))[0].ok


@scene
async def test_a_seal_does_not_lower_a_floor_that_was_raised_while_it_looked(here: Place) -> None:
    """Otherwise the epoch of the swap that raised it could be given to a second one."""
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    slow = here.client()
    later: list[Lease] = []
    try:
        await slow.peek(GROUP)
        set_floor = slow._leases.set_floor

        async def overtaken(*where: Any) -> str | None:
            if not later:
                later.extend(await here.claim(me.owner, "0"))
            return await set_floor(*where)

        slow._leases.set_floor = overtaken  # type: ignore[method-assign,assignment]
        with pytest.raises(LeaseLost):
            await slow.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    finally:
        await slow.aclose()
    floor, _ = await here.store._leases.floor(here.store._room(GROUP), "0")
    assert floor.epoch == later[0].epoch > lease.epoch


@scene
async def test_an_epoch_that_somebody_had_while_another_asked_for_it_is_not_given_twice(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    (free,) = await here.claim(None, "0")
    slow = here.client()
    try:
        await slow.peek(GROUP)
        raised = slow._leases.set_floor
        claims: list[Lease] = []

        async def raised_and_overtaken(*where: Any) -> str | None:
            etag = await raised(*where)
            if not claims:
                claims.extend(await here.claim(me.owner, "0"))
                await here.take(THEM, "0")
                await here.take("", "0")
            return etag

        slow._leases.set_floor = raised_and_overtaken  # type: ignore[method-assign,assignment]
        epoch = next_epoch(free.epoch, 0)
        late = Change(partition="0", revision=free.revision, history=0, owner=me.owner, epoch=epoch, ttl_s=8.0)
        (outcome,) = await slow.swap(GROUP, [late])
    finally:
        await slow.aclose()
    assert claims[0].epoch == epoch
    assert (outcome.ok, outcome.why) == (False, "revision")


# --- stealing
@scene
async def test_what_was_stolen_is_settled_after_two_more_rounds_of_its_loser(here: Place) -> None:
    me = await here.join()
    await here.take(THEM, "0", "1")
    (lease,) = await here.claim(me.owner, "0")
    assert (lease.owner, lease.settled) == (me.owner, False)
    settled = []
    for _ in range(3):
        ledger = await here.store.heartbeat(GROUP, me, None)
        settled.append({one.partition: one.settled for one in ledger.leases}["0"])
        await here.take(THEM, "1")
    assert settled == [False, False, True]
    assert {name: found["owner_id"] for name, found in (await here.listed()).items()} == {"0": "me", "1": THEM}


@scene
async def test_who_lost_all_it_had_has_its_whole_expiry_to_notice(here: Place) -> None:
    store = here.client(peer_expiry_s=0.5)
    here.store, kept = store, here.store
    await kept.aclose()
    me = await here.join()
    await here.take(THEM, "0")
    (lease,) = await here.claim(me.owner, "0")
    assert not lease.settled
    ledger = await store.heartbeat(GROUP, me, None)
    while not ledger.leases[0].settled:
        await asyncio.sleep(0.05)
        ledger = await store.heartbeat(GROUP, me, None)
    assert ledger.leases[0].owner == me.owner


@scene
async def test_who_owns_next_what_was_stolen_waits_too(here: Place) -> None:
    """The robber dies or lets go: whom it robbed may still be handling it."""
    robber, other = here.store, here.client()
    me = await here.join()
    await here.take(THEM, "0", "1", "2")
    await here.claim(me.owner, "0", "1")
    (freed,) = await here.claim(None, "1")
    try:
        here.store = other
        heir = await here.join("heir")
        assert not (await here.lease("0")).settled
        assert [lease.settled for lease in await here.claim(heir.owner, "0", "1")] == [False, False]
        settled = []
        for _ in range(3):
            ledger = await other.heartbeat(GROUP, heir, None)
            settled.append([lease.settled for lease in ledger.leases if lease.owner == heir.owner])
            await here.take(THEM, "2")
        assert settled == [[False, False], [False, False], [True, True]]
        await other.heartbeat(GROUP, heir, None)
        assert "robbed" not in here.metadata("ownership/0")["evenflow"], "nobody after it has to wait"
    finally:
        here.store = robber
        await other.aclose()
    assert freed.owner is None


@scene
async def test_a_stranger_that_died_is_taken_over_on_condition_that_it_has_not_renewed(here: Place) -> None:
    me = await here.join()
    await here.take(THEM, "0")
    ledger = await here.store.heartbeat(GROUP, me, None)
    them = strangers(ledger)[THEM]
    take = Change(
        partition="0",
        revision=ledger.leases[0].revision,
        history=0,
        owner=me.owner,
        epoch=1,
        ttl_s=8.0,
        still=(them.owner, them.mark),
    )
    await here.take(THEM, "0")
    (refused,) = await here.store.swap(GROUP, [take])
    assert (refused.ok, refused.why) == (False, "mark")
    later = await here.store.heartbeat(GROUP, me, None)
    still, epoch = (them.owner, strangers(later)[THEM].mark), later.leases[0].epoch + 1
    (taken,) = await here.store.swap(GROUP, [structs.replace(take, still=still, epoch=epoch)])
    assert taken.ok
    assert taken.lease is not None
    assert taken.lease.settled


# --- checkpoints
@scene
async def test_a_strangers_checkpoint_is_gone_on_from_when_it_was_the_owner(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
    await here.take(THEM, "0")
    await here.checkpoint("0", 9)
    (lease,) = await here.claim(me.owner, "0")
    record = await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    assert (record.position, record.epoch) == (Position("900", 9), lease.epoch)
    assert record.ordinal == 4 + 6, "six more events were handled, by whomever"


@scene
async def test_an_owner_in_between_may_have_gone_back(here: Place) -> None:
    """It was its right, or that of whoever set its checkpoint by hand."""
    me = await here.join()
    await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", 1, at(50, epoch=1))
    await here.take(THEM, "0")
    await here.checkpoint("0", 20)
    (lease,) = await here.claim(me.owner, "0")
    record = await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    assert record.position == Position("2000", 20)
    assert record.ordinal > 51, "what orders two checkpoints goes on growing"


@scene
async def test_a_first_owner_goes_on_from_a_strangers_checkpoint(here: Place) -> None:
    await here.take(THEM, "0")
    await here.checkpoint("0", 9)
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    record = await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    assert record.position == Position("900", 9)


@scene
async def test_a_late_checkpoint_of_a_stranger_does_not_take_the_owners_progress_back(here: Place) -> None:
    me = await here.join()
    await here.take(THEM, "0")
    await here.checkpoint("0", 5)
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    assert (await here.store.commit(GROUP, [at(20, epoch=lease.epoch)]))[0].ok
    await here.checkpoint("0", 6)
    assert (await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))).position.sequence == 20
    await here.checkpoint("0", 7)
    assert (await here.store.commit(GROUP, [at(21, epoch=lease.epoch)]))[0].ok
    assert here.metadata("checkpoint/0")["sequencenumber"] == "21"


@scene
async def test_a_late_checkpoint_does_not_take_an_heir_behind_the_last_seal(here: Place) -> None:
    me = await here.join()
    await here.take(THEM, "0")
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(20, epoch=lease.epoch))
    await here.checkpoint("0", 6)
    (passed,) = await here.claim(me.owner, "0")
    heir = here.client()
    try:
        record = await heir.seal(GROUP, "0", passed.epoch, at(0, epoch=passed.epoch))
    finally:
        await heir.aclose()
    assert record.position.sequence == 20


@pytest.mark.parametrize("ending", ["crash", "handoff"])
def test_a_late_checkpoint_does_not_take_an_heir_behind_what_was_committed(azurite: Azurite, ending: str) -> None:
    @scene
    async def played(here: Place) -> None:
        me = await here.join()
        (lease,) = await here.claim(me.owner, "0")
        await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
        assert (await here.store.commit(GROUP, [at(1000, epoch=lease.epoch)]))[0].ok
        if ending == "crash":
            await here.store.heartbeat(GROUP, me, None)
        else:
            await here.claim(None, "0")
        await here.checkpoint("0", 5)
        record = await _sealed_by_an_heir(here)
        assert (record.position.sequence, record.ordinal) == (1000, 1001)

    played(azurite)


@scene
async def test_a_late_checkpoint_is_written_over_by_the_next_heartbeat_of_an_idle_owner(here: Place) -> None:
    """Whoever of theirs steals from it goes on from what the blob says."""
    me = await here.join()
    await here.take(THEM, "0", "1")
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(20, epoch=lease.epoch))
    await here.store.heartbeat(GROUP, me, None)
    await here.checkpoint("0", 6)
    await here.checkpoint("1", 7)
    await here.store.heartbeat(GROUP, me, None)
    assert here.metadata("checkpoint/0")["sequencenumber"] == "20"
    assert here.metadata("checkpoint/1")["sequencenumber"] == "7", "that is its owner's own"
    await here.take(THEM, "0")
    await here.checkpoint("0", 6)
    await here.store.heartbeat(GROUP, me, None)
    assert here.metadata("checkpoint/0")["sequencenumber"] == "6", "it is the owner again"


@scene
async def test_a_late_checkpoint_does_not_undo_a_seek_back(here: Place) -> None:
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(900, epoch=lease.epoch))
    (lease,) = await here.claim(me.owner, "0")
    standing = await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    sought = structs.replace(standing, position=Position("0", 0), ordinal=standing.ordinal + 1)
    assert (await here.store.commit(GROUP, [sought]))[0].ok
    await here.claim(None, "0")
    await here.checkpoint("0", 900)
    assert (await _sealed_by_an_heir(here)).position.sequence == 0


@scene
async def test_a_strangers_checkpoint_counts_although_the_first_of_ours_after_it_never_began(here: Place) -> None:
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(3, epoch=lease.epoch))
    await here.take(THEM, "0")
    await here.checkpoint("0", 9)
    await here.claim(me.owner, "0")
    assert (await _sealed_by_an_heir(here)).position.sequence == 9


async def _sealed_by_an_heir(here: Place) -> Checkpoint:
    """Another client's member, which has the partition next."""
    before, here.store = here.store, here.client()
    try:
        heir = await here.join("heir")
        (lease,) = await here.claim(heir.owner, "0")
        return await here.store.seal(GROUP, "0", lease.epoch, at(9000, epoch=lease.epoch, ordinal=0))
    finally:
        await here.store.aclose()
        here.store = before


@scene
async def test_who_was_robbed_commits_nothing_over_the_new_owners_checkpoint(here: Place) -> None:
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(3, epoch=lease.epoch))
    await here.take(THEM, "0")
    await here.checkpoint("0", 9)
    (outcome,) = await here.store.commit(GROUP, [at(5, epoch=lease.epoch)])
    assert (outcome.ok, outcome.why) == (False, "epoch")
    assert here.metadata("checkpoint/0")["sequencenumber"] == "9"


@scene
async def test_an_older_epoch_seals_nothing_that_a_stranger_has_rewritten(here: Place) -> None:
    me = await here.join()
    (old,) = await here.claim(me.owner, "0")
    await here.take(THEM, "0")
    await here.checkpoint("0", 9)
    await here.claim(me.owner, "0")
    other = here.client()
    try:
        with pytest.raises(LeaseLost):
            await other.seal(GROUP, "0", old.epoch, at(0, epoch=old.epoch))
    finally:
        await other.aclose()


# --- azure-eventhub on our store, beside azure-eventhub on Azure's
@scene
async def test_a_client_on_our_checkpoint_store_evens_out_with_one_on_azures(here: Place) -> None:
    from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore

    await here.take(THEM, "0", "1")
    ours = EvenflowCheckpointStore(f"{here.azurite.url(here.name)}&peer_expiry_s={EXPIRY_S}")
    try:
        for _ in range(2):  # the first heartbeat of an owner makes its row
            known = {found["partition_id"]: found for found in await ours.list_ownership(**NAMES)}
            granted = await ours.claim_ownership([{**known["1"], "owner_id": "mine"}])
        assert [found["partition_id"] for found in granted] == ["1"]
        await ours.update_checkpoint({**NAMES, "partition_id": "1", "offset": "900", "sequence_number": 9})
    finally:
        await ours.close()
    assert {name: found["owner_id"] for name, found in (await here.listed()).items()} == {"0": THEM, "1": "mine"}
    assert here.metadata("checkpoint/1")["sequencenumber"] == "9"
