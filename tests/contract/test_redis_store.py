"""The Redis store keeps the contract of stores, on real servers and in real clusters of one node: Redis and Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.redis.store import RedisStore
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.losses import LossContract
from evenflow.testing.store.operations import OperateContract
from evenflow.testing.store.progress import CommitContract
from evenflow.testing.store.swaps import SwapContract, WatchContract

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


class TestRedisStoreInACluster(TestRedisStore):
    @pytest.fixture(autouse=True)
    def _url(self, redis_cluster_url: str) -> None:
        self.url = redis_cluster_url


class TestRedisStoreOnValkey(TestRedisStore):
    @pytest.fixture(autouse=True)
    def _url(self, valkey_url: str) -> None:
        self.url = valkey_url


class TestRedisStoreInAClusterOfValkey(SwapContract, WatchContract, CommitContract, OperateContract, LossContract):
    """Every script runs there. The rest is as without a cluster, and opening a client of one takes long."""

    @pytest.fixture(autouse=True)
    def _url(self, valkey_cluster_url: str) -> None:
        self.url = valkey_cluster_url

    def make_store(self) -> Store:
        return RedisStore(self.url)

    def make_client(self, store: Store) -> Store:
        return RedisStore(self.url)
