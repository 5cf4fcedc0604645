"""What the page is told: sections made from a look. Unknown is null, and a crowd is not sent one by one."""

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


def rows_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = sorted((name for name in told if name.startswith("rows/")), key=lambda name: int(name[5:]))
    return [dict(zip(COLUMNS, row, strict=True)) for name in blocks for row in told[name]]


def test_a_settled_group_is_told_with_owners_lag_and_shares() -> None:
    told = sections(look_at(even()), known())
    assert told["head"]["status"] == "ok"
    assert (told["head"]["owned"], told["head"]["partitions"], told["head"]["settled"]) == (4, 4, True)
    assert [(row["id"], row["owner"], row["lag"]) for row in rows_of(told)] == [
        ("0", 0, 10), ("1", 1, 10), ("2", 0, 10), ("3", 1, 10),
    ]  # fmt: skip
    assert [(one["id"], one["tag"], one["partitions"], one["share"]) for one in told["members"]] == [
        ("node-1", 0, 2, 2), ("node-2", 1, 2, 2),
    ]  # fmt: skip
    assert told["names"] == ["node-1", "node-2"]
    assert told["sums"]["uneven"] == 0


def ended(partition: str, at: float = WALL_S) -> Lease:
    return replace(lease(partition, None, 2, "ended: split into 10, 11"), ended=True, changed_at=at)


def test_what_has_ended_is_told_last_with_its_past_and_counted_apart() -> None:
    moves = [move("0", 1, None, 2, "ended: split into 10, 11"), move("0", None, 1, 1, "claimed", WALL_S - 60)]
    survey = even(leases=[ended("0"), *(lease(name, 1) for name in "123")])
    told = sections(look_at(survey), known(moves))
    assert (told["head"]["owned"], told["head"]["partitions"], told["head"]["ended"]) == (3, 3, 1)
    assert [row["id"] for row in rows_of(told)] == ["1", "2", "3", "0"]
    lane = told["bands/0"][-1]
    assert [(since, owner, BAND_KINDS[kind]) for since, _, owner, kind, _ in lane[1]] == [
        (WALL_S - 60, 0, "owned"), (WALL_S, None, "ended"),
    ]  # fmt: skip
    assert told["sums"]["gap_s"] is None
    listed = brief(GROUP, look_at(survey))
    assert (listed["owned"], listed["partitions"]) == (3, 3)


def test_many_that_have_ended_make_no_crowd_and_only_the_last_are_sent() -> None:
    past = [ended(str(1_000 + number), WALL_S - number) for number in range(LARGE)]
    look = look_at(even(leases=[lease("0", 1), *past]))
    told = sections(look, known())
    assert (told["head"]["large"], told["head"]["ended"], told["head"]["partitions"]) == (False, LARGE, 4)
    assert [row["id"] for row in rows_of(told)][4:] == [str(1_000 + number) for number in range(ENDED_MOST)]
    assert page_of_rows(look, known().tags, text="", status="", owner="", start=0)["rows"][4][2] == "ended"


def test_what_is_unknown_is_null_and_never_zero() -> None:
    told = sections(look_at(even(newest={}, records=[])), known())
    row = rows_of(told)[0]
    assert [row[name] for name in ("lag", "lag_s", "per_s", "catch_up_s", "expires_s", "checkpoint_at")] == [None] * 6
    sums = told["sums"]
    assert (sums["lag"], sums["lag_s"], sums["per_s"], sums["gap_s"], sums["dead_letters"]) == (None,) * 5
    assert [one["busy"] for one in told["members"]] == [None, None]
    assert [one["silent_s"] for one in told["members"]] == [None, None]
    assert [one["charges"] for one in told["members"]] == [None, None]


def test_the_longest_gap_begins_with_the_last_heartbeat_and_counts_what_goes_on() -> None:
    moves = [
        move("0", 2, 1, 2, "taken over: no heartbeat of node-2 for 8.0 s", WALL_S - 20),
        move("0", None, 2, 1, "claimed", WALL_S - 60),
    ]
    survey = even(moves=moves, leases=[lease("0", 1, 2)])
    facts = known(moves)
    assert sections(look_at(survey), facts)["sums"]["gap_s"] == 8.0, "as the reason tells, when nobody has watched"
    facts.pulses.silences[("0", 2)] = WALL_S - 29.7
    assert sections(look_at(survey), facts)["sums"]["gap_s"] == 9.7
    facts.pulses.silent_since["node-1"] = WALL_S - 12
    assert sections(look_at(survey), facts)["sums"]["gap_s"] == 12.0


def test_rates_and_time_to_catch_up_come_with_the_second_look() -> None:
    watcher = GroupWatcher()
    look_at(even(), 0.0, watcher)
    later = even(records=[record(str(name), 94) for name in range(4)], newest={str(name): 101 for name in range(4)})
    told = sections(look_at(later, 1.0, watcher), known())
    assert told["sums"]["per_s"] == 16.0
    assert told["sums"]["lag"] == 28
    assert rows_of(told)[0]["per_s"] == 4.0


def test_an_instance_keeps_its_colour_after_it_has_left() -> None:
    story = [move("0", 3, 1, 2, "handed over: node-3 leaves")]
    beside = known(story)
    assert sections(look_at(even()), beside)["names"] == ["node-1", "node-2", "node-3"]
    assert sections(look_at(even(members=3)), beside)["members"][2]["tag"] == 2


