"""The servers that these tests share."""

from __future__ import annotations

from tests.servers.azurite_fixtures import azblob_url, azurite
from tests.servers.redis_fixtures import (
    redis_cluster,
    redis_cluster_url,
    redis_server,
    redis_url,
    valkey_cluster,
    valkey_cluster_url,
    valkey_server,
    valkey_url,
)

__all__ = [
    "azblob_url",
    "azurite",
    "redis_cluster",
    "redis_cluster_url",
    "redis_server",
    "redis_url",
    "valkey_cluster",
    "valkey_cluster_url",
    "valkey_server",
    "valkey_url",
]
