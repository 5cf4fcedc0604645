"""The Redis servers that tests share: each is started once, when a test first asks for it."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.redis import RedisServer

CLUSTER = ("--cluster-enabled", "yes")
_numbers = count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with _started(tmp_path_factory.mktemp("redis"), "redis") as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with _started(tmp_path_factory.mktemp("valkey"), "valkey") as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A cluster of one node. It refuses a script whose keys are not all in one slot."""
    with _started(tmp_path_factory.mktemp("cluster"), "redis", *CLUSTER) as server:
        server.take_all_slots()
        yield server


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with _started(tmp_path_factory.mktemp("valkey-cluster"), "valkey", *CLUSTER) as server:
        server.take_all_slots()
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Of an empty store."""
    return f"{redis_server.url}?{_prefix()}"


@pytest.fixture
def valkey_url(valkey_server: RedisServer) -> str:
    return f"valkey://{valkey_server.place.address}:{valkey_server.port}?{_prefix()}"


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisServer) -> str:
    return f"{redis_cluster.url}?cluster=yes&{_prefix()}"


@pytest.fixture
def valkey_cluster_url(valkey_cluster: RedisServer) -> str:
    return f"valkey://{valkey_cluster.place.address}:{valkey_cluster.port}?cluster=yes&{_prefix()}"


def _prefix() -> str:
    return f"prefix=test{next(_numbers)}"


@contextmanager
def _started(folder: Path, kind: str, *options: str) -> Iterator[RedisServer]:
    from tests.servers.redis import RedisServer, program_of

    server = RedisServer(folder, *options, program=program_of(kind))
    try:
        yield server.start()
    finally:
        server.stop()
