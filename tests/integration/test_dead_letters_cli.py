"""`evenflow dead-letters` and signals: while it works, and at its question. The rest is in tests/unit/cli."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.programs import PATIENCE_S, asked, end, started, wait_for
from tests.unit.cli.command import facts
from tests.unit.cli.dead_letters_scene import STORE, WHERE, Place, dead_letter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "jsonl:dead")


def test_interrupted_it_goes_on_where_it_stopped(place: Place) -> None:
    asyncio.run(place.file(*[dead_letter(number) for number in range(100, 140)]))
    arguments = ("dead-letters", "redrive", "--all", "--yes", "--rate", "2", "--json", *WHERE, *STORE)
    with place.owner():
        with started(*arguments, folder=place.folder) as redrive:
            wait_for(lambda: len(place.handled) >= 4, "some dead letters to be handled")
            code, out, _ = end(redrive, signal.SIGINT)
        assert code == 1
        found = json.loads(out)
        assert found["interrupted"] is True
        assert 2 <= len(place.verdicts("again")) < 43
        assert 4 <= found["asked"] <= len(place.verdicts("again")), "those that this run has asked for"
        rest = facts("dead-letters", "redrive", "--all", "--yes", *WHERE, *STORE, folder=place.folder)
    assert rest["failed"] == rest["waiting"] == []
    assert set(place.states().values()) == {"redriven"}
    assert sorted(place.handled) == sorted(place.states()), "each was handled once"
    assert len(place.verdicts("again")) == 43


def test_one_ctrl_c_at_the_question_ends_it_and_nothing_is_changed(place: Place) -> None:
    with asked(place.folder, "dead-letters", "redrive", "--all", *WHERE, *STORE) as (process, terminal, _):
        os.write(terminal, b"\x03")
        assert process.wait(PATIENCE_S) == 1
    assert set(place.states().values()) == {"dead"}
