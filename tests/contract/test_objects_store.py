"""The object store keeps the contract of stores, against a real S3-compatible server and against Azurite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.objects import from_url
from evenflow.testing.store_contract import StoreContract
from tests.servers import moto

if TYPE_CHECKING:
    from evenflow.ports import Store


@pytest.mark.process
class TestObjectsStoreOnS3(StoreContract):
    @pytest.fixture(autouse=True)
    def _url(self) -> None:
        server = moto.shared()
        self.url = server.url(server.fresh())

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        return from_url(self.url)
