"""Instances that stand still and go on: SIGSTOP for longer than the time-to-live, and calls that outlive it.

A process that goes on after a stall knows nothing of it. What it must not do is begin one more call in an epoch that
is over; what it cannot help is the call that was running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.scene import BEAT_S, LEASES, MARGIN_S, PROGRESS, TTL_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scene import Instance, Scene

pytestmark = pytest.mark.process

ROUNDS = 5
BURST = [b"burst"] * 200


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
        """Stopped in the middle of a burst, which the victim has begun in all that it owns."""
        sent_s = boot_s()
        self.scene.send_to_all(BURST)
        self.scene.wait_for_calls(victim, after_s=sent_s)
        victim.pause()

    def wait_for_takeover(self, victim: Instance, survivor: Instance, stalled_s: float) -> None:
        """The survivor has begun calls in all that was the victim's."""
        wait_for(lambda: len(self.scene.owned(survivor)) == 4, f"{survivor} to take everything over")
        self.scene.wait_for_calls(survivor, after_s=stalled_s + TTL_S - MARGIN_S)


@pytest.mark.slow
def test_who_stood_still_begins_no_call_in_an_epoch_that_is_over(make_scene: Callable[[str], Scene]) -> None:
    pairs = [Pair.start(make_scene(handler), handler) for handler in ("event", "batch", "plain event", "plain batch")]
    for turn in range(ROUNDS):
        turns = [(pair, pair[1 + turn % 2], pair[2 - turn % 2]) for pair in pairs]
        stalled_s = boot_s()
        for pair, victim, _ in turns:
            pair.stall(victim)
        for pair, victim, survivor in turns:
            pair.wait_for_takeover(victim, survivor, stalled_s)
        for _, victim, _ in turns:
            victim.resume()
        for pair, victim, survivor in turns:
            pair.scene.wait_until_handled()
            pair.scene.wait_until_even(victim, survivor)
    for pair in pairs:
        assert [instance.process.poll() for instance in pair.scene.instances] == [None, None]
        assert pair.scene.checked_calls()
