"""What the tests of real processes share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.integration.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that nobody waits for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[Callable[[str], Scene]]:
    """Scenes beside each other, each in a folder of its own."""
    with ExitStack() as ends:

        def make(name: str) -> Scene:
            scene = Scene(tmp_path / name)
            ends.callback(scene.close)
            return scene

        yield make


@pytest.fixture
def scene(make_scene: Callable[[str], Scene]) -> Scene:
    return make_scene("scene")
