"""What the tests of real processes share."""

from __future__ import annotations

import gc
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


def pytest_collection_finish() -> None:
    """What was imported stays: to look through it after each test would take most of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """What a test leaves to the garbage collector is found now, so that it fails this test and no later one."""
    yield
    gc.collect()


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
