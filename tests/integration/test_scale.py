"""Planned moves between real processes: nothing is lost, nothing handled twice, no time-to-live is waited for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.calls import boot_s, repeats
from tests.integration.programs import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from tests.integration.scene import Scene

pytestmark = pytest.mark.process

TTL_S = 60.0
AT_ONCE_S = PATIENCE_S
"""It takes a fraction of a second, or more on a very busy machine; a time-to-live is twice as long as this."""
BACKLOG = [b"backlog"] * 300
"""So that the first moves come in the middle of batches."""


def test_from_one_to_four_and_back_under_load(scene: Scene) -> None:
    scene.make_hub(10)
    scene.send_to_all(BACKLOG)
    with scene.load():
        (first,) = scene.start_even("first", instance_id=None, work_s=0.0005, ttl_s=TTL_S)
        more = [
            scene.start(name, instance_id=None, work_s=0.0005, ttl_s=TTL_S) for name in ("second", "third", "fourth")
        ]
        scene.wait_until_even(first, *more)
        even = scene.epochs()
        scene.wait_for_heartbeats(3)
        assert scene.epochs() == even, "something still moves although shares are even"
        for instance in more:
            scene.wait_for_calls(instance)
        for instance in more:
            instance.ask_to_stop()
        assert [instance.exit_code() for instance in more] == [0, 0, 0]
        assert scene.pids() == {first.pid}
        scene.wait_until_even(first)
        scene.wait_for_calls(first, after_s=boot_s())
    calls = scene.wait_until_handled()
    assert not repeats(calls)
    first.ask_to_stop()
    assert first.exit_code() == 0
    assert scene.pids() == set()
    assert {lease.owner for lease in scene.leases().values()} == {None}


@pytest.mark.parametrize(("number", "handler"), [(signal.SIGTERM, "event"), (signal.SIGINT, "plain batch")])
def test_who_is_asked_to_stop_hands_over_at_once(scene: Scene, number: signal.Signals, handler: str) -> None:
    scene.make_hub(6)
    scene.send_to_all(BACKLOG)
    options: dict[str, Any] = {"checkpoint_s": 60.0, "work_s": 0.001, "batch_events": 20}
    options |= {"handler": handler, "ttl_s": TTL_S}
    with scene.load():
        leaving, staying = scene.start_even("leaving", "staying", **options)
        scene.wait_for_calls(leaving)
        moved = scene.owned(leaving)
        leaving.ask_to_stop(number)
        assert leaving.exit_code() == 0
        scene.wait_until_even(staying)
        scene.wait_for_calls(staying, after_s=boot_s())
        staying.ask_to_stop(number)
        assert staying.exit_code() == 0
        started_s = boot_s()
        successor = scene.start("successor", handler=handler, ttl_s=TTL_S)
        scene.wait_until_even(successor)
        scene.wait_for_calls(successor)
    calls = scene.wait_until_handled()
    assert not repeats(calls)
    for partition in moved:
        last_s = max(call.ended_s or 0.0 for call in leaving.calls if call.partition == partition)
        next_s = min(call.began_s for call in calls if call.partition == partition and call.began_s > last_s)
        assert next_s - last_s < AT_ONCE_S
    assert min(call.began_s for call in successor.calls) - started_s < TTL_S, (
        "it waited for the lease of one that had left"
    )


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_that_appear_are_read_from_their_beginning(scene: Scene, start: str) -> None:
    scene.make_hub(2)
    scene.send_to_all([b"before"] * 5)
    one, two = scene.start_even("one", "two", start=start, ttl_s=TTL_S)
    wait_for(lambda: len(scene.checkpoints()) == 2, "both to be sealed")
    scene.send_to_all([b"after"] * 5)
    scene.add_partitions(3)
    for partition in (2, 3, 4):
        scene.send([b"new"] * 5, partition)
    skipped = 0 if start == "earliest" else 5
    expected = {str(n): set(range(skipped if n < 2 else 0, 10 if n < 2 else 5)) for n in range(5)}

    def handled() -> dict[str, set[int]]:
        return {name: {call.first for call in scene.calls() if call.partition == name} for name in expected}

    wait_for(lambda: handled() == expected, "all that is new to be handled")
    scene.wait_until_even(one, two)
    scene.wait_until_even(one, two, scene.start("three", start=start, ttl_s=TTL_S))
    scene.wait_for_heartbeats(2)
    assert not repeats(scene.checked_calls())
    assert handled() == expected


def test_what_the_application_has_not_marked_is_repeated_after_a_move(scene: Scene) -> None:
    scene.make_hub(4)
    scene.send_to_all([b"x"] * 25)
    manual: dict[str, Any] = {"checkpoint_s": None, "mark_every": 10}
    (first,) = scene.start_even("first", **manual)
    scene.wait_until_handled()
    second = scene.start("second", **manual)
    scene.wait_until_even(first, second)
    moved = scene.owned(second)
    unmarked = {(partition, sequence) for partition in moved for sequence in range(20, 25)}
    wait_for(lambda: len(repeats(scene.calls())) >= len(unmarked), "what was not marked to be repeated")
    first.kill()
    wait_for(lambda: scene.owned(second) == {"0", "1", "2", "3"}, "the takeover")
    scene.send_to_all([b"x"] * 5)
    calls = scene.wait_until_handled()
    everywhere = {(str(partition), sequence) for partition in range(4) for sequence in range(20, 25)}
    assert {(repeat.partition, repeat.sequence) for repeat in repeats(calls)} == everywhere
    assert len(repeats(calls)) == len(everywhere)
    wait_for(
        lambda: {record.position.sequence for record in scene.checkpoints().values()} == {29},
        "what is marked now to be written",
    )
