"""The object store keeps the contract of stores, on a real S3-compatible server, in Google's way, and on Azurite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores import objects_heart
from evenflow.stores.objects import from_url
from evenflow.testing.store_contract import StoreContract
from evenflow.testing.store_deltas import DeltaContract
from evenflow.testing.store_swaps import SwapContract
from tests.servers import azurite, moto
from tests.servers.azure_objects import azure_url

if TYPE_CHECKING:
    from evenflow.ports import Store


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
class TestObjectsStoreWithManySnapshots(DeltaContract, SwapContract):
    """Nearly everything goes through snapshots, and nobody can tell who wrote what: other limits, the same contract."""

    seeds = range(3)

    @pytest.fixture(autouse=True)
    def _limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = moto.shared()
        self.url = server.url(server.fresh())
        for name, value in {"WRITES_KEPT": 1, "ROUNDS_KEPT": 0, "OLD_MOST": 1, "RECENT_MOST": 3}.items():
            monkeypatch.setattr(objects_heart, name, value)

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        return from_url(self.url)
