"""What instances in real processes do while their store is away, and after: the same scenes for every store.

A test gives the scene a store (`scene.store_url`, and `scene.look_url` where the first way is to be cut) and says what
happens to it: an outage is a context in which the store does not answer, a wound takes away what the store knew.

What the runtime does then is the same for every store, and the virtual clock shows when it does it
(`tests/unit/runtime/test_coordinator.py`); here it is seen once on each real server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.model import epoch_parts
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.scene import PATIENT_TTL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from evenflow.model import PartitionId
    from tests.integration.calls import Call
    from tests.integration.scene import Instance, Scene

    Outage = Callable[[], AbstractContextManager[object]]

TTL_S = 5.0
"""A store has half of it for each answer: longer than the server of a busy machine takes."""
SHORT_S = 0.8
LONG_S = TTL_S + 1.0


class Away(NamedTuple):
    """When the store did not answer for sure, and when it answered again for sure; and all calls that there were."""

    began_s: float
    ended_s: float
    back_s: float
    calls: Sequence[Call]


def start_two(scene: Scene, **options: float) -> list[Instance]:
    scene.make_hub(4)
    return scene.start_even("one", "two", **options)


def wait_for_calls(scene: Scene, instances: Iterable[Instance], after_s: float = 0.0) -> None:
    for instance in instances:
        scene.wait_for_calls(instance, after_s)


def go_through(
    scene: Scene, instances: Sequence[Instance], outage: Outage, seconds: float, going_on: Iterable[PartitionId] = ()
) -> Away:
    """An outage of so many seconds, and until calls of these partitions have begun in it, under load; and everything is
    handled."""
    with scene.load():
        wait_for_calls(scene, instances)
        with outage():
            began_s = boot_s()
            wait_for(lambda: boot_s() > began_s + seconds, "the outage to pass")
            wait_for(lambda: _begun(scene, began_s) >= set(going_on), f"calls of {going_on} during the outage")
            ended_s = boot_s()
        back_s = boot_s()
        wait_for_calls(scene, instances, after_s=back_s)
    return Away(began_s, ended_s, back_s, scene.wait_until_handled())


def _begun(scene: Scene, after_s: float) -> set[PartitionId]:
    return {call.partition for call in scene.calls() if call.began_s > after_s}


# --- the scenes
def an_outage_interrupts_nothing(scene: Scene, outage: Outage, seconds: float = SHORT_S) -> None:
    """Nor does an instance ask the store for each event: calls go on in every partition."""
    instances = start_two(scene, ttl_s=PATIENT_TTL_S)
    before = scene.epochs()
    away = go_through(scene, instances, outage, seconds, going_on=before)
    assert scene.epochs() == before
    assert not repeats(away.calls)
    newest = scene.newest()
    wait_for(
        lambda: {name: one.position.sequence for name, one in scene.checkpoints().items()} == newest,
        "the checkpoints to catch up",
    )


def at_a_long_outage_everybody_stops_in_time_and_goes_on(
    scene: Scene, outage: Outage, says: str = "StoreUnavailable"
) -> Away:
    instances = start_two(scene, ttl_s=TTL_S)
    before = scene.epochs()
    away = go_through(scene, instances, outage, LONG_S)
    # An instance stops earlier, by its margin: that is for a machine that stalls it between its look and its call.
    may_be_taken_over_s = away.began_s + TTL_S
    assert not [str(call) for call in away.calls if may_be_taken_over_s <= call.began_s < away.ended_s]
    assert all(epoch > before[partition] for partition, epoch in scene.epochs().items())
    scene.wait_until_even(*instances)
    for instance in instances:
        assert instance.process.poll() is None
        assert says in instance.log
        assert "Traceback" not in instance.log
    return away


def a_store_that_lost_everything_is_made_anew(
    scene: Scene, wound: Callable[[], object], names: Sequence[str] = ("one", "two")
) -> set[str]:
    """Nothing is lost. Which partitions stayed with those who had them; of these nothing was handled twice either."""
    scene.make_hub(4)
    instances: list[Instance] = []
    for name in names:
        instances.append(scene.start(name, ttl_s=TTL_S, longest_ttl_s=TTL_S))
        scene.wait_until_even(*instances)
    with scene.load():
        wait_for_calls(scene, instances)
        before = {one: instance.pid for instance in instances for one in scene.owned(instance)}
        wounded_s = boot_s()
        wound()
        wait_until_noticed(scene, instances, wounded_s)
    calls = scene.wait_until_handled()
    assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}
    assert [instance.process.poll() for instance in instances] == [None] * len(instances)
    remembered = {one for instance in instances for one in scene.owned(instance) if before[one] == instance.pid}
    assert not [repeat for repeat in repeats(calls) if repeat.partition in remembered]
    return remembered


def wait_until_noticed(scene: Scene, instances: Sequence[Instance], wounded_s: float) -> None:
    """Everybody knows that the store lost writes, shares are even, and everything is handled on."""
    for instance in instances:
        wait_for(lambda: "the store lost data (history 0 -> 1)" in instance.log, f"{instance} to notice")  # noqa: B023
    scene.wait_until_even(*instances)
    wait_for_calls(scene, instances, after_s=wounded_s + TTL_S)


def a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene: Scene) -> None:
    """Instances come, go and die: what the dead one had not committed is all that is handled twice."""
    scene.make_hub(4)
    with scene.load():
        (one,) = scene.start_even("one", ttl_s=PATIENT_TTL_S)
        survivor = scene.start("survivor", ttl_s=PATIENT_TTL_S)
        scene.wait_until_even(one, survivor)
        scene.wait_for_calls(survivor)
        one.ask_to_stop()
        assert one.exit_code() == 0
        scene.wait_until_even(survivor)
        victim = scene.start("victim", ttl_s=TTL_S, checkpoint_s=0.5)
        scene.wait_until_even(survivor, victim)
        scene.wait_for_calls(victim)
        killed_s = victim.kill()
        scene.wait_until_even(survivor)
        scene.wait_for_calls(survivor, after_s=killed_s)
    calls = scene.wait_until_handled()
    assert {repeat.before.pid for repeat in repeats(calls)} <= {victim.pid}
    assert all(repeat.after.began_s > killed_s for repeat in repeats(calls))


def planned_moves_are_free(scene: Scene) -> None:
    scene.make_hub(8)
    with scene.load():
        one = scene.start("one", ttl_s=PATIENT_TTL_S)
        scene.wait_until_even(one)
        two = scene.start("two", ttl_s=PATIENT_TTL_S)
        scene.wait_until_even(one, two)
        scene.wait_for_calls(two)
        one.ask_to_stop()
        assert one.exit_code() == 0
        scene.wait_until_even(two)
        scene.wait_for_calls(two, after_s=boot_s())
        two.ask_to_stop()
        assert two.exit_code() == 0
        scene.start("one")
    assert not repeats(scene.wait_until_handled())
