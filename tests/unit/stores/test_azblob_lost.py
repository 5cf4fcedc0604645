"""What an Azure Blob store does when somebody deletes its blobs, or when the service goes back in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.errors import Corrupt, Misconfigured, StoreUnavailable
from evenflow.model import Change, Checkpoint, Position, next_epoch
from tests.unit.stores.azblob_scene import GROUP, ROOT, at, scene

if TYPE_CHECKING:
    from tests.unit.stores.azblob_scene import Place


def first(**facts: object) -> Change:
    return structs.replace(Change(partition="0", revision=0, history=0, owner=None, epoch=1, ttl_s=8.0), **facts)


@scene
async def test_a_lease_that_somebody_deleted_is_noticed_by_whoever_knew_it(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0", "1")
    since = (await here.store.beat(GROUP, me, None)).cursor
    here.delete(f"{ROOT}/ownership/0")
    ledger = await here.store.beat(GROUP, me, since)
    assert (ledger.cursor.history, ledger.whole) == (1, True)
    assert [lease.partition for lease in ledger.leases] == ["1"]
    later = await here.store.beat(GROUP, me, ledger.cursor)
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
        assert (await late.beat(GROUP, structs.replace(me, id="late", nonce="l", incarnation=0), None)).leases == ()
        await here.claim(me.owner, "0")
        await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
        (outcome,) = await late.swap(GROUP, [first(owner=me.owner)])
        assert (outcome.ok, outcome.why) == (False, "revision")
        assert (await late.beat(GROUP, me, None)).cursor.history == 0
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
async def test_a_checkpoint_that_somebody_deleted_is_sealed_from_memory(here: Place) -> None:
    me = await here.join()
    await here.claim(me.owner, "0")
    await here.store.seal(GROUP, "0", 1, at(3, epoch=1))
    here.delete(f"{ROOT}/checkpoint/0")
    (outcome,) = await here.store.commit(GROUP, [at(4, epoch=1)])
    assert (outcome.ok, outcome.why) == (False, "epoch")
    assert (await here.store.beat(GROUP, me, None)).cursor.history == 1
    later = next_epoch(0, 1)
    assert (await here.store.seal(GROUP, "0", later, at(4, epoch=later))).position.sequence == 4


@scene
async def test_a_service_that_has_gone_back_in_time_is_noticed(here: Place) -> None:
    """As after a failover to another region, which has not had the last writes."""
    me = await here.join()
    with here.azurite.container(here.name) as container:
        blob = container.get_blob_client(f"{ROOT}/ownership.evenflow/members/me")
        before = dict(blob.get_blob_properties().metadata)
        since = (await here.store.beat(GROUP, me, None)).cursor
        blob.set_blob_metadata(before)
    ledger = await here.store.beat(GROUP, me, since)
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
        ledger = await here.store.beat(GROUP, structs.replace(me, load=facts), since)
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
            await here.store.beat(GROUP, me, None)
        stranger = here.client()
        try:
            with pytest.raises(Misconfigured, match="az storage container create"):
                await stranger.beat(GROUP, me, None)
        finally:
            await stranger.aclose()
        container.create_container()
    assert (await here.store.beat(GROUP, me, None)).me is not None
