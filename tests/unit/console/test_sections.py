"""The sections that the page gets from a snapshot. Unknown is null, and many partitions are not sent one by one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from evenflow.console.history import LARGE
from evenflow.console.sections import (
    BAND_KINDS,
    COLUMNS,
    ENDED_MOST,
    brief,
    explanation,
    page_of_rows,
    planned,
    sections,
)
from evenflow.errors import Misconfigured
from evenflow.model import Action, GroupState, Lease, Wish
from evenflow.operate.inspect.duplicates import DuplicateEstimator
from evenflow.operate.inspect.watcher import GroupWatcher
from tests.unit.console.scenes import GROUP, WALL_S, found, known, lease, look_at, member, move, record


def even(partitions: int = 4, members: int = 2, **facts: Any) -> Any:
    """So many instances with even shares."""
    names = [str(number) for number in range(partitions)]
    usual: dict[str, Any] = {
        "members": [member(number + 1) for number in range(members)],
        "leases": [lease(name, int(name) % members + 1) for name in names],
        "records": [record(name, 90) for name in names],
        "newest": dict.fromkeys(names, 100),
    }
    return found(**usual | facts)


def rows_of(shown: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = sorted((name for name in shown if name.startswith("rows/")), key=lambda name: int(name[5:]))
    return [dict(zip(COLUMNS, row, strict=True)) for name in blocks for row in shown[name]]


def test_a_settled_group_has_owners_lag_and_shares() -> None:
    shown = sections(look_at(even()), known())
    assert shown["head"]["status"] == "ok"
    assert (shown["head"]["owned"], shown["head"]["partitions"], shown["head"]["settled"]) == (4, 4, True)
    assert [(row["id"], row["owner"], row["lag"]) for row in rows_of(shown)] == [
        ("0", 0, 10), ("1", 1, 10), ("2", 0, 10), ("3", 1, 10),
    ]  # fmt: skip
    assert [(one["id"], one["tag"], one["partitions"], one["share"]) for one in shown["members"]] == [
        ("node-1", 0, 2, 2), ("node-2", 1, 2, 2),
    ]  # fmt: skip
    assert shown["names"] == ["node-1", "node-2"]
    assert shown["sums"]["uneven"] == 0


def ended(partition: str, at: float = WALL_S) -> Lease:
    return replace(lease(partition, None, 2, "ended: split into 10, 11"), ended=True, changed_at=at)


def test_ended_partitions_come_last_with_their_past_and_are_counted_separately() -> None:
    moves = [move("0", 1, None, 2, "ended: split into 10, 11"), move("0", None, 1, 1, "claimed", WALL_S - 60)]
    survey = even(leases=[ended("0"), *(lease(name, 1) for name in "123")])
    shown = sections(look_at(survey), known(moves))
    assert (shown["head"]["owned"], shown["head"]["partitions"], shown["head"]["ended"]) == (3, 3, 1)
    assert [row["id"] for row in rows_of(shown)] == ["1", "2", "3", "0"]
    lane = shown["bands/0"][-1]
    assert [(since, owner, BAND_KINDS[kind]) for since, _, owner, kind, _ in lane[1]] == [
        (WALL_S - 60, 0, "owned"), (WALL_S, None, "ended"),
    ]  # fmt: skip
    assert shown["sums"]["gap_s"] is None
    listed = brief(GROUP, look_at(survey))
    assert (listed["owned"], listed["partitions"]) == (3, 3)


def test_many_that_have_ended_make_no_crowd_and_only_the_last_are_sent() -> None:
    past = [ended(str(1_000 + number), WALL_S - number) for number in range(LARGE)]
    snapshot = look_at(even(leases=[lease("0", 1), *past]))
    shown = sections(snapshot, known())
    assert (shown["head"]["large"], shown["head"]["ended"], shown["head"]["partitions"]) == (False, LARGE, 4)
    assert [row["id"] for row in rows_of(shown)][4:] == [str(1_000 + number) for number in range(ENDED_MOST)]
    assert page_of_rows(snapshot, known().tags, text="", status="", owner="", start=0)["rows"][4][2] == "ended"


def test_what_is_unknown_is_null_and_never_zero() -> None:
    shown = sections(look_at(even(newest={}, records=[])), known())
    row = rows_of(shown)[0]
    assert [row[name] for name in ("lag", "lag_s", "per_s", "catch_up_s", "expires_s", "checkpoint_at")] == [None] * 6
    sums = shown["sums"]
    assert (sums["lag"], sums["lag_s"], sums["per_s"], sums["gap_s"], sums["dead_letters"]) == (None,) * 5
    assert [one["busy"] for one in shown["members"]] == [None, None]
    assert [one["silent_s"] for one in shown["members"]] == [None, None]
    assert [one["charges"] for one in shown["members"]] == [None, None]


def test_the_longest_gap_begins_with_the_last_heartbeat_and_counts_what_goes_on() -> None:
    moves = [
        move("0", 2, 1, 2, "taken over: no heartbeat of node-2 for 8.0 s", WALL_S - 20),
        move("0", None, 2, 1, "claimed", WALL_S - 60),
    ]
    survey = even(moves=moves, leases=[lease("0", 1, 2)])
    facts = known(moves)
    assert sections(look_at(survey), facts)["sums"]["gap_s"] == 8.0, "as the reason says, when no console has watched"
    facts.silence_history.silences[("0", 2)] = WALL_S - 29.7
    assert sections(look_at(survey), facts)["sums"]["gap_s"] == 9.7
    facts.silence_history.silent_since["node-1"] = WALL_S - 12
    assert sections(look_at(survey), facts)["sums"]["gap_s"] == 12.0


def test_rates_and_time_to_catch_up_come_with_the_second_look() -> None:
    watcher = GroupWatcher()
    look_at(even(), 0.0, watcher)
    later = even(records=[record(str(name), 94) for name in range(4)], newest={str(name): 101 for name in range(4)})
    shown = sections(look_at(later, 1.0, watcher), known())
    assert shown["sums"]["per_s"] == 16.0
    assert shown["sums"]["lag"] == 28
    assert rows_of(shown)[0]["per_s"] == 4.0


def test_an_instance_keeps_its_colour_after_it_has_left() -> None:
    story = [move("0", 3, 1, 2, "handed over: node-3 leaves")]
    beside = known(story)
    assert sections(look_at(even()), beside)["names"] == ["node-1", "node-2", "node-3"]
    assert sections(look_at(even(members=3)), beside)["members"][2]["tag"] == 2


def test_moves_are_grouped_with_their_duplicates() -> None:
    moves = [
        move("3", 1, 2, 3, "taken over: no heartbeat of node-1 for 8.0 s", WALL_S - 5),
        move("1", 1, 2, 2, "handed over: node-1 had 4, its share is 2", WALL_S - 50),
        move("0", 1, 2, 2, "handed over: node-1 had 4, its share is 2", WALL_S - 50.5),
    ]
    duplicates = DuplicateEstimator()
    for epoch in (1, 2):
        records = [record(name, 90, epoch, begun=88 if name == "0" and epoch == 2 else 91) for name in ("0", "1")]
        leases = [lease("0", epoch, epoch), lease("1", epoch, epoch)]
        duplicates.observe(look_at(even(leases=leases, records=records)), float(epoch))
    shown = sections(look_at(even()), known(moves, duplicates=duplicates))
    assert [(one["kind"], one["partitions"], one["certainty"], one["duplicates"]) for one in shown["story"]] == [
        ("taken over", ["3"], "unknown", None),
        ("handed over", ["0", "1"], "exact", 3),
    ]
    assert (shown["sums"]["planned_moves"], shown["sums"]["unplanned_moves"]) == (2, 1)
    assert shown["sums"]["planned"] == {"events": 3, "cut_off": 0, "unknown": 0}
    assert shown["sums"]["crashed"] == {"events": None, "cut_off": None, "unknown": 1}


def test_a_pause_has_its_operator_and_reason() -> None:
    state = GroupState(pauses={"": Wish("ann", "the database moves", WALL_S)})
    shown = sections(look_at(even(state=state)), known())
    assert shown["head"]["pause"] == {"by": "ann", "why": "the database moves", "at": WALL_S}
    assert {row["status"] for row in rows_of(shown)} == {"paused"}


def test_a_broken_partition_hides_no_other() -> None:
    newest = dict.fromkeys("012", 100)
    shown = sections(look_at(even(newest=newest, problems=("partition 3: its file is damaged",))), known())
    assert shown["head"]["problems"] == ["partition 3: its file is damaged"]
    assert [row["lag"] for row in rows_of(shown)] == [10, 10, 10, None]
    assert (shown["sums"]["lag"], shown["sums"]["unknown_lags"]) == (30, 1)


def test_one_instance_more_or_less_is_foreseen() -> None:
    shown = sections(look_at(even()), known())
    assert [(plan["members"], plan["moving"]) for plan in shown["plans"]] == [(1, 2), (2, 0), (3, 1)]
    assert planned(look_at(even()), 4)["moving"] == 2
    empty = sections(look_at(found(newest={"0": 1})), known())
    assert [plan["members"] for plan in empty["plans"]] == [0, 1]


def test_actions_are_shown_as_recorded() -> None:
    action = Action(kind="pause", by="ann", why="lunch", what="the whole group", at=WALL_S)
    assert sections(look_at(even()), known(actions=[action]))["actions"] == [
        {"kind": "pause", "by": "ann", "why": "lunch", "what": "the whole group", "at": WALL_S}
    ]


def test_a_partition_is_explained() -> None:
    beside = known([move("1", 1, 2, 2, "handed over: node-1 had 4"), move("0", 1, 2, 2, "handed over")])
    shown = explanation(look_at(even()), beside, "1")
    assert shown["where"].startswith("node-2 owns it")
    assert [one["reason"] for one in shown["moves"]] == ["handed over: node-1 had 4"]
    with pytest.raises(Misconfigured, match="no partition '9'"):
        explanation(look_at(even()), beside, "9")


def test_a_crowd_travels_as_a_crowd() -> None:
    count = LARGE + 100
    shown = sections(look_at(even(count, 3)), known())
    assert not [name for name in shown if name.startswith(("rows/", "bands/"))]
    cells = [cell for name in shown if name.startswith("crowd/") for cell in shown[name]]
    assert len(cells) == count
    assert cells[4] == ["4", 1, 0, 2]
    assert (shown["statuses"], shown["counts"]) == (["ok"], {"ok": count})


def test_a_page_of_many_rows_can_be_chosen_from() -> None:
    snapshot, tags = look_at(even(500, 2, records=[record(str(name), 90) for name in range(499)])), known().tags
    whole = page_of_rows(snapshot, tags, text="", status="", owner="", start=400)
    assert (whole["total"], len(whole["rows"]), whole["rows"][0][0]) == (500, 100, "400")
    late = found(leases=[lease("0", 1), lease("1", None), lease("2", 1)], members=[member(1)], newest={"2": 5})
    ordered = page_of_rows(look_at(late), tags, text="", status="", owner="", start=0)["rows"]
    assert [row[0] for row in ordered] == ["1", "0", "2"]
    assert page_of_rows(snapshot, tags, text="49", status="", owner="node-2", start=0)["total"] == 10
    assert page_of_rows(snapshot, tags, text="", status="starting", owner="", start=0)["total"] == 1
    assert page_of_rows(snapshot, tags, text="", status="problems", owner="", start=0)["total"] == 0


def test_a_group_in_a_list_may_be_unknown() -> None:
    assert brief(GROUP, look_at(even()))["owned"] == 4
    shown = brief(GROUP, None, "the store does not answer")
    assert (shown["status"], shown["lag"], shown["problem"]) == (None, None, "the store does not answer")
