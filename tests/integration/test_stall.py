"""Instances that stand still and go on: SIGSTOP for longer than the time-to-live, and calls that outlive it.

A process that goes on after a stall knows nothing of it. What it must not do is begin one more call in an epoch that
is over; what it cannot help is the call that was running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.calls import boot_s, lost, repeats
from tests.integration.instance import SLOW
from tests.integration.programs import wait_for
from tests.integration.scene import HEARTBEAT_S, LEASES, PATIENT_TTL_S, PROGRESS, TTL_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process

ROUNDS = 4
BURST = [b"burst"] * 300


class Pair:
    """Two instances that share a hub of their own, and stand still in turn."""

    def __init__(self, scene: Scene, handler: str) -> None:
        scene.make_hub(4)
        self.scene = scene
        self.survivor, self.victim = scene.start_even("one", "two", handler=handler, work_s=0.002, batch_events=20)

    def stall(self) -> None:
        """Stopped in the middle of a burst."""
        sent_s = boot_s()
        self.scene.send_to_all(BURST)
        wait_for(lambda: any(call.began_s > sent_s for call in self.victim.calls), f"{self.victim} to begin")
        self.victim.pause()
        mine = self.scene.owned(self.victim)
        assert any(partition in mine for partition, _ in lost(self.scene.calls(), self.scene.newest()))

    def stall_both(self) -> None:
        self.scene.send_to_all(BURST)
        for instance in self.scene.instances:
            instance.pause()

    def wait_for_takeover(self) -> None:
        """The survivor has begun calls in everything, the last of them after the takeover."""
        wait_for(lambda: len(self.scene.owned(self.survivor)) == 4, f"{self.survivor} to take everything over")
        self.scene.send_to_all([b"after"])
        self.scene.wait_until_handled()

    def take_turns(self) -> None:
        """The one that stood still is a member again, with its share."""
        self.scene.wait_until_even(self.survivor, self.victim)
        self.survivor, self.victim = self.victim, self.survivor


@pytest.mark.slow
def test_who_stood_still_begins_no_call_in_an_epoch_that_is_over(make_scene: Callable[[str], Scene]) -> None:
    pairs = [Pair(make_scene(handler), handler) for handler in ("event", "batch", "plain event", "plain batch")]
    for _ in range(ROUNDS):
        for pair in pairs:
            pair.stall()
        for pair in pairs:
            pair.wait_for_takeover()
        for pair in pairs:
            pair.victim.resume()
        for pair in pairs:
            pair.take_turns()
    for pair in pairs:
        pair.stall_both()
    stalled_s = boot_s()
    wait_for(lambda: boot_s() > stalled_s + TTL_S, "the time-to-live to pass, as when a machine is suspended")
    for pair in pairs:
        pair.victim.resume()
        pair.survivor.resume()
    for pair in pairs:
        pair.scene.wait_until_handled()
        pair.take_turns()
        assert [instance.process.poll() for instance in pair.scene.instances] == [None, None]


def test_a_stall_that_is_shorter_than_the_time_to_live_costs_nothing(scene: Scene) -> None:
    scene.make_hub(4)
    with scene.load():
        stalled, _ = scene.start_even("stalled", "other", ttl_s=PATIENT_TTL_S, work_s=0.002)
        before = scene.epochs()
        scene.wait_for_calls(stalled)
        stalled.pause()
        paused_s = boot_s()
        wait_for(lambda: boot_s() > paused_s + 2.2, "the stall to pass")
        stalled.resume()
        scene.wait_for_calls(stalled, after_s=boot_s())
    assert not repeats(scene.wait_until_handled())
    assert scene.epochs() == before


def test_a_call_that_outlives_its_deadline_is_left_alone_and_has_no_successor_beside_it(scene: Scene) -> None:
    scene.make_hub(2)
    instances = scene.start_even("one", "two", handler="plain event")
    owner = next(instance for instance in instances if "0" in scene.owned(instance))
    before = scene.epochs()
    with owner.held():
        scene.send([SLOW, b"next"], partition=0)
        wait_for(lambda: owner.calls, "the slow call to begin")
        (slow,) = owner.calls
        with scene.locked(LEASES, PROGRESS):
            locked_s = boot_s()
            for instance in instances:
                wait_for(lambda: "lease was not renewed" in instance.log, f"{instance} to stop itself")  # noqa: B023
            wait_for(lambda: boot_s() > locked_s + TTL_S + HEARTBEAT_S, "the time-to-live to pass")
        scene.wait_for_heartbeats(3)
        scene.send([b"next"], partition=1)
        wait_for(lambda: any(call.partition == "1" for call in scene.calls()), "the other partition to go on")
        assert [call.partition for call in owner.calls] == ["0"], "a second call began beside the slow one"
        assert slow.ended_s is None
    calls = scene.wait_until_handled()
    assert not repeats(calls)
    assert all(call.epoch > slow.epoch for call in calls if call.partition == "0" and call.first > 0)
    assert all(epoch > before[partition] for partition, epoch in scene.epochs().items())
    scene.wait_until_even(*instances)


def test_a_partition_that_comes_back_waits_for_the_call_that_still_runs(scene: Scene) -> None:
    scene.make_hub(4)
    (stalled,) = scene.start_even("stalled", handler="plain event")
    with stalled.held():
        scene.send_to_all([SLOW, b"next"])
        wait_for(lambda: len(stalled.calls) == 4, "a slow call in every partition")
        stalled.pause()
        other = scene.start("other", handler="plain event")
        wait_for(lambda: len(scene.owned(other)) == 4, "the takeover")
        scene.wait_until_handled()
        stalled.resume()
        scene.wait_until_even(stalled, other)
        scene.send_to_all([b"last"])
        scene.wait_for_heartbeats(3)
        assert len(stalled.calls) == 4, "a second call began beside the slow one"
    calls = scene.wait_until_handled()
    again = [call for call in stalled.calls if call.epoch > 1]
    assert {call.partition for call in again} == scene.owned(stalled)
    assert {call.first for call in again} == {2}
    newest = {call.partition: max(one.epoch for one in calls if one.partition == call.partition) for call in again}
    assert all(call.epoch == newest[call.partition] for call in again)
