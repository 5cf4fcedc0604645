"""What an Azure Blob store does when somebody deletes its blobs, or when the service goes back in time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.errors import Corrupt, LeaseLost, Misconfigured, StoreUnavailable
from evenflow.model import Change, Checkpoint, Member, Position, next_epoch
from evenflow.stores import rules
from tests.unit.stores.azblob.scene import GROUP, ROOT, at, scene

if TYPE_CHECKING:
    from evenflow.stores.azblob.group_cache import Room
    from tests.servers.azurite import Azurite
    from tests.unit.stores.azblob.scene import Place


def first(**facts: object) -> Change:
    return structs.replace(Change(partition="0", revision=0, history=0, owner=None, epoch=1, ttl_s=8.0), **facts)


@scene
async def test_a_lease_that_somebody_deleted_is_noticed_by_whoever_knew_it(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0", "1")
    since = (await here.store.heartbeat(GROUP, me, None)).cursor
    here.delete(f"{ROOT}/ownership/0")
    ledger = await here.store.heartbeat(GROUP, me, since)
    assert (ledger.cursor.history, ledger.whole) == (1, True)
    assert [lease.partition for lease in ledger.leases] == ["1"]
    later = await here.store.heartbeat(GROUP, me, ledger.cursor)
    assert later.cursor.history == 1, "once for all"


@scene
async def test_a_lease_that_somebody_deleted_is_not_made_again_under_its_old_epoch(here: Place) -> None:
    """A newcomer knows nothing of it; the epochs do."""
    me = await here.join()
    await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
    here.delete(f"{ROOT}/ownership/0")
    newcomer = here.client()
    try:
        (outcome,) = await newcomer.swap(GROUP, [first(owner=me.owner)])
        assert (outcome.ok, outcome.why) == (False, "history")
        anew = first(owner=me.owner, history=1, epoch=next_epoch(0, 1))
        assert (await newcomer.swap(GROUP, [anew]))[0].ok
    finally:
        await newcomer.aclose()


@scene
async def test_who_comes_late_to_make_a_lease_proves_no_loss(here: Place) -> None:
    late = here.client()
    try:
        me = await here.join()
        assert (
            await late.heartbeat(GROUP, structs.replace(me, id="late", nonce="l", incarnation=0), None)
        ).leases == ()
        await here.claim(me.owner, "0")
        await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
        (outcome,) = await late.swap(GROUP, [first(owner=me.owner)])
        assert (outcome.ok, outcome.why) == (False, "revision")
        assert (await late.heartbeat(GROUP, me, None)).cursor.history == 0
    finally:
        await late.aclose()


@scene
async def test_a_maker_that_ended_between_epoch_and_lease_stops_nobody(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    here.delete(f"{ROOT}/ownership/0")  # as if it had not been written yet
    other = here.client()
    try:
        assert (await other.swap(GROUP, [first(owner=me.owner)]))[0].ok
    finally:
        await other.aclose()


@scene
async def test_a_checkpoint_that_somebody_deleted_is_restored_by_the_next_commit(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
    here.delete(f"{ROOT}/checkpoint/0")
    (outcome,) = await here.store.commit(GROUP, [at(4, epoch=1)])
    assert outcome.ok, "it restores what was lost"
    assert (await here.store.heartbeat(GROUP, me, None)).cursor.history == 1
    later = next_epoch(0, 1)
    assert (await here.store.seal(GROUP, "0", later, at(0, epoch=later))).position.sequence == 4


@scene
async def test_a_checkpoint_that_somebody_deleted_is_known_to_an_heir(here: Place) -> None:
    """Who starts at the latest event would leave out all that was not handled yet."""
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(500, epoch=lease.epoch))
    await here.store.commit(GROUP, [at(600, epoch=lease.epoch)])
    await here.store.heartbeat(GROUP, me, None)
    here.delete(f"{ROOT}/checkpoint/0")
    other = here.client()
    here.store, first = other, here.store
    try:
        heir = await here.join("heir")
        (lease,) = await here.claim(heir.owner, "0")
        record = await other.seal(GROUP, "0", lease.epoch, at(9000, epoch=lease.epoch, ordinal=0))
    finally:
        here.store = first
        await other.aclose()
    assert (record.position.sequence, record.ordinal) == (600, 601)


@scene
async def test_a_service_that_has_gone_back_in_time_is_noticed(here: Place) -> None:
    """As after a failover to another region, which has not had the last writes."""
    me = await here.join()
    with here.azurite.container(here.name) as container:
        blob = container.get_blob_client(f"{ROOT}/ownership.evenflow/members/me")
        before = dict(blob.get_blob_properties().metadata)
        since = (await here.store.heartbeat(GROUP, me, None)).cursor
        blob.set_blob_metadata(before)
    ledger = await here.store.heartbeat(GROUP, me, since)
    assert (ledger.cursor.history, ledger.whole) == (1, True)


@scene
async def test_notes_that_are_too_large_for_metadata_are_kept_elsewhere(here: Place) -> None:
    notes = {"parked": ["naïve 家 🏠" * 50 for _ in range(40)]}
    large = Checkpoint(partition="0", epoch=1, position=Position("5", 5), ordinal=6, notes=notes)
    await here.store.seal(GROUP, "0", 1, at(0, epoch=1))
    for ordinal in (6, 7):
        assert (await here.store.commit(GROUP, [structs.replace(large, ordinal=ordinal)]))[0].ok
    other = here.client()
    try:
        record = await other.seal(GROUP, "0", 1, at(0, epoch=1))
        assert (record.notes, record.ordinal) == (notes, 7)
        assert [found.notes for found in await other.checkpoints(GROUP)] == [notes]
    finally:
        await other.aclose()
    kept = [name for name in here.names() if "/notes/" in name]
    assert len(kept) == 1, "the older ones are gone"
    assert (await here.store.commit(GROUP, [at(8, epoch=1)]))[0].ok
    assert not [name for name in here.names() if "/notes/" in name]


@scene
async def test_facts_that_are_too_large_for_metadata_are_kept_too(here: Place) -> None:
    me = await here.join()
    load = {f"partition {number}": number / 1000 for number in range(1000)}
    since = None
    for facts in (load, load, {"0": 0.5}):
        ledger = await here.store.heartbeat(GROUP, structs.replace(me, load=facts), since)
        assert ledger.me is not None
        assert ledger.me.load == facts
        other = here.client()
        try:
            peeked = await other.peek(GROUP)
            assert peeked is not None
            assert [member.load for member in peeked.members] == [facts]
        finally:
            await other.aclose()
        since = ledger.cursor


# --- what others may have done to it
@scene
async def test_records_of_a_newer_version_are_refused_by_name(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
    for name in ("ownership/0", "checkpoint/0"):
        with here.azurite.container(here.name) as container:
            blob = container.get_blob_client(f"{ROOT}/{name}")
            metadata = dict(blob.get_blob_properties().metadata)
            newer = metadata["evenflow"].removesuffix("}") + ',"v":99}'
            blob.set_blob_metadata({**metadata, "evenflow": newer})
            with pytest.raises(Misconfigured, match=r"newer evenflow \(layout 99"):
                await (here.store.peek(GROUP) if "ownership" in name else here.store.checkpoints(GROUP))
            blob.set_blob_metadata({**metadata, "evenflow": "nonsense"})
            with pytest.raises(Corrupt, match="somebody has changed it"):
                await (here.store.peek(GROUP) if "ownership" in name else here.store.checkpoints(GROUP))
            blob.set_blob_metadata(metadata)


@scene
async def test_a_checkpoint_that_was_set_by_hand_counts(here: Place) -> None:
    """Who changes the offset alone leaves ours beside it, and it says another thing."""
    await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
    with here.azurite.container(here.name) as container:
        blob = container.get_blob_client(f"{ROOT}/checkpoint/0")
        metadata = dict(blob.get_blob_properties().metadata)
        blob.set_blob_metadata({**metadata, "offset": "900", "sequencenumber": "9"})
    other = here.client()
    try:
        assert (await other.seal(GROUP, "0", 2, at(0, epoch=2))).position == Position("900", 9)
    finally:
        await other.aclose()


@scene
async def test_a_container_that_is_gone_is_waited_for_once_it_was_there(here: Place) -> None:
    me = await here.join()
    with here.azurite.container(here.name) as container:
        container.delete_container()
        with pytest.raises(StoreUnavailable, match="goes on when it is back"):
            await here.store.heartbeat(GROUP, me, None)
        stranger = here.client()
        try:
            with pytest.raises(Misconfigured, match="az storage container create"):
                await stranger.heartbeat(GROUP, me, None)
        finally:
            await stranger.aclose()
        container.create_container()
    assert (await here.store.heartbeat(GROUP, me, None)).me is not None


@scene
async def test_a_group_that_goes_in_the_middle_of_a_heartbeat_is_made_again_by_the_next_one(here: Place) -> None:
    me = await here.join()
    here.delete(*here.names())
    newcomer = structs.replace(me, id="newcomer", nonce="n", incarnation=0)
    with pytest.raises(StoreUnavailable, match="has just been deleted"):
        await here.store.heartbeat(GROUP, newcomer, None)
    assert (await here.store.heartbeat(GROUP, newcomer, None)).me is not None


@scene
async def test_a_death_in_the_middle_of_a_heartbeat_is_no_loss_and_all_is_taken_over(here: Place) -> None:
    """It had renewed one lease, and neither the other nor its row."""
    dying, other = here.store, here.client()
    me = await here.join()
    await here.claim(me.owner, "0", "1")
    try:
        first = await other.heartbeat(GROUP, Member(id="heir", nonce="heir", ttl_s=8.0), None)
        heir = first.me
        assert heir is not None
        await dying.peek(GROUP)
        room = dying._rooms[GROUP]
        half, look = [found for found in room.of(me.owner) if found.lease.partition == "0"], other._look

        async def look_after_half_a_heartbeat(theirs: Room) -> None:
            if half:
                await dying._leases.renew(room, [half.pop()], room.number() + 1_000)
            await look(theirs)

        other._look = look_after_half_a_heartbeat  # type: ignore[method-assign,assignment]
        ledger = await other.heartbeat(GROUP, heir, first.cursor)
        later = await other.heartbeat(GROUP, heir, ledger.cursor)
        assert (ledger.cursor.history, later.cursor.history) == (0, 0)
        (mark,) = (member.mark for member in other._rooms[GROUP].members().values() if member.id == "me")
        for name in ("0", "1"):
            lease = await here.lease(name, other)
            take = Change(
                partition=name,
                revision=lease.revision,
                history=0,
                owner=heir.owner,
                epoch=lease.epoch + 1,
                ttl_s=8.0,
                still=(me.owner, mark),
            )
            (outcome,) = await other.swap(GROUP, [take])
            assert (outcome.why, outcome.ok) == ("", True)
        last = await other.heartbeat(GROUP, heir, later.cursor)
        assert last.cursor.history == 0
    finally:
        await other.aclose()


@scene
async def test_who_peeks_takes_nothing_from_what_a_heartbeat_tells(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    ledger = await here.store.heartbeat(GROUP, me, None)
    await here.take("official", "0")
    await here.store.peek(GROUP)
    later = await here.store.heartbeat(GROUP, me, ledger.cursor)
    assert [str(lease.owner) for lease in later.leases] == ["official#0"]


def test_a_member_whose_clock_is_hours_behind_stays(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    @scene
    async def played(here: Place) -> None:
        me, other, real = await here.join(), here.client(), time.time
        since = (await here.store.heartbeat(GROUP, me, None)).cursor
        try:
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda: real() - 7_200)
                await other.heartbeat(GROUP, Member(id="late", nonce="late", ttl_s=8.0), None)
        finally:
            await other.aclose()
        for _ in range(2):
            ledger = await here.store.heartbeat(GROUP, me, since)
        assert {member.id for member in ledger.members} == {"me", "late"}

    played(azurite)


def test_a_row_that_nobody_wrote_for_long_is_removed(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    @scene
    async def played(here: Place) -> None:
        monkeypatch.setattr(rules, "FORGOTTEN_AFTER_S", 1.5)
        await here.join("gone")
        me = await here.join()
        since = (await here.store.heartbeat(GROUP, me, None)).cursor
        while f"{ROOT}/ownership.evenflow/members/gone" in here.names():
            await here.store.heartbeat(GROUP, me, since)
            await asyncio.sleep(0.2)
        assert f"{ROOT}/ownership.evenflow/members/me" in here.names()

    played(azurite)


@scene
async def test_epochs_that_somebody_deleted_are_not_given_again(here: Place) -> None:
    """Although one of another make has dropped the lease's own."""
    me = await here.join()
    (lease,) = await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", lease.epoch, at(0, epoch=lease.epoch))
    here.delete(f"{ROOT}/evenflow/epochs/0")
    await here.take("official", "0")
    other = here.client()
    here.store, first = other, here.store
    try:
        heir = await here.join("heir")
        found = await here.lease("0")
        claim = Change(partition="0", revision=found.revision, history=0, owner=heir.owner, epoch=1, ttl_s=8.0)
        (outcome,) = await other.swap(GROUP, [claim])
        assert (outcome.ok, outcome.why) == (False, "history")
        await other.heartbeat(GROUP, heir, None)
        (later,) = await here.claim(heir.owner, "0")
        await other.seal(GROUP, "0", later.epoch, at(0, epoch=later.epoch))
        (late,) = await first.commit(GROUP, [at(70, epoch=lease.epoch)])
        assert (later.epoch > lease.epoch, late.ok) == (True, False)
    finally:
        here.store = first
        await other.aclose()


