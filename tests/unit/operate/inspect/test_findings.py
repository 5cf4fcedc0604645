"""What is wrong, in words: from rows alone."""

from __future__ import annotations

from typing import Any

import pytest

from evenflow.model import Wish
from evenflow.operate.inspect.findings import findings_of
from evenflow.operate.inspect.hints import Hints
from evenflow.operate.inspect.members import MemberRow
from evenflow.operate.inspect.ownership import PartitionFailure, PartitionRow


def row(partition: str = "0", status: Any = "ok", **facts: Any) -> PartitionRow:
    known: dict[str, Any] = {"owner": "ada", "epoch": 1, "offset": "4", "sequence": 4, "newest": 9, "lag": 5}
    known |= {"changed_at": 1.0, "checkpoint_at": 1.0, "reason": "claimed"}
    return PartitionRow(partition=partition, status=status, **(known | facts))


def member(name: str = "ada", partitions: int = 1, share: int | None = 1, **facts: Any) -> MemberRow:
    known: dict[str, Any] = {"incarnation": 1, "weight": 1.0, "host": "h", "pid": 1, "version": "1", "started_at": 1.0}
    known |= {"heartbeat_at": 1.0, "heartbeat_s": 2.0, "ttl_s": 8.0, "silent_s": 0.1, "status": "alive"}
    return MemberRow(id=name, partitions=partitions, share=share, **(known | facts))


STOPPED = PartitionFailure(kind="stopped", error="ValueError: no", offset="5", attempts=3, by="ada", at=1.0)


def test_where_all_is_well_there_is_nothing_to_say() -> None:
    assert findings_of([row("0"), row("1", "starting"), row("2", "moving"), row("3", "ended")], [member()]) == []


def test_the_worst_comes_first() -> None:
    rows = [
        row("0", "paused", pause=Wish(by="eve", why="tests")),
        row("1", "events gone"),
        row("a", "position lost"),
        row("2", "stalled"),
        row("3", "tripped", failure=PartitionFailure(kind="tripped", error="E")),
        row("4", "stopped", failure=STOPPED),
        row("5", "owner silent"),
        row("6", "unowned", owner=None),
        row("7", "retrying", failure=PartitionFailure(kind="retrying", error="E", attempts=2)),
        row("8", "careful"),
        row("9", parked=2),
    ]
    found = findings_of(rows, [member(partitions=9, share=5)])
    assert [finding.kind for finding in found] == [
        "unowned", "owner silent", "stopped", "tripped", "stalled", "events gone", "position lost",
        "retrying", "careful", "parked", "paused", "imbalance",
    ]  # fmt: skip
    assert [finding.partitions for finding in found] == [(name,) for name in "654321a7890"] + [()]


def test_a_poison_event_is_reported_with_its_position_its_error_and_what_to_do() -> None:
    (found,) = findings_of([row("4", "stopped", failure=STOPPED)], [member()])
    assert found.what == "partition 4 is blocked at event 5, which failed 3 times, as ada reported: ValueError: no."
    assert "evenflow group resume --partition 4" in found.advice
    assert "evenflow group seek --shift-by 1 --partition 4" in found.advice


def test_a_hint_means_the_group_that_was_asked_for_wherever_it_is_pasted() -> None:
    hints = Hints(
        flags="--store sqlite:leases --group alerts", hub="data/my homes", dead_letters="--dead-letters jsonl:dead"
    )
    rows = [
        row("4", "stopped", failure=STOPPED),
        row("5", "events gone"),
        row("6", "paused", pause=Wish()),
        row("7", parked=2, parked_keys=("home-2", "home-10")),
    ]
    stopped, gone, parked, dead, paused = findings_of(rows, [member()], hints, dead_letters=3)
    flags = "--store sqlite:leases --group alerts"
    assert stopped.advice == (
        "Look at it: evenflow hub tail 'data/my homes' --from 5 --partition 4 --count 1; fix the handler, then"
        f" resume: evenflow group resume --partition 4 {flags}; or skip the event: evenflow group seek --shift-by 1"
        f" --partition 4 {flags}"
    )
    assert gone.advice == (
        f"To continue with the oldest event that is left: evenflow group seek --to-earliest --partition 5 {flags}"
    )
    assert "2 keys (home-2 and home-10) parked in partition 7" in parked.what
    assert parked.advice.endswith(f"evenflow dead-letters redrive --all --dead-letters jsonl:dead {flags}")
    assert (dead.kind, dead.what) == ("dead letters", "3 open dead letters: events that could not be handled.")
    assert dead.advice == f"Look at them: evenflow dead-letters list --dead-letters jsonl:dead {flags}"
    assert paused.advice == f"Resume: evenflow group resume --partition 6 {flags}"
    assert findings_of([row()], [member()], hints, dead_letters=0) == []


