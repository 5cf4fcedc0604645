"""The servers that these tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers.azurite_fixtures import azblob_url, azurite
from tests.servers.redis_fixtures import redis_server, redis_url
from tests.unit.stores.bucket import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.stores.bucket import Bucket

__all__ = ["azblob_url", "azurite", "redis_server", "redis_url"]


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """An empty one in this process."""
    with running() as found:
        yield found
