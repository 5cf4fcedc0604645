"""The servers that these tests share."""

from __future__ import annotations

from tests.servers.redis_fixtures import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]
