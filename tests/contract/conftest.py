"""The servers that these tests share."""

from __future__ import annotations

import pytest

from evenflow.stores import rules
from evenflow.testing.store import steering as store_steering
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


@pytest.fixture
def few_actions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a store that is slow to ask: that there is a bound is seen with a lower one, too."""
    monkeypatch.setattr(rules, "ACTIONS_KEPT", 100)
    monkeypatch.setattr(store_steering, "BOUND", 200)