@scene
async def test_large_notes_of_a_partition_with_a_long_name_are_read(here: Place) -> None:
    name = "\u30b3" * 200
    record = structs.replace(at(3, epoch=1, partition=name), notes={"a": "x" * 9_000})
    await here.store.seal(GROUP, name, 1, record)
    (found,) = await here.store.checkpoints(GROUP)
    assert (found.partition, found.notes) == (name, record.notes)


@scene
async def test_a_seal_that_meets_an_emptied_container_halfway_makes_no_record(here: Place) -> None:
    """No two blobs change in one step, so that it looks at the group again, and what it has left counts for nothing."""
    me = await here.join()
    await here.claim(me.owner, "0")
    since = (await here.store.heartbeat(GROUP, me, None)).cursor
    other = here.client()
    write = here.store._progress._write

    async def late(room: Room, *arguments: Any) -> bool:
        here.delete(*here.names())
        assert (await other.heartbeat(GROUP, structs.replace(me, id="b", nonce="b", incarnation=0), since)).began == 0
        return await write(room, *arguments)

    here.store._progress._write = late  # type: ignore[assignment]
    try:
        with pytest.raises(LeaseLost, match="has lost writes"):
            await here.store.seal(GROUP, "0", 1, at(900, epoch=1))
        later = next_epoch(0, 1)
        assert list(await other.checkpoints(GROUP)) == []
        assert (await other.seal(GROUP, "0", later, at(7, epoch=later))).position.sequence == 7
    finally:
        await other.aclose()


