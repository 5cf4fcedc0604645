"""The contract that every store keeps, as tests: subclass it, say how to make a store, and let pytest find it.

    class TestMyStore(StoreContract):
        def make_store(self):
            return MyStore(url_of_an_empty_one)

        def make_client(self, store):
            return MyStore(store.url)

The contracts themselves are the docstrings in `evenflow.ports`. Tests that ask for a capability which the store does
not have (Watchable, Operable, Steerable, Transactional) are skipped. No plug-in is needed for the async ones; with
`pytest.register_assert_rewrite("evenflow.testing")` in a conftest.py, failures show the values that they compared.
"""

from __future__ import annotations

from evenflow.testing.store.deltas import DeltaContract
from evenflow.testing.store.heartbeats import HeartbeatContract, LedgerContract
from evenflow.testing.store.losses import LossContract
from evenflow.testing.store.operations import OperateContract
from evenflow.testing.store.progress import CommitContract, SealContract
from evenflow.testing.store.steering import SteerContract
from evenflow.testing.store.swaps import SwapContract, TakeoverContract, WatchContract
from evenflow.testing.store.transactions import TransactionContract


class StoreContract(
    HeartbeatContract,
    LedgerContract,
    DeltaContract,
    SwapContract,
    TakeoverContract,
    WatchContract,
    SealContract,
    CommitContract,
    OperateContract,
    SteerContract,
    TransactionContract,
    LossContract,
):
    """Everything that a store must do. A subclass has `make_store` and `make_client`."""
