"""Virtual time, on the stage of the runtime's tests; azure-eventhub's own clock is the store's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from azure.eventhub.aio._eventprocessor import _ownership_manager

from tests.unit.runtime.conftest import pytest_pyfunc_call, stage
from tests.unit.runtime.stage import WALL_S

if TYPE_CHECKING:
    from tests.unit.runtime.stage import Stage

__all__ = ["official_time", "pytest_pyfunc_call", "stage"]


@pytest.fixture(autouse=True)
def official_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "stage" in request.fixturenames:
        scene: Stage = request.getfixturevalue("stage")
        clock = SimpleNamespace(time=lambda: WALL_S + scene.now_s)
        monkeypatch.setattr(_ownership_manager, "time", clock)