@scene
async def test_a_row_that_comes_late_is_nobodys(here: Place) -> None:
    """A request that was on its way when its member left: the service has no rule that refuses it."""
    stays, leaves = await here.join(), await here.join("leaves")
    row = f"{ROOT}/ownership.evenflow/members/leaves"
    metadata = here.metadata("ownership.evenflow/members/leaves")
    assert (await here.store.heartbeat(GROUP, structs.replace(leaves, leaving=True), None)).me is None
    here.write(row, metadata)
    other = here.client()
    try:
        for store in (here.store, other):
            assert [member.id for member in (await store.heartbeat(GROUP, stays, None)).members] == [stays.id]
            (outcome,) = await store.swap(GROUP, [first(owner=leaves.owner)])
            assert outcome.why == "owner"
        again = await here.store.heartbeat(GROUP, structs.replace(leaves, nonce="again", incarnation=0), None)
        assert again.me is not None
        assert again.me.incarnation > leaves.incarnation
    finally:
        await other.aclose()


@scene
async def test_a_client_that_has_not_heard_of_a_departure_takes_its_late_row_away(here: Place) -> None:
    stays, leaves = await here.join(), await here.join("leaves")
    other = here.client()
    try:
        since = (await other.heartbeat(GROUP, stays, None)).cursor
        assert (await here.store.heartbeat(GROUP, structs.replace(leaves, leaving=True), None)).me is None
        assert (await other.heartbeat(GROUP, leaves, None)).me is None
        assert f"{ROOT}/ownership.evenflow/members/leaves" not in here.names()
        assert [member.id for member in (await other.heartbeat(GROUP, stays, since)).members] == [stays.id]
    finally:
        await other.aclose()
