"""The Azure Blob store keeps the contract of stores, on a real Azurite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.azblob.store import AzureBlobStore, from_url
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.heartbeats import ODD_NAMES

if TYPE_CHECKING:
    from evenflow.ports import Store


@pytest.mark.usefixtures("few_actions_are_kept")
class TestAzureBlobStore(StoreContract):
    odd_names = tuple(name for name in ODD_NAMES if name != "A")
    """Azure's layout has namespaces, hubs and groups in lower case: `A` is `a`."""
    seeds = range(2)

    @pytest.fixture(autouse=True)
    def _url(self, azblob_url: str) -> None:
        self.url = azblob_url

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        assert isinstance(store, AzureBlobStore)
        return from_url(self.url)
