"""Commands that inspect a group: status, lag, group list and describe, explain, plan."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from evenflow.core.notes import Notes, Stopped
from evenflow.model import Position
from tests.unit.cli.command import answer, evenflow, facts, rows_of
from tests.unit.cli.group_scene import PROFILES, file_dead_letters, leave_records, make_hub

if TYPE_CHECKING:
    from pathlib import Path

STATUS = ("status", "--source", "hub:homes", "--store", "sqlite:leases", "--group", "alerts")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_hub(tmp_path)


@pytest.fixture
def watched(folder: Path) -> Path:
    """Two instances own two partitions each, and have handled nothing yet."""
    asyncio.run(leave_records(folder, members=("ada", "bo")))
    return folder


def test_groups_are_listed_with_their_status(watched: Path) -> None:
    head, row = rows_of(answer("group", "list", folder=watched), "NAMESPACE")
    assert head == ["NAMESPACE", "HUB", "GROUP", "MEMBERS", "PARTITIONS", "OWNED", "LAG", "STATUS"]
    assert row[:6] == ["local", "homes", "alerts", "2", "4", "4"]
    assert row[6] == "40"
    (group,) = facts("group", "list", "--store", "sqlite:leases", folder=watched)["groups"]
    assert (group["members"], group["partitions"], group["owned"], group["lag"]) == (2, 4, 4, None)


def test_a_group_is_described_in_tables(watched: Path) -> None:
    text = answer("group", "describe", folder=watched)
    assert text.startswith("NAMESPACE  local\nHUB        homes\nGROUP      alerts\nSTATUS     ok\nLAG        ")
    partitions = rows_of(text, "PARTITION ")
    assert partitions[0] == [
        "PARTITION", "OWNER", "STATUS", "EPOCH", "LAG", "LAG-TIME", "TREND", "OFFSET", "SEQUENCE", "NEWEST",
        "CHECKPOINT-AGE", "LEASE-AGE", "EXPIRES", "REASON",
    ]  # fmt: skip
    assert [row[0] for row in partitions[1:]] == ["0", "1", "2", "3"]
    assert {row[9] for row in partitions[1:]} == {"9"}
    assert {(row[12], row[6]) for row in partitions[1:]} == {("-", "-")}  # a single snapshot shows neither
    members = rows_of(text, "MEMBER ")
    assert [row[2:4] for row in members[1:]] == [["2", "2"], ["2", "2"]]
    assert rows_of(text, "WHEN ")[0] == ["WHEN", "PARTITION", "FROM", "TO", "EPOCH", "REASON"]


def test_lag_is_shown_alone_with_its_total(watched: Path) -> None:
    head, *rows, total = rows_of(answer("lag", folder=watched), "PARTITION ")
    assert head == ["PARTITION", "STATUS", "SEQUENCE", "NEWEST", "LAG", "LAG-TIME", "TREND"]
    assert total[0] == "total"
    assert int(total[4]) == sum(int(row[4]) for row in rows) > 0
    assert all(int(row[3]) - int(row[2]) == int(row[4]) for row in rows)
    found = facts("lag", folder=watched)
    assert found["lag"] == sum(row["lag"] for row in found["partitions"])
    assert (found["lag_unknown"], found["trend"]) == (0, None)


def test_a_partition_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    next((folder / "homes" / "partitions").glob("*0002*.sqlite*")).write_bytes(b"not a database" * 100)
    done = evenflow("lag", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["lag"] is None for row in found["partitions"]] == [False, False, True, False]
    assert (found["lag"], found["lag_unknown"]) == (30, 1)
    assert "warning: partition 2: " in done.stderr
    assert rows_of(answer("lag", folder=folder), "PARTITION ")[-1][:6] == ["total", "1", "unknown", "-", "-", "30"]


def test_without_a_terminal_top_prints_a_frame_per_refresh(watched: Path) -> None:
    frames = answer("top", "--count", "2", "--every", "0.1", folder=watched).strip().split("evenflow top ")[1:]
    assert len(frames) == 2
    assert "events/s -   lag " in frames[0]
    assert [len(rows_of(frames[1], "MEMBER ")), len(rows_of(frames[1], "PARTITION "))] == [3, 5]
    looks = answer("top", "--count", "2", "--every", "0.1", "--json", folder=watched).splitlines()
    assert [json.loads(look)["per_s"] for look in looks] == [None, 0.0]


def test_a_partition_is_explained(watched: Path) -> None:
    text = answer("explain", "3", folder=watched)
    found = facts("explain", "3", folder=watched)
    owner = found["owner"]
    assert text.startswith("Partition 3 of local/homes/alerts: ok\n\n")
    assert f"{owner} owns it (epoch " in text
    assert text.endswith(
        f"No move planned; it stays with {owner}. {owner} has 2 partitions; its fair share is 2 of 4.\n"
    )
    assert (found["next_owner"], {move["partition"] for move in found["moves"]}) == (owner, {"3"})
    assert found["moves"][0]["after"] == owner
    wrong = evenflow("explain", "9", folder=watched)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "error: local/homes/alerts has no partition '9'. It has: 0, 1, 2 and 3.\n"


def test_a_plan_shows_what_would_move(watched: Path) -> None:
    more = facts("plan", "--members", "4", folder=watched)
    assert (more["added"], more["removed"], len(more["moves"])) == (["new-1", "new-2"], [], 2)
    assert {move["after"] for move in more["moves"]} == {"new-1", "new-2"}
    assert [(share["now"], share["share"]) for share in more["shares"]] == [(2, 1), (2, 1), (0, 1), (0, 1)]
    fewer = answer("plan", "--members", "1", folder=watched)
    assert fewer.startswith("1 instance, 2 moves of 4 partitions\nremoved: ")
    assert len(rows_of(fewer, "PARTITION ")) == 3
    assert rows_of(fewer, "MEMBER ")[0] == ["MEMBER", "NOW", "SHARE"]
    assert facts("plan", folder=watched)["moves"] == []
    assert [row["partitions"] for row in facts("group", "describe", folder=watched)["members"]] == [2, 2]


def test_a_plan_of_too_many_instances_is_wrong_usage(watched: Path) -> None:
    assert len(facts("plan", "--members", "10000", folder=watched)["shares"]) == 10_000
    done = evenflow("plan", "--members", "10001", folder=watched)
    assert (done.returncode, done.stdout) == (2, "")
    assert "10000" in done.stderr


def test_flags_and_the_environment_select_a_group_too(watched: Path) -> None:
    assert facts("lag", "--profile", "alerts", folder=watched)["group"] == "alerts"
    wrong = evenflow("lag", "--group", "nope", folder=watched)
    assert wrong.stderr == ("error: The store has no group 'nope' of hub 'homes'. It has: local/homes/alerts.\n")
    unknown = evenflow("lag", folder=watched, EVENFLOW_PROFILE="nope")
    assert "has no profile 'nope'. It has: alerts." in unknown.stderr


def test_a_stopped_partition_says_what_failed_and_what_to_do(folder: Path) -> None:
    stop = Stopped(0, Position("0", 0), "ValueError: no such home", attempts=5, by="ada", at=1.0)
    asyncio.run(leave_records(folder, Notes(stopped=stop, parked={"home-7": 0})))
    found = facts("group", "describe", folder=folder)
    assert [row["status"] for row in found["partitions"]] == ["ok", "stopped", "ok", "ok"]
    assert found["partitions"][1]["failure"]["error"] == "ValueError: no such home"
    assert [finding["kind"] for finding in found["findings"]] == ["stopped", "parked"]
    for command in (("status",), ("group", "describe"), ("explain", "1")):
        text = answer(*command, folder=folder)
        assert "is blocked at event 0, which failed 5 times, as ada reported: ValueError: no such home" in text
        assert "Look at it: evenflow hub tail homes --from 0 --partition 1 --count 1; fix the handler" in text
        assert "evenflow group resume --partition 1 --profile alerts; or" in text
    flags = ("--store", "sqlite:leases", "--source", "hub:homes", "--group", "alerts")
    assert f"evenflow group resume --partition 1 {' '.join(flags)}; or" in answer("status", *flags, folder=folder)
    assert "(home-7) parked in partition" in text
    assert answer("explain", "0", folder=folder).count("!") == 0


def test_a_partition_that_stands_still_falls_behind_in_time_too(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    first = facts("lag", folder=folder)
    later = facts("lag", folder=folder)
    pairs = zip(first["partitions"], later["partitions"], strict=True)
    assert all(0 < before["lag_s"] < after["lag_s"] for before, after in pairs)


def test_loads_are_shown_where_instances_publish_them(folder: Path) -> None:
    asyncio.run(leave_records(folder, load={"0": 0.9, "1": 0.1, "2": 0.1, "3": 0.1}))
    found = facts("group", "describe", folder=folder)
    assert [row["load"] for row in found["partitions"]] == [0.9, 0.1, 0.1, 0.1]
    (member,) = found["members"]
    assert (round(member["load"], 6), round(member["load_of_mean"], 6)) == (1.2, 1.0)
    text = answer("group", "describe", folder=folder)
    assert [row[13] for row in rows_of(text, "PARTITION ")[1:]] == ["0.90", "0.10", "0.10", "0.10"]
    assert rows_of(text, "MEMBER ")[0][4] == "LOAD"
    assert "No move planned; it stays with ada. ada has 4 of 4 partitions, and 1.00 times the mean load.\n" in answer(
        "explain", "0", folder=folder
    )
    plan = answer("plan", "--members", "2", folder=folder)
    assert rows_of(plan, "MEMBER ") == [
        ["MEMBER", "NOW", "SHARE", "LOAD-NOW", "LOAD-THEN"],
        ["ada", "4", "1", "2.00", "1.50"],
        ["new-1", "0", "3", "0.00", "0.50"],
    ]
    assert (
        answer("plan", "--members", "0", folder=folder).splitlines()[-1].startswith("no partition would have an owner")
    )


def test_dead_letters_are_counted_where_their_target_is_known(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    assert facts("status", folder=folder)["dead_letters"] is None
    asyncio.run(file_dead_letters(folder))
    found = facts("status", "--dead-letters", "jsonl:dead", folder=folder)
    assert (found["dead_letters"], found["status"]) == (2, "dead letters")
    text = answer("group", "describe", "--dead-letters", "jsonl:dead", folder=folder)
    assert "! dead letters: 2 open dead letters: events that could not be handled.\n" in text
    assert "  Look at them: evenflow dead-letters list --dead-letters jsonl:dead --profile alerts\n" in text
    (folder / "evenflow.toml").write_text(PROFILES + 'dead_letters = "jsonl:dead"\n')
    assert "Look at them: evenflow dead-letters list --profile alerts\n" in answer("status", folder=folder)
    (folder / "evenflow.toml").write_text(PROFILES + 'dead_letters = "jsonl:nowhere"\n')
    done = evenflow("status", folder=folder)
    assert (done.returncode, "dead letters: " in done.stderr) == (0, True)


def test_status_is_a_table(watched: Path) -> None:
    lines = answer(*STATUS, folder=watched).splitlines()
    assert lines[:3] == ["NAMESPACE  local", "HUB        homes", "GROUP      alerts"]
    table = lines.index("") + 1
    assert lines[table].split() == ["PARTITION", "OWNER", "STATUS", "EPOCH", "LAG", "LAG-TIME", "AGE", "REASON"]
    assert [line.split()[0] for line in lines[table + 1 : table + 5]] == ["0", "1", "2", "3"]
    assert any(line.startswith("MEMBER") for line in lines)
    assert any(line.startswith("WHEN") for line in lines)


def test_status_as_json_has_null_for_unknown(watched: Path) -> None:
    found = facts(*STATUS, folder=watched)
    assert {(row["newest"], row["lag"]) for row in found["partitions"]} == {(9, 10)}
    assert (found["namespace"], found["hub"], found["group"]) == ("local", "homes", "alerts")
    assert {row["status"] for row in found["partitions"]} == {"ok"}
    assert {move["after"] for move in found["moves"]} >= {member["id"] for member in found["members"]}
    without_source = facts("status", "--store", "sqlite:leases", "--group", "alerts", folder=watched)
    assert {(row["newest"], row["lag"]) for row in without_source["partitions"]} == {(None, None)}
    assert all(row["owner"] and row["epoch"] for row in without_source["partitions"])


def test_status_lists_groups_and_says_which_there_are(watched: Path) -> None:
    listed = facts("status", "--store", "sqlite:leases", folder=watched)
    (group,) = listed["groups"]
    assert (group["namespace"], group["hub"], group["group"]) == ("local", "homes", "alerts")
    wrong = evenflow("status", "--store", "sqlite:leases", "--group", "nope", folder=watched)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "error: The store has no group 'nope'. It has: local/homes/alerts.\n"
