"""A group that is deleted and made again while one of its owners stands still, and the hub with it."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from evenflow.model import Group
from tests.integration.programs import wait_for

if TYPE_CHECKING:
    from tests.integration.scene import Scene

pytestmark = pytest.mark.process

BEFORE, AFTER = [b"before"] * 400, [b"after"] * 300


def test_a_late_owner_does_not_move_the_checkpoint_of_the_group_that_was_made_again(scene: Scene) -> None:
    scene.make_hub(1)
    scene.send_to_all(BEFORE)
    late = scene.start("late", work_s=0.005, batch_events=10)
    wait_for(lambda: len(late.calls) > 150, f"{late} to handle some")
    late.pause()
    reached = late.calls[-1].last

    shutil.rmtree(scene.hub)
    scene.make_hub(1)
    scene.send_to_all(AFTER)
    group = Group(scene.namespace, scene.name, "alerts")
    asyncio.run(scene._ask(lambda store: store.delete(group)))

    second = scene.start("second", work_s=0.02, batch_events=10)
    wait_for(lambda: "0" in scene.checkpoints() and scene.checkpoints()["0"].ordinal > 10, f"{second} to commit some")
    assert min(call.epoch for call in second.calls) > max(call.epoch for call in late.calls)
    late.resume()
    assert late.exit_code() != 0
    assert "HubReplaced" in late.log
    second.kill()
    behind = scene.checkpoints()["0"].ordinal
    assert behind < reached, "otherwise a late commit could not be told"

    third = scene.start("third")
    wait_for(lambda: third.calls and third.calls[-1].last == len(AFTER) - 1, f"{third} to come to the end")
    handled = {one for call in (*second.calls, *third.calls) for one in range(call.first, call.last + 1)}
    assert handled == set(range(len(AFTER)))
    assert third.calls[0].first == behind
