"""A taker and the heartbeat of a silent owner, which write different documents, held at the moments that matter: never
do both succeed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from tests.unit.stores.cosmos.scene import GROUP, Place, scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import Lease, Member

pytestmark = pytest.mark.process


class Gate:
    """Holds the first call of a method, of one object, until it is opened."""

    def __init__(self, owner: object, method: str) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()
        self._call: Callable[..., Any] = getattr(owner, method)
        setattr(owner, method, self._held)

    async def _held(self, *args: Any, **more: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            await self._open.wait()
        return await self._call(*args, **more)

    def open(self) -> None:
        self._open.set()


async def silent_owner(place: Place) -> tuple[Member, Member, Lease]:
    """The owner of a lease, whose heartbeats come from another client, and somebody who will take it."""
    owner = await place.join("owner")
    lease = await place.claim(owner.owner)
    return owner, await place.join("taker"), lease


async def mark_of(place: Place, taker: Member, owner: Member) -> int:
    ledger = await place.heartbeat(taker)
    (found,) = [member for member in ledger.members if member.owner == owner.owner]
    return found.mark


@scene
async def test_an_owner_that_comes_back_between_the_poke_and_the_write_keeps_its_lease(place: Place) -> None:
    owner, taker, lease = await silent_owner(place)
    theirs = place.client()
    try:
        since = (await theirs.heartbeat(GROUP, owner, None)).cursor
        mark = await mark_of(place, taker, owner)
        gate = Gate(place.store._leases, "write")
        taking = asyncio.create_task(place.swap(lease, taker.owner, still=(owner.owner, mark)))
        await gate.reached.wait()
        ledger = await theirs.heartbeat(GROUP, owner, since)
        gate.open()
        outcome = await taking
        assert (outcome.ok, outcome.why) == (False, "mark")
        assert ledger.me is not None
        assert (await place.leases())["0"].owner == owner.owner
    finally:
        await theirs.aclose()


@scene
async def test_an_owner_whose_lease_is_taken_while_it_makes_sure_is_told_so(place: Place) -> None:
    owner, taker, lease = await silent_owner(place)
    theirs = place.client()
    try:
        since = (await theirs.heartbeat(GROUP, owner, None)).cursor
        mark = await mark_of(place, taker, owner)
        taken = Gate(place.store._leases, "write")
        taking = asyncio.create_task(place.swap(lease, taker.owner, still=(owner.owner, mark)))
        await taken.reached.wait()
        sure = Gate(theirs._leases, "make_sure")
        beating = asyncio.create_task(theirs.heartbeat(GROUP, owner, since))
        await sure.reached.wait()
        taken.open()
        outcome = await taking
        sure.open()
        ledger = await beating
        assert outcome.ok
        assert [shown.owner for shown in ledger.leases] == [taker.owner]
    finally:
        await theirs.aclose()


@scene
async def test_an_owner_whose_row_was_gone_keeps_what_it_comes_back_to(place: Place) -> None:
    """A taker that saw no row has nothing to poke."""
    owner, taker, lease = await silent_owner(place)
    name = place.store._room(GROUP).names.member("owner")
    theirs = place.client()
    try:
        since = (await theirs.heartbeat(GROUP, owner, None)).cursor
        await place.container.delete_item(name, name)
        place.store._room(GROUP).is_listed = False
        await place.heartbeat(taker)
        gate = Gate(place.store._leases, "write")
        taking = asyncio.create_task(place.swap(lease, taker.owner, still=(owner.owner, None)))
        await gate.reached.wait()
        await theirs.heartbeat(GROUP, owner, since)
        gate.open()
        outcome = await taking
        assert not outcome.ok
        assert (await place.leases())["0"].owner == owner.owner
    finally:
        await theirs.aclose()


@scene
async def test_nothing_stays_with_an_heir_that_leaves_meanwhile(place: Place) -> None:
    _, heir, lease = await silent_owner(place)
    theirs = place.client()
    try:
        gate = Gate(place.store._leases, "write")
        passing = asyncio.create_task(place.swap(lease, heir.owner))
        await gate.reached.wait()
        assert (await theirs.heartbeat(GROUP, structs.replace(heir, leaving=True), None)).me is None
        gate.open()
        outcome = await passing
        assert (outcome.ok, outcome.why) == (False, "owner")
        found = (await place.leases())["0"]
        assert (found.owner, found.epoch > lease.epoch + 1) == (None, True)
    finally:
        await theirs.aclose()
