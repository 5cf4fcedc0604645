"""A store that is locked for a while, or deleted under the instances' feet."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from evenflow.model import epoch_parts
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.scene import LEASES, MARGIN_S, PROGRESS, TTL_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.scene import Instance, Scene

pytestmark = pytest.mark.process

SHORT_S = 0.8
LONG_S = TTL_S + 1.0


def lock(scene: Scene, names: Sequence[str], seconds: float) -> tuple[float, float]:
    """When it began and ended."""
    with scene.locked(*names):
        locked_s = boot_s()
        wait_for(lambda: boot_s() > locked_s + seconds, "the lock's time to pass")
        return locked_s, boot_s()


def start_two(scene: Scene) -> list[Instance]:
    scene.make_hub(4)
    return scene.start_even("one", "two")


@pytest.mark.parametrize(("names", "seconds"), [((LEASES, PROGRESS), SHORT_S), ((PROGRESS,), LONG_S)])
def test_a_short_lock_or_one_of_progress_alone_interrupts_nothing(
    scene: Scene, names: Sequence[str], seconds: float
) -> None:
    instances = start_two(scene)
    before = scene.epochs()
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        locked_s, freed_s = lock(scene, names, seconds)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=freed_s)
    calls = scene.wait_until_handled()
    assert scene.epochs() == before
    assert not repeats(calls)
    assert {call.partition for call in calls if locked_s < call.began_s < freed_s} == set(before)
    newest = scene.newest()
    wait_for(
        lambda: {name: one.position.sequence for name, one in scene.checkpoints().items()} == newest,
        "the checkpoints to catch up",
    )


@pytest.mark.parametrize("names", [(LEASES,), (LEASES, PROGRESS)], ids=["leases", "both"])
def test_at_a_long_lock_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, names: Sequence[str]) -> None:
    instances = start_two(scene)
    before = scene.epochs()
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        locked_s, freed_s = lock(scene, names, LONG_S)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=freed_s)
    calls = scene.wait_until_handled()
    deadline_s = locked_s + TTL_S - MARGIN_S
    assert not [str(call) for call in calls if deadline_s <= call.began_s < freed_s]
    assert all(epoch > before[partition] for partition, epoch in scene.epochs().items())
    scene.wait_until_even(*instances)
    for instance in instances:
        assert instance.process.poll() is None
        assert "StoreUnavailable: The store has not answered for 1.0 s. It will be tried again" in instance.log
        assert "Traceback" not in instance.log
    if PROGRESS not in names:
        assert not repeats(calls), "progress was not locked, so the last commit could be written"


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
def test_a_store_that_is_deleted_is_made_anew_and_nothing_is_lost(scene: Scene, names: Sequence[str]) -> None:
    """Who came first decides who has what; in the new store the names alone do. So in one of the two cases everybody
    goes on with what it remembers, and in the other with what it never had."""
    scene.make_hub(4)
    instances = []
    for name in names:
        instances.append(scene.start(name, longest_ttl_s=TTL_S))
        scene.wait_until_even(*instances)
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        before = {one: instance.pid for instance in instances for one in scene.owned(instance)}
        away = scene.folder / "deleted"
        deleted_s = boot_s()
        scene.store.rename(away)
        shutil.rmtree(away)
        for instance in instances:
            wait_for(lambda: "the store lost writes (history 0 -> 1)" in instance.log, f"{instance} to notice")  # noqa: B023
        scene.wait_until_even(*instances)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=deleted_s + TTL_S)
    calls = scene.wait_until_handled()
    assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}
    assert [instance.process.poll() for instance in instances] == [None, None]
    remembered = {one for instance in instances for one in scene.owned(instance) if before[one] == instance.pid}
    assert len(remembered) == (4 if names == ("one", "two") else 0)
    assert not [repeat for repeat in repeats(calls) if repeat.partition in remembered]