def test_moves_are_told_together_with_what_comes_again() -> None:
    moves = [
        move("3", 1, 2, 3, "taken over: no heartbeat of node-1 for 8.0 s", WALL_S - 5),
        move("1", 1, 2, 2, "handed over: node-1 had 4, its share is 2", WALL_S - 50),
        move("0", 1, 2, 2, "handed over: node-1 had 4, its share is 2", WALL_S - 50.5),
    ]
    repeats = DuplicateEstimator()
    for epoch in (1, 2):
        records = [record(name, 90, epoch, begun=88 if name == "0" and epoch == 2 else 91) for name in ("0", "1")]
        leases = [lease("0", epoch, epoch), lease("1", epoch, epoch)]
        repeats.look(look_at(even(leases=leases, records=records)), float(epoch))
    told = sections(look_at(even()), known(moves, repeats=repeats))
    assert [(one["kind"], one["partitions"], one["certainty"], one["duplicates"]) for one in told["story"]] == [
        ("taken over", ["3"], "unknown", None),
        ("handed over", ["0", "1"], "exact", 3),
    ]
    assert (told["sums"]["planned_moves"], told["sums"]["unplanned_moves"]) == (2, 1)
    assert told["sums"]["planned"] == {"events": 3, "cut_off": 0, "unknown": 0}
    assert told["sums"]["crashed"] == {"events": None, "cut_off": None, "unknown": 1}


def test_a_pause_is_told_with_who_and_why() -> None:
    state = GroupState(pauses={"": Wish("ann", "the database moves", WALL_S)})
    told = sections(look_at(even(state=state)), known())
    assert told["head"]["pause"] == {"by": "ann", "why": "the database moves", "at": WALL_S}
    assert {row["status"] for row in rows_of(told)} == {"paused"}


def test_a_broken_partition_hides_no_other() -> None:
    newest = dict.fromkeys("012", 100)
    told = sections(look_at(even(newest=newest, problems=("partition 3: its file is damaged",))), known())
    assert told["head"]["problems"] == ["partition 3: its file is damaged"]
    assert [row["lag"] for row in rows_of(told)] == [10, 10, 10, None]
    assert (told["sums"]["lag"], told["sums"]["unknown_lags"]) == (30, 1)


def test_one_instance_more_or_less_is_foreseen() -> None:
    told = sections(look_at(even()), known())
    assert [(plan["members"], plan["moving"]) for plan in told["plans"]] == [(1, 2), (2, 0), (3, 1)]
    assert planned(look_at(even()), 4)["moving"] == 2
    nobody = sections(look_at(found(newest={"0": 1})), known())
    assert [plan["members"] for plan in nobody["plans"]] == [0, 1]


def test_actions_are_told_as_they_were_recorded() -> None:
    action = Action(kind="pause", by="ann", why="lunch", what="the whole group", at=WALL_S)
    assert sections(look_at(even()), known(actions=[action]))["actions"] == [
        {"kind": "pause", "by": "ann", "why": "lunch", "what": "the whole group", "at": WALL_S}
    ]


def test_a_partition_is_explained() -> None:
    beside = known([move("1", 1, 2, 2, "handed over: node-1 had 4"), move("0", 1, 2, 2, "handed over")])
    told = explanation(look_at(even()), beside, "1")
    assert told["where"].startswith("node-2 owns it")
    assert [one["reason"] for one in told["moves"]] == ["handed over: node-1 had 4"]
    with pytest.raises(Misconfigured, match="no partition '9'"):
        explanation(look_at(even()), beside, "9")


def test_a_crowd_travels_as_a_crowd() -> None:
    count = LARGE + 100
    told = sections(look_at(even(count, 3)), known())
    assert not [name for name in told if name.startswith(("rows/", "bands/"))]
    cells = [cell for name in told if name.startswith("crowd/") for cell in told[name]]
    assert len(cells) == count
    assert cells[4] == ["4", 1, 0, 2]
    assert (told["statuses"], told["counts"]) == (["ok"], {"ok": count})


def test_a_page_of_many_rows_can_be_chosen_from() -> None:
    look, tags = look_at(even(500, 2, records=[record(str(name), 90) for name in range(499)])), known().tags
    whole = page_of_rows(look, tags, text="", status="", owner="", start=400)
    assert (whole["total"], len(whole["rows"]), whole["rows"][0][0]) == (500, 100, "400")
    late = found(leases=[lease("0", 1), lease("1", None), lease("2", 1)], members=[member(1)], newest={"2": 5})
    ordered = page_of_rows(look_at(late), tags, text="", status="", owner="", start=0)["rows"]
    assert [row[0] for row in ordered] == ["1", "0", "2"]
    assert page_of_rows(look, tags, text="49", status="", owner="node-2", start=0)["total"] == 10
    assert page_of_rows(look, tags, text="", status="starting", owner="", start=0)["total"] == 1
    assert page_of_rows(look, tags, text="", status="problems", owner="", start=0)["total"] == 0


def test_a_group_in_a_list_may_be_unknown() -> None:
    assert brief(GROUP, look_at(even()))["owned"] == 4
    told = brief(GROUP, None, "the store does not answer")
    assert (told["status"], told["lag"], told["problem"]) == (None, None, "the store does not answer")
