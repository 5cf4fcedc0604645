"""Moves that belong together are shown as one."""

from __future__ import annotations

from evenflow.model import Move
from evenflow.operate.inspect.move_groups import group_moves


def move(partition: str, at: float, after: str = "bo", reason: str = "handed over: ada had 6, its share is 4") -> Move:
    return Move(partition=partition, epoch=2, reason=reason, at=at, before="ada", after=after)


def test_moves_between_the_same_instances_at_nearly_the_same_time_are_one() -> None:
    moves = [
        move("7", at=110.0),
        move("5", at=101.0, reason="handed over: ada had 5, its share is 4"),
        move("1", at=100.5, after="cy"),
        move("3", at=100.0),
        move("9", at=100.0, reason="taken over: no heartbeat of ada for 8.0 s"),
    ]
    assert [(group.after, group.partitions, group.reason) for group in group_moves(moves)] == [
        ("bo", ("7",), "handed over: ada had 6, its share is 4"),
        ("bo", ("5", "3"), "handed over: ada had 6, its share is 4"),
        ("cy", ("1",), "handed over: ada had 6, its share is 4"),
        ("bo", ("9",), "taken over: no heartbeat of ada for 8.0 s"),
    ]


def test_a_partition_that_moves_twice_is_two_moves() -> None:
    assert [group.partitions for group in group_moves([move("3", at=101.0), move("3", at=100.0)])] == [("3",), ("3",)]
