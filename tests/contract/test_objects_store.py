"""The object store keeps the contract of stores, on a real S3-compatible server, in Google's way, and on Azurite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, patch

import pytest

from evenflow.stores.objects import group_object as objects_group
from evenflow.stores.objects.checkpoints import EpochBounds
from evenflow.stores.objects.store import ObjectsStore, from_url
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.deltas import DeltaContract
from evenflow.testing.store.losses import LossContract
from evenflow.testing.store.scene import at, first, granted, scene
from evenflow.testing.store.swaps import SwapContract
from tests.servers import azurite, moto
from tests.servers.azure_objects import azure_url

if TYPE_CHECKING:
    from evenflow.ports import Store
    from evenflow.testing.store.scene import Scene


@pytest.mark.process
@pytest.mark.usefixtures("few_actions_are_kept")
class TestObjectsStoreOnS3(StoreContract):
    @pytest.fixture(autouse=True)
    def _url(self) -> None:
        server = moto.shared()
        self.url = server.url(server.fresh())

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        return from_url(self.url)

    @scene
    async def test_a_delete_takes_nothing_of_a_group_that_is_made_again_meanwhile(self, play: Scene) -> None:
        """It is one step for the group, and one for each of its other objects."""
        me = await play.join("a")
        granted(await play.swap(first("0", me.owner, epoch=7)))
        await play.seal(7, at(5))
        store = play.store
        assert isinstance(store, ObjectsStore)
        change, made = store._group_object(play.group).change, []

        async def made_again(*args: Any, **how: Any) -> Any:
            deleted = await change(*args, **how)
            other = await play.other.heartbeat(play.group, me, None)
            made.append(await play.other.seal(play.group, "0", other.epoch_floor + 1, at(2)))
            return deleted

        with patch.object(store._group_object(play.group), "change", made_again):
            await store.delete(play.group)
        assert list(await store.checkpoints(play.group)) == made
        assert (await play.other.commit(play.group, [at(3, epoch=made[0].epoch)]))[0].ok

    @scene
    async def test_what_a_late_request_left_of_a_deleted_group_is_not_there(self, play: Scene) -> None:
        """One that looked before the group was deleted, and put after that."""
        me, late = await play.join("a"), play.other
        granted(await play.swap(first("0", me.owner, epoch=7)))
        await play.operable.delete(play.group)
        assert isinstance(late, ObjectsStore)
        with patch.object(late, "_bounds", AsyncMock(return_value=EpochBounds(0, 0))):
            assert (await late.seal(play.group, "0", 7, at(9))).ordinal == 9
        for client in (play.operable, late):
            assert list(await client.checkpoints(play.group)) == []
            assert list(await client.groups()) == []
        floor = (await play.heartbeat(await play.join("b"))).epoch_floor
        assert (await play.seal(floor + 1, at(2))).ordinal == 2


@pytest.mark.process
class TestObjectsStoreOnAzure(TestObjectsStoreOnS3):
    """The same code through another driver, on a server whose tags are not made from the content."""

    seeds = range(2)

    @pytest.fixture(autouse=True)
    def _url(self) -> None:
        self.url = azure_url(azurite.shared_or_skip())


@pytest.mark.process
class TestObjectsStoreOnGoogle(TestObjectsStoreOnS3):
    """The same code through a third driver, on a server whose versions are numbers."""

    seeds = range(2)

    @pytest.fixture(autouse=True)
    def _url(self) -> None:
        server = moto.shared()
        self.url = server.google_url(server.fresh())


@pytest.mark.process
class TestObjectsStoreWithManySnapshots(DeltaContract, SwapContract, LossContract):
    """Nearly everything goes through snapshots, and nobody can tell who wrote what: other limits, the same contract."""

    seeds = range(3)

    @pytest.fixture(autouse=True)
    def _limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = moto.shared()
        self.url = server.url(server.fresh())
        for name, value in {"WRITES_KEPT": 1, "ROUNDS_KEPT": 0, "OLD_MOST": 1, "RECENT_MOST": 3}.items():
            monkeypatch.setattr(objects_group, name, value)

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        return from_url(self.url)
