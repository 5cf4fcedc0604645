"""What the log says: each sentence can be understood by itself."""

from __future__ import annotations

from typing import Any

from evenflow.model import Position
from evenflow.signals import (
    DeadLettered,
    Gone,
    PartitionStopped,
    PositionLost,
    Redriven,
    Skipped,
    Stopped,
    Tripped,
)

AT = Position("41", 41)
GROUP = "night alerts"


def test_a_stop_names_its_group_in_what_to_do() -> None:
    said = str(Stopped(group_name=GROUP, partition="3", position=AT, error="ValueError: no such home.", attempts=1))
    flags = "--partition 3 --group 'night alerts'"
    assert said.startswith("partition 3 is STOPPED at event 41, which failed 1 time: ValueError: no such home. Fix")
    assert f"`evenflow group resume {flags}`" in said
    assert f"`evenflow group seek --shift-by 1 {flags}`" in said


def test_an_event_that_failed_is_named_with_its_document_or_key() -> None:
    whose = "document 'o-7', key 'c-0'"
    facts: dict[str, Any] = {"partition": "3", "position": AT, "error": "E", "attempts": 2, "whose": whose}
    assert f"STOPPED at event 41 ({whose}), which" in str(Stopped(group_name=GROUP, **facts))
    assert str(Skipped(**facts)) == f"partition 3: skipped event 41 ({whose}) after 2 attempts: E"
    dead_letter = DeadLettered(dead_letters=1, reason="poison", **facts)
    assert str(dead_letter) == f"partition 3: dead-lettered event 41 ({whose}) after 2 attempts (poison): E"
    tripped = Tripped(partition="3", position=AT, error="E", pauses=1, again_in_s=1.0, whose=whose)
    assert f"TRIPPED at event 41 ({whose}), too many events fail: E; retrying" in str(tripped)


def test_an_error_that_asks_stays_a_question() -> None:
    said = str(Gone(group_name=GROUP, partition="3", after=AT, error="It is none of ours. Was it another's?"))
    assert "Was it another's? To continue with the oldest event that is left, run `evenflow group seek" in said


def test_a_lost_checkpoint_is_logged_with_what_becomes_of_the_partition() -> None:
    went_on = str(PositionLost(group_name=GROUP, partition="3", to=AT, halted=False))
    assert "It continues after 41, at the oldest event that is left" in went_on
    halted = str(PositionLost(group_name="it's", partition="3", to=AT, halted=True))
    assert "partition 3 is HALTED: the store lost its checkpoint" in halted
    assert "`evenflow group seek --partition 3 --group 'it'\"'\"'s'` with --to-earliest" in halted


def test_a_partition_that_ends_well_is_not_called_stopped() -> None:
    ended = PartitionStopped(partition="0", epoch=3, reason="leaving", handled=12)
    assert str(ended) == "partition 0 stopped after 12 events (epoch 3): leaving"


def test_one_is_counted_as_one() -> None:
    one = DeadLettered(partition="0", position=AT, dead_letters=1, reason="poison", error="E", attempts=1)
    assert str(one) == "partition 0: dead-lettered event 41 after 1 attempt (poison): E"
    assert str(Redriven(partition="0", done=1, failed=0)) == "partition 0: 1 dead letter redriven, 0 failed again"
