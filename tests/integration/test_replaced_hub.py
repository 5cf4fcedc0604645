"""A hub that is deleted and made again while instances read it: another hub, to which no checkpoint fits."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integration.calls import boot_s, lost
from tests.integration.programs import wait_for

if TYPE_CHECKING:
    from tests.integration.scene import Scene

pytestmark = pytest.mark.process


@pytest.mark.parametrize("events", [3, 50], ids=["shorter", "longer"])
def test_it_ends_everybody_and_nothing_of_the_new_one_is_skipped(scene: Scene, events: int) -> None:
    """The old hub has 20 events a partition: their positions lie beyond the new hub's end, or in the middle of it."""
    scene.make_hub(4)
    scene.send_to_all([b"old"] * 20)
    instances = scene.start_even("one", "two", refresh_s=2.0)
    scene.wait_until_handled()
    away = scene.folder / "deleted"
    scene.hub.rename(away)
    replaced_s = boot_s()
    scene.make_hub(4)
    scene.send_to_all([b"new"] * events)
    assert all(instance.exit_code() != 0 for instance in instances)
    for instance in instances:
        assert instance.last_line.startswith("evenflow.errors.HubReplaced: ")
        assert "delete the group" in instance.last_line
    assert not [str(call) for call in scene.calls() if call.began_s > replaced_s]

    again = scene.start("again")
    assert again.exit_code() != 0
    assert again.last_line.startswith("evenflow.errors.HubReplaced: ")
    assert "use another group name" in again.last_line

    fresh = scene.start("fresh", group="alerts, second hub")
    newest = scene.newest()
    wait_for(lambda: not lost(fresh.calls, newest), "the new hub to be read from its beginning")
    assert {call.pid for call in scene.calls() if call.began_s > replaced_s} == {fresh.pid}
    assert len([call for call in fresh.calls if call.ended_s]) == 4 * events
    shutil.rmtree(away)
