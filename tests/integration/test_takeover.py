"""Instances that die, and instances that come back: real processes, killed for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.calls import repeats
from tests.integration.programs import wait_for
from tests.integration.scene import HEARTBEAT_S, PATIENT_TTL_S, TTL_S, slack_s

if TYPE_CHECKING:
    from tests.integration.scene import Scene

pytestmark = pytest.mark.process

CHECKPOINT_S = 0.5


def test_a_killed_instance_is_taken_over_in_time_and_little_is_repeated(scene: Scene) -> None:
    scene.make_hub(8)
    with scene.load():
        survivor, victim = scene.start_even("survivor", "victim", checkpoint_s=CHECKPOINT_S)
        scene.wait_for_calls(victim)
        orphans = scene.owned(victim)
        killed_s = victim.kill()
        wait_for(lambda: scene.owned(survivor) > orphans, "the takeover")
        scene.wait_for_calls(survivor, after_s=killed_s + HEARTBEAT_S)
    calls = scene.wait_until_handled()
    assert len(orphans) == 4
    may_add_s = slack_s()
    for orphan in orphans:
        again_s = min(call.began_s for call in calls if call.partition == orphan and call.began_s > killed_s)
        assert again_s - killed_s <= TTL_S + HEARTBEAT_S + may_add_s
    for repeat in repeats(calls):
        assert repeat.before.pid == victim.pid
        assert repeat.before.began_s >= killed_s - CHECKPOINT_S - may_add_s, "more than one checkpoint's worth"


def test_who_comes_back_under_its_id_gets_its_partitions_back(scene: Scene) -> None:
    scene.make_hub(6)
    with scene.load():
        other, victim = scene.start_even("other", "victim", ttl_s=PATIENT_TTL_S)
        mine, others = scene.owned(victim), scene.owned(other)
        before = scene.epochs()
        killed_s = victim.kill()
        again = scene.start("again", instance_id="victim", ttl_s=PATIENT_TTL_S)
        wait_for(lambda: scene.owned(again) == mine, "its partitions to be its own again")
        scene.wait_for_calls(again, after_s=killed_s)
    scene.wait_until_handled()
    after = scene.epochs()
    assert {one: after[one] - before[one] for one in mine} == dict.fromkeys(mine, 1), "it went through other hands"
    assert {one: after[one] for one in others} == {one: before[one] for one in others}


def test_of_two_processes_under_one_id_the_older_ends(scene: Scene) -> None:
    scene.make_hub(6)
    with scene.load():
        other, older = scene.start_even("other", "older", ttl_s=PATIENT_TTL_S)
        mine = scene.owned(older)
        newer = scene.start("newer", instance_id="older", ttl_s=PATIENT_TTL_S)
        assert older.exit_code() != 0
        wait_for(lambda: scene.owned(newer) == mine, "the newer to have it all")
        scene.wait_for_calls(newer)
    scene.wait_until_handled()
    assert older.last_line.startswith("evenflow.errors.Superseded: A newer process runs under the instance id 'older'")
    assert f"pid {newer.pid}" in older.last_line
    assert "Give each process its own instance_id" in older.last_line
    for instance in (newer, other):
        instance.ask_to_stop()
        assert instance.exit_code() == 0
