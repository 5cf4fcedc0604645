"""The Azurite that tests share: started once, when a test first asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.azurite import Azurite


@pytest.fixture
def azurite() -> Azurite:
    from tests.servers.azurite import shared_or_skip

    return shared_or_skip()


@pytest.fixture
def azblob_url(azurite: Azurite) -> str:
    """Of an empty store."""
    return azurite.url()
