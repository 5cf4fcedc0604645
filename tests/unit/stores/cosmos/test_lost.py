"""What comes late to a lease container in which no two documents change in one step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost
from evenflow.model import Checkpoint, Lease, Member, Position, next_epoch, restore_epoch
from tests.unit.stores.cosmos.scene import GROUP, PREFIX, scene

if TYPE_CHECKING:
    from evenflow.model import Ledger
    from evenflow.stores.cosmos.group_cache import Room
    from evenflow.stores.cosmos.store import CosmosLeasesStore
    from tests.unit.stores.cosmos.scene import Place


@scene
async def test_a_seal_that_meets_an_emptied_container_halfway_makes_no_record(place: Place) -> None:
    """It looks at the group again, and what it has left counts for nothing."""
    me = await place.join()
    lease = await place.claim(me.owner)
    since = (await place.heartbeat(me)).cursor
    await place.container.delete_item(f"{PREFIX}..0", f"{PREFIX}..0")
    other = place.client()
    write = place.store._progress._write

    async def late(room: Room, *arguments: Any) -> bool:
        for name in await place.ids():
            await place.container.delete_item(name, name)
        await other.heartbeat(GROUP, structs.replace(me, id="b", nonce="b", incarnation=0), since)
        return await write(room, *arguments)

    await place.store._leases.look_at(place.store._room(GROUP), "0")
    place.store._progress._write = late  # type: ignore[assignment]
    try:
        with pytest.raises(LeaseLost, match="has lost writes"):
            await place.seal(lease, Position("900", 900))
        assert f"{PREFIX}..0" in await place.ids()
        assert list(await other.checkpoints(GROUP)) == []
        later = next_epoch(0, 1)
        start = Checkpoint(partition="0", epoch=later, position=Position("7", 7), ordinal=0)
        assert (await other.seal(GROUP, "0", later, start)).position == start.position
    finally:
        await other.aclose()


@scene
async def test_a_client_that_has_not_heard_of_a_departure_brings_nobody_back(place: Place) -> None:
    stays, leaves = await place.join(), await place.join("leaves")
    other = place.client()
    try:
        since = (await other.heartbeat(GROUP, stays, None)).cursor
        assert (await place.heartbeat(structs.replace(leaves, leaving=True))).me is None
        assert (await other.heartbeat(GROUP, leaves, None)).me is None
        assert [member.id for member in (await other.heartbeat(GROUP, stays, since)).members] == [stays.id]
    finally:
        await other.aclose()


@scene
async def test_what_is_restored_by_whoever_knew_its_document_proves_no_second_loss(place: Place) -> None:
    """The epoch of what restores is of the new history; what was lost is of the old one."""
    me = await place.join()
    leases = [await place.claim(me.owner, partition) for partition in ("0", "1")]
    for lease in leases:
        await place.seal(lease)
    other = place.client()
    try:
        since = (await other.heartbeat(GROUP, me, None)).cursor
        for name in (f"{PREFIX}..0", f"{PREFIX}..1"):
            await place.container.delete_item(name, name)
        await place.commit(leases[0], 7, 8)
        (outcome,) = await other.commit(GROUP, [remembered("1", restore_epoch(1))])
        assert outcome.ok
        ledger = await other.heartbeat(GROUP, me, since)
        assert ledger.cursor.history == 1, "the first of them was counted"
        await place.container.delete_item(f"{PREFIX}..1", f"{PREFIX}..1")
        assert (await other.commit(GROUP, [remembered("1", restore_epoch(1))]))[0].ok
        assert (await other.heartbeat(GROUP, me, ledger.cursor)).cursor.history == 2, "what was restored is lost again"
    finally:
        await other.aclose()


@pytest.mark.parametrize("hears_first", [True, False])
def test_a_document_that_a_client_has_not_missed_yet_proves_no_second_loss(*, hears_first: bool) -> None:
    """Only now and then does it ask for everything; of the loss it may hear before its heartbeat."""

    @scene
    async def played(place: Place) -> None:
        me = await place.join()
        leases = [await place.claim(me.owner, partition) for partition in ("0", "1")]
        for lease in leases:
            await place.seal(lease)
        other = place.client()
        try:
            ledger = await other.heartbeat(GROUP, me, None)
            ledger = await other.heartbeat(GROUP, me, ledger.cursor)
            for name in (f"{PREFIX}..0", f"{PREFIX}..1"):
                await place.container.delete_item(name, name)
            await place.commit(leases[0], 7, 8)
            if hears_first:
                assert (await other.commit(GROUP, [remembered("2", 1)]))[0].ok
                assert other._room(GROUP).history == 1
            for _ in range(2):
                ledger = await other.heartbeat(GROUP, me, ledger.cursor)
                assert ledger.cursor.history == 1
                other._room(GROUP).is_listed = False
            assert ledger.leases == ()
        finally:
            await other.aclose()

    played()


@scene
async def test_a_listing_from_before_a_loss_proves_no_second_one(place: Place) -> None:
    """It is answered when the client has heard of the loss by another request."""
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    other = place.client()
    papers = place.store._papers
    changed = papers.changed

    async def late(*arguments: Any) -> Any:
        found = await changed(*arguments)
        papers.changed = changed  # type: ignore[method-assign]
        await lose_everything(place, other, known)
        await place.store.commit(GROUP, [remembered("1", 1)])
        return found

    try:
        known = await joined(other)
        ledger = await place.heartbeat(me)
        papers.changed = late  # type: ignore[assignment,method-assign]
        for _ in range(3):
            ledger = await place.heartbeat(me, ledger.cursor)
            assert ledger.cursor.history == 1
            place.store._room(GROUP).is_listed = False
        assert ledger.leases == ()
    finally:
        await other.aclose()


@scene
async def test_a_claim_from_before_a_loss_proves_no_second_one(place: Place) -> None:
    """Its answer comes when the new container is being listed."""
    me = await place.join()
    other = place.client()
    known = await joined(other)
    assert known.me is not None
    heir = known.me.owner
    sent, held = asyncio.Event(), asyncio.Event()
    papers = place.store._papers
    create, changed = papers.create, papers.changed

    async def slow(*arguments: Any) -> Any:
        papers.create = create  # type: ignore[method-assign]
        written = await create(*arguments)
        sent.set()
        await held.wait()
        return written

    async def meanwhile(*arguments: Any) -> Any:
        found = await changed(*arguments)
        if place.store._room(GROUP).history == 1:  # until then, the listing that finds out: another one follows
            held.set()
            await claim
        return found

    try:
        ledger = await place.heartbeat(me)
        papers.create = slow  # type: ignore[assignment,method-assign]
        claim = asyncio.create_task(place.swap(Lease(partition="0"), heir))
        await sent.wait()
        await lose_everything(place, other, known)
        papers.changed = meanwhile  # type: ignore[assignment,method-assign]
        for _ in range(3):
            ledger = await place.heartbeat(me, ledger.cursor)
            assert ledger.cursor.history == 1
            place.store._room(GROUP).is_listed = False
        assert ledger.leases == ()
    finally:
        await other.aclose()


async def joined(other: CosmosLeasesStore) -> Ledger:
    return await other.heartbeat(GROUP, Member(id="b", nonce="b", ttl_s=8.0), None)


async def lose_everything(place: Place, other: CosmosLeasesStore, known: Ledger) -> None:
    """The other client finds out first."""
    for name in await place.ids():
        await place.container.delete_item(name, name)
    assert known.me is not None
    assert (await other.heartbeat(GROUP, known.me, known.cursor)).cursor.history == 1


def remembered(partition: str, epoch: int) -> Checkpoint:
    return Checkpoint(partition=partition, epoch=epoch, position=Position("5", 5), ordinal=6)
