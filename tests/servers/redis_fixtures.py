"""The Redis servers that tests share: each is started once, when a test first asks for it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import RedisServer

_numbers = count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    from tests.servers.redis import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A cluster of one node. It refuses a script whose keys are not all in one slot."""
    from tests.servers.redis import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes")
    try:
        server.start().take_all_slots()
        yield server
    finally:
        server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Of an empty store."""
    return f"{redis_server.url}?prefix=test{next(_numbers)}"


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisServer) -> str:
    return f"{redis_cluster.url}?cluster=yes&prefix=test{next(_numbers)}"
