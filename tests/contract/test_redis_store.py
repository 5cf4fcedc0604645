"""The Redis store keeps the contract of stores, on a real server, and on one that is a cluster of one node."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from evenflow.stores.redis import RedisStore
from evenflow.testing.store_contract import StoreContract
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.ports import Store

_numbers = count()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield server.start()
    finally:
        server.stop()


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _url(self, redis_server: RedisServer) -> None:
        self.url = f"{redis_server.url}?prefix=test{next(_numbers)}"

    def make_store(self) -> Store:
        return RedisStore(self.url)

    def make_client(self, store: Store) -> Store:
        return RedisStore(self.url)
