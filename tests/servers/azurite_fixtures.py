"""The Azurite that tests share: started once, when a test first asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.azurite import Azurite


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    from tests.servers.azurite import Azurite

    server = Azurite(tmp_path_factory.mktemp("azurite") / "server.log")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def azblob_url(azurite: Azurite) -> str:
    """Of an empty store."""
    return azurite.url()
