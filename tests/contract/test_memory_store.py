"""The memory store keeps the contract of stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.stores.memory import MemoryStore
from evenflow.testing.store.contract import StoreContract

if TYPE_CHECKING:
    from evenflow.ports import Store


class TestMemoryStore(StoreContract):
    def make_store(self) -> Store:
        return MemoryStore()

    def make_client(self, store: Store) -> Store:
        return store
