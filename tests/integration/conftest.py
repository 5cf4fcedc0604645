"""What the tests of real processes share."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LEFT_OPEN = ("default:unclosed:ResourceWarning", "default:loop is closed:ResourceWarning")
"""A driver that is cut off while it connects may leave a socket to the garbage collector, which finds it during another
test. That is shown here, but fails no test which has nothing to do with it; elsewhere it is an error."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that nobody waits for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for left_open in LEFT_OPEN:
                item.add_marker(pytest.mark.filterwarnings(left_open))


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
