"""The drop-in client over an event hub in memory; in virtual time where a test asks for a stage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from evenflow import Processor
from evenflow.compat.eventhub import receiving
from tests.unit.compat.eventhub.scene import HubInMemory

if TYPE_CHECKING:
    from tests.unit.runtime.stage import Stage


@pytest.fixture
def hub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> HubInMemory:
    made = HubInMemory()
    monkeypatch.setattr(receiving, "ReceivingSource", made.source)
    if "stage" in request.fixturenames:
        stage: Stage = request.getfixturevalue("stage")
        monkeypatch.setattr(receiving, "Processor", partial(Processor, clock=stage.clock()))
    return made