def test_a_partition_that_waits_for_a_writer_names_the_writer() -> None:
    (found,) = findings_of([row("4", "held back", held="3 changes wait for process 7")], [member()])
    assert (found.kind, found.partitions) == ("held back", ("4",))
    assert found.what == "partition 4: 3 changes wait for process 7."


def test_a_stop_is_reported_even_for_a_paused_partition() -> None:
    found = findings_of([row("4", "paused", pause=Wish(), failure=STOPPED)], [member()])
    assert [finding.kind for finding in found] == ["stopped", "paused"]


def test_many_of_a_kind_are_one_finding() -> None:
    (found,) = findings_of([row(str(number), "unowned") for number in range(20)], [member()])
    assert found.what == "each of 20 partitions (0, 1, 2, 3, 4, 5, 6, 7 and 12 more) has no owner."
    assert len(found.partitions) == 20


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ([], "this group has no instances."),
        ([member(status="silent")], "this group has no live instances: all are silent."),
    ],
)
def test_a_group_without_live_instances_is_reported(members: list[MemberRow], what: str) -> None:
    (found,) = findings_of([row("0", "unowned"), row("1", "owner silent")], members)
    assert (found.kind, found.what) == ("unowned", what)
    assert findings_of([], members) == []


def test_a_group_whose_last_members_had_caught_up_is_between_runs() -> None:
    done = {"owner": None, "reason": "released: ada has caught up", "changed_at": 1794821850.0}
    rows = [row("0", "unowned", **done), row("1", "unowned", **done | {"changed_at": 5.0}), row("2", "ended")]
    appeared = row("3", "unowned", owner=None, reason=None, changed_at=None)
    for seen in (rows, [*rows, appeared]):
        (found,) = findings_of(seen, [])
        assert found.kind == "between runs"
        assert (
            found.what == "no instance is running: the last one had caught up and left on 2026-11-16 at 09:37:30 UTC."
        )
    stopped = row("3", "unowned", owner=None, reason="released: bo leaves")
    assert [one.kind for one in findings_of([*rows, stopped], [])] == ["unowned"]
    assert [one.kind for one in findings_of([appeared], [])] == ["unowned"]
    assert [one.kind for one in findings_of(rows, [member()])] == ["unowned"], (
        "an instance runs and has not claimed them"
    )


def test_a_paused_group_is_one_finding() -> None:
    (found,) = findings_of([row("0", "paused", pause=Wish("eve", "tests")), row("1", "paused")], [member()])
    assert str(found) == "paused: the whole group is paused by eve (tests). Resume: evenflow group resume"


def test_what_has_ended_does_not_keep_a_group_from_being_paused_as_a_whole() -> None:
    wish = Wish("eve", "tests")
    damaged = row("3", "paused", pause=Wish("the store", "Put it back.", damaged=True))
    rows = [row("0", "ended", pause=wish), row("1", "paused", pause=wish), row("2", "paused", pause=wish)]
    (found,) = findings_of(rows, [member()])
    assert str(found) == "paused: the whole group is paused by eve (tests). Resume: evenflow group resume"
    assert found.partitions == ("1", "2")
    assert findings_of([*rows, damaged], [member()])[1].advice == "Resume: evenflow group resume"


def test_a_lease_that_the_store_cannot_read_is_not_to_be_resumed() -> None:
    damaged = row("1", "paused", pause=Wish("the store", "Its Owner is 5. Put it back.", damaged=True))
    worse, paused = findings_of([row("0", "paused", pause=Wish("eve", "tests")), damaged, row("2")], [member()])
    shown = "the store cannot read its record of partition 1, so no instance may own it."
    assert str(worse) == f"damaged: {shown} Its Owner is 5. Put it back."
    assert str(paused) == "paused: partition 0 is paused by eve (tests). Resume: evenflow group resume --partition 0"


def test_who_has_more_than_its_share_is_named() -> None:
    (found,) = findings_of([row()], [member("ada", 4, 2), member("bo", 0, 2), member("cy", 3, None)])
    assert found.what == "ada has 4 partitions; its fair share is 2."
    loaded = member("ada", 2, 1, load=1.4, load_of_mean=1.42, excess=1), member("bo", 2, 2, load=0.6, load_of_mean=0.58)
    (found,) = findings_of([row()], loaded)
    assert found.what == "ada has 1.42 times the mean load: 1 partition should move away."
    full = member("ada", 2, 1, load=1.4, load_of_mean=1.42)  # one heavy partition cannot be divided
    assert findings_of([row()], [full]) == []
