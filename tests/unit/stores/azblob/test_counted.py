"""An Azure Blob store counts a loss once, whatever is on its way when instances find out; and a second loss counts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import structs

from evenflow.errors import StoreUnavailable
from evenflow.model import Group, Member, next_epoch, restore_epoch
from evenflow.stores.azblob.names import Names
from evenflow.stores.azblob.store import AzureBlobStore
from evenflow.testing.simulated.blobs import Service
from evenflow.testing.store.scene import at, first, present

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.model import Change, Ledger, Outcome
    from evenflow.stores.azblob.client import Blob, Link

    Step = Callable[[], Awaitable[object]]

GROUP = Group("homes.example", "sensors", "alerts")
NAMES = Names(GROUP)
NEW = next_epoch(0, 1)
LEASE, RECORD, FLOOR = NAMES.lease("0"), NAMES.record("0"), NAMES.floor("0")


class Interrupted(Service):
    """A service whose requests a test can put something in front of, or behind."""

    def __init__(self) -> None:
        super().__init__(time.time)
        self.before: dict[tuple[str, str], Step] = {}
        """Happens once, before such a request takes effect."""
        self.after: dict[tuple[str, str], Step] = {}
        """Happens once, between the effect of such a request and its answer."""

    def empty(self) -> None:
        self._blobs.clear()

    async def head(self, name: str) -> Blob | None:
        await self._happen(self.before, "head", name)
        return await super().head(name)

    async def list(self, prefix: str) -> Sequence[Blob]:
        found = await super().list(prefix)
        await self._happen(self.after, "list", prefix)
        return found

    async def create(self, name: str, metadata: Any, content: bytes = b"") -> str | None:
        await self._happen(self.before, "create", name)
        etag = await super().create(name, metadata, content)
        await self._happen(self.after, "create", name)
        return etag

    @staticmethod
    async def _happen(steps: dict[tuple[str, str], Step], kind: str, name: str) -> None:
        if (step := steps.pop((kind, name), None)) is not None:
            await step()


class Client(AzureBlobStore):
    def __init__(self, service: Service) -> None:
        self._service = service
        super().__init__("https://simulated.blob.core.windows.net", "leases", credential="a2V5")

    def _line(self) -> Link:
        return cast("Link", self._service)

    async def member(self, instance: str) -> Ledger:
        return await self.heartbeat(GROUP, Member(id=instance, nonce=instance, ttl_s=8.0), None)

    async def change(self, change: Change) -> Outcome:
        (outcome,) = await self.swap(GROUP, [change])
        return outcome

    async def told(self, ledger: Ledger) -> Ledger:
        """The ledger that follows, for the same member."""
        return await self.heartbeat(GROUP, present(ledger), ledger.cursor)


class Scene:
    """Two instances, of which the first has sealed partition 0 and committed."""

    def __init__(self, service: Interrupted) -> None:
        self.service = service
        self.one, self.two = Client(service), Client(service)
        self.first: Ledger
        self.second: Ledger

    async def begin(self) -> None:
        self.first, self.second = await self.one.member("one"), await self.two.member("two")
        assert (await self.one.change(first("0", present(self.first).owner))).ok
        await self.one.seal(GROUP, "0", 1, at(2))
        assert (await self.one.commit(GROUP, [at(5)]))[0].ok
        self.first, self.second = await self.one.told(self.first), await self.two.told(self.second)

    def claim(self, history: int, instance: str = "one") -> Change:
        owner = present(self.first if instance == "one" else self.second).owner
        return first("0", owner, history=history)

    async def history(self) -> int:
        """As both are told in the end; two heartbeats show what the first of them proved."""
        for _ in range(2):
            self.first, self.second = await self.one.told(self.first), await self.two.told(self.second)
        assert self.first.cursor.history == self.second.cursor.history
        return self.first.cursor.history

    async def lose_everything(self) -> None:
        """The container is emptied, and the second instance finds out first."""
        self.service.empty()
        self.second = await self.two.told(self.second)
        assert self.second.cursor.history == 1

    async def go_on(self) -> None:
        """The first instance restores what it remembers, claims anew, and handles on."""
        self.first = await self.one.told(self.first)
        assert (await self.one.commit(GROUP, [at(6, epoch=restore_epoch(1))]))[0].ok
        assert (await self.one.change(self.claim(1))).ok
        assert (await self.one.seal(GROUP, "0", NEW, at(0))).ordinal == 6
        assert (await self.one.commit(GROUP, [at(7, epoch=NEW)]))[0].ok
        assert await self.history() == 1


def scene(test: Callable[[Scene], Awaitable[None]]) -> Callable[[], None]:
    """Make an async test of a scene into a plain one."""

    async def play() -> None:
        found = Scene(Interrupted())
        await found.begin()
        await test(found)

    def played() -> None:
        asyncio.run(play())

    played.__name__, played.__qualname__, played.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return played


# --- one loss
@scene
async def test_what_is_restored_by_whoever_wrote_it_proves_no_second_loss(play: Scene) -> None:
    """The epoch of what restores is of the new history; what was lost is of the old one."""
    await play.lose_everything()
    await play.go_on()


@scene
async def test_a_claim_that_is_sent_again_proves_no_second_loss(play: Scene) -> None:
    """What the first request raised was sealed in the old history."""
    await play.service.delete(LEASE)
    assert await play.history() == 1
    play.service.before["create", LEASE] = lost_on_its_way
    with pytest.raises(StoreUnavailable):
        await play.two.change(play.claim(1, "two"))
    assert (await play.two.change(play.claim(1, "two"))).ok
    assert await play.history() == 1


@scene
async def test_a_claim_that_another_one_overtakes_proves_no_loss(play: Scene) -> None:
    """Between its two looks, at the floor and at the record, the other claims, and seals."""

    async def overtake() -> None:
        assert (await play.one.change(play.claim(1))).ok
        await play.one.seal(GROUP, "0", NEW, at(0))

    await play.lose_everything()
    assert await play.history() == 1
    play.service.before["head", RECORD] = overtake
    assert (await play.two.change(play.claim(1, "two"))).why == "revision"
    assert await play.history() == 1


@scene
async def test_a_claim_that_meets_a_group_that_is_being_deleted_proves_no_loss(play: Scene) -> None:
    """Its floor is gone, and its record is not yet."""

    async def delete() -> None:
        last = play.service._blobs[RECORD]
        await play.one.delete(GROUP)
        play.service._blobs[RECORD] = last

    play.service.before["head", FLOOR] = delete
    await play.service.delete(LEASE)
    play.two._room(GROUP).held.clear()
    assert (await play.two.change(play.claim(0, "two"))).why == "epoch"
    assert await play.history() == 0


@scene
async def test_a_listing_from_before_a_loss_proves_no_second_one(play: Scene) -> None:
    """It is answered when the client has heard of the loss by another request."""

    async def lose() -> None:
        await play.lose_everything()
        await play.one.commit(GROUP, [at(6)])

    play.service.after["list", NAMES.heartbeats] = lose
    assert await play.history() == 1
    assert not play.first.leases


@scene
async def test_a_claim_from_before_a_loss_proves_no_second_one(play: Scene) -> None:
    """Its answer comes when the new container is being listed."""
    sent, held = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        sent.set()
        await held.wait()

    async def answer() -> None:
        if play.one._room(GROUP).history == 0:
            play.service.after["list", NAMES.heartbeats] = answer  # the listing that finds out: another one follows
            return
        held.set()
        await claim

    play.service.after["create", NAMES.lease("1")] = wait
    claim = asyncio.create_task(play.one.change(first("1", present(play.second).owner)))
    await sent.wait()
    await play.lose_everything()
    play.service.after["list", NAMES.heartbeats] = answer
    assert await play.history() == 1


# --- a second loss
@pytest.mark.parametrize("name", [LEASE, RECORD, FLOOR])
def test_a_second_loss_counts(name: str) -> None:
    @scene
    async def played(play: Scene) -> None:
        await play.lose_everything()
        await play.go_on()
        await play.service.delete(name)
        await play.one.commit(GROUP, [at(8, epoch=NEW)])
        third = Client(play.service)
        ledger = await third.member("three")
        known = {lease.partition: lease for lease in ledger.leases}.get("0")
        change = first("0", present(ledger).owner, history=1)
        if known is not None:
            change = structs.replace(change, revision=known.revision, epoch=known.epoch + 1)
        await third.change(change)
        assert await play.history() == 2

    played()


@scene
async def test_what_was_restored_and_is_lost_again_counts(play: Scene) -> None:
    await play.lose_everything()
    play.first = await play.one.told(play.first)
    for history in (1, 2):
        assert (await play.one.commit(GROUP, [at(6, epoch=restore_epoch(1))]))[0].ok
        assert await play.history() == history
        await play.service.delete(RECORD)


async def lost_on_its_way() -> None:
    raise StoreUnavailable("it never arrived")
