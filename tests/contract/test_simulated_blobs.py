"""The simulated service for blobs, under the real Azure Blob store: it keeps the contract of stores as Azurite does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import pytest

from evenflow.stores.azblob.store import AzureBlobStore
from evenflow.testing.simulated.blobs import Service
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.heartbeats import ODD_NAMES

if TYPE_CHECKING:
    from evenflow.ports import Store
    from evenflow.stores.azblob.client import Link


class OnTheService(AzureBlobStore):
    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__("https://simulated.blob.core.windows.net", "leases", credential="a2V5")

    def _line(self) -> Link:
        return cast("Link", self.service)


@pytest.mark.usefixtures("few_actions_are_kept")
class TestSimulatedBlobs(StoreContract):
    odd_names = tuple(name for name in ODD_NAMES if name != "A")
    seeds = range(2)

    def make_store(self) -> Store:
        return OnTheService(Service(time.time))

    def make_client(self, store: Store) -> Store:
        assert isinstance(store, OnTheService)
        return OnTheService(store.service)
