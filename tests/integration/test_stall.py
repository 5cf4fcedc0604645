"""Instances that stand still and go on: SIGSTOP for longer than the time-to-live, and calls that outlive it.

A process that goes on after a stall knows nothing of it. What it must not do is begin one more call in an epoch that
is over; what it cannot help is the call that was running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.integration.calls import boot_s, lost, repeats
from tests.integration.instance import SLOW
from tests.integration.programs import wait_for
from tests.integration.scene import BEAT_S, LEASES, MARGIN_S, PROGRESS, TTL_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scene import Instance, Scene

pytestmark = pytest.mark.process

ROUNDS = 5
BURST = [b"burst"] * 300


class Pair(NamedTuple):
    """Two instances that share a hub of their own."""

    scene: Scene
    one: Instance
    two: Instance

    @classmethod
    def start(cls, scene: Scene, handler: str) -> Pair:
        scene.make_hub(4)
        return cls(scene, *scene.start_even("one", "two", handler=handler, work_s=0.002, batch_events=20))

    def stall(self, victim: Instance) -> None:
        """Stopped in the middle of a burst."""
        sent_s = boot_s()
        self.scene.send_to_all(BURST)
        wait_for(lambda: any(call.began_s > sent_s for call in victim.calls), f"{victim} to begin")
        victim.pause()
        mine = self.scene.owned(victim)
        assert any(partition in mine for partition, _ in lost(self.scene.calls(), self.scene.newest()))

    def wait_for_takeover(self, survivor: Instance) -> None:
        """The survivor has begun calls in everything, the last of them after the takeover."""
        wait_for(lambda: len(self.scene.owned(survivor)) == 4, f"{survivor} to take everything over")
        self.scene.send_to_all([b"after"])
        self.scene.wait_until_handled()


@pytest.mark.slow
def test_who_stood_still_begins_no_call_in_an_epoch_that_is_over(make_scene: Callable[[str], Scene]) -> None:
    pairs = [Pair.start(make_scene(handler), handler) for handler in ("event", "batch", "plain event", "plain batch")]
    for turn in range(ROUNDS):
        turns = [(pair, pair[1 + turn % 2], pair[2 - turn % 2]) for pair in pairs]
        for pair, victim, _ in turns:
            pair.stall(victim)
        for pair, _, survivor in turns:
            pair.wait_for_takeover(survivor)
        for _, victim, _ in turns:
            victim.resume()
        for pair, victim, survivor in turns:
            pair.scene.wait_until_even(victim, survivor)
    for pair in pairs:
        assert [instance.process.poll() for instance in pair.scene.instances] == [None, None]
        assert pair.scene.checked_calls()


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
                wait_for(lambda: "stopped itself" in instance.log, f"{instance} to stop itself")  # noqa: B023
            wait_for(lambda: boot_s() > locked_s + TTL_S + BEAT_S, "the time-to-live to pass")
        scene.wait_for_beats(3)
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
        scene.wait_for_beats(3)
        assert len(stalled.calls) == 4, "a second call began beside the slow one"
    calls = scene.wait_until_handled()
    again = [call for call in stalled.calls if call.epoch > 1]
    assert {call.partition for call in again} == scene.owned(stalled)
    assert {call.first for call in again} == {2}
    newest = {call.partition: max(one.epoch for one in calls if one.partition == call.partition) for call in again}
    assert all(call.epoch == newest[call.partition] for call in again)
