"""The Redis store keeps the contract of stores, on a real server, and in a real cluster of one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.redis import RedisStore
from evenflow.testing.store_contract import StoreContract

if TYPE_CHECKING:
    from evenflow.ports import Store


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _url(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self) -> Store:
        return RedisStore(self.url)

    def make_client(self, store: Store) -> Store:
        return RedisStore(self.url)


class TestRedisStoreInACluster(StoreContract):
    @pytest.fixture(autouse=True)
    def _url(self, redis_cluster_url: str) -> None:
        self.url = redis_cluster_url

    def make_store(self) -> Store:
        return RedisStore(self.url)

    def make_client(self, store: Store) -> Store:
        return RedisStore(self.url)
