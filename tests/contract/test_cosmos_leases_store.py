"""The store in a lease container keeps the contract of stores: on `evenflow container serve`, and on a server that
nobody here wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.cosmos.store import from_url
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.heartbeats import LedgerContract
from evenflow.testing.store.progress import SealContract
from evenflow.testing.store.scene import Stage
from evenflow.testing.store.swaps import SwapContract, TakeoverContract
from tests.servers.cosmos_leases import lease_server, make_container, store_url

if TYPE_CHECKING:
    from evenflow.ports import Store


@pytest.mark.usefixtures("few_actions_are_kept")
class LeaseContainer(Stage):
    server = "evenflow"
    key = "/id"

    @pytest.fixture(autouse=True)
    def _url(self) -> None:
        server = lease_server(self.server)
        self.url = store_url(server, make_container(server, self.key))

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        return from_url(self.url)


class TestOnTheLocalEndpoint(LeaseContainer, StoreContract):
    seeds = range(2)


class TestOnAServerThatNobodyHereWrote(LeaseContainer, StoreContract):
    server = "vercel"
    seeds = range(2)


class TestByPartitionKey(LeaseContainer, LedgerContract, SwapContract, TakeoverContract, SealContract):
    """What else differs: how documents are found and made."""

    key = "/partitionKey"
