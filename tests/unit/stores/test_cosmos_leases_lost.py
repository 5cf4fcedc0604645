"""What comes late to a lease container in which no two documents change in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost
from evenflow.model import Checkpoint, Position, next_epoch
from tests.unit.stores.cosmos_leases_scene import GROUP, PREFIX, scene

if TYPE_CHECKING:
    from evenflow.stores.cosmos_leases_room import Room
    from tests.unit.stores.cosmos_leases_scene import Place


@scene
async def test_a_seal_that_meets_an_emptied_container_halfway_makes_no_record(place: Place) -> None:
    """It looks at the group again, and what it has left counts for nothing."""
    me = await place.join()
    lease = await place.claim(me.owner)
    since = (await place.beat(me)).cursor
    await place.container.delete_item(f"{PREFIX}..0", f"{PREFIX}..0")
    other = place.client()
    write = place.store._progress._write

    async def late(room: Room, *arguments: Any) -> bool:
        for name in await place.ids():
            await place.container.delete_item(name, name)
        await other.beat(GROUP, structs.replace(me, id="b", nonce="b", incarnation=0), since)
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
        since = (await other.beat(GROUP, stays, None)).cursor
        assert (await place.beat(structs.replace(leaves, leaving=True))).me is None
        assert (await other.beat(GROUP, leaves, None)).me is None
        assert [member.id for member in (await other.beat(GROUP, stays, since)).members] == [stays.id]
    finally:
        await other.aclose()
