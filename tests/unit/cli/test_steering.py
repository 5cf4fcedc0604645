"""Commands that change a group: seek, pause, resume, retire, delete; and how they ask for confirmation."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.core.notes import Notes, Stopped
from evenflow.model import Group, Position
from tests.unit.cli.command import answer, asked, evenflow, facts, message_of, rows_of
from tests.unit.cli.group_scene import leave_records, make_hub

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_hub(tmp_path)


def describe(folder: Path) -> Any:
    return facts("group", "describe", folder=folder)


def test_a_seek_shows_before_and_after_and_a_dry_run_changes_nothing(folder: Path) -> None:
    asyncio.run(leave_records(folder, handled=9))
    text = answer("group", "seek", "--to-earliest", "--partition", "1", "--dry-run", folder=folder)
    assert rows_of(text, "PARTITION ") == [
        ["PARTITION", "FROM", "TO", "LAG-BEFORE", "LAG-AFTER"],
        ["1", "9", "-1", "0", "10"],
    ]
    dry = facts("group", "seek", "--shift-by", "-3", "--dry-run", folder=folder)
    assert (dry["done"], [(row["from"], row["to"]) for row in dry["partitions"]]) == (False, [("9", "6")] * 4)
    found = describe(folder)
    assert (found["actions"], [row["offset"] for row in found["partitions"]]) == ([], ["9"] * 4)


def test_a_seek_goes_where_another_group_is_and_to_a_time(folder: Path) -> None:
    for name in ("alerts", "stats"):
        group = Group("local", "homes", name)
        asyncio.run(leave_records(folder, group=group, handled=9, owned=False))
    seek = ("group", "seek", "--group", "stats")
    done = evenflow(*seek, "--to-offset", "3", "--partition", "1", "--yes", folder=folder)
    assert rows_of(done.stdout, "PARTITION ")[1:] == [["1", "9", "3", "0", "6"]]
    assert done.stderr.endswith("moved 1 partition of local/homes/stats\n")
    found = facts(*seek, "--from-group", "alerts", "--dry-run", folder=folder)["partitions"]
    assert [(row["from"], row["to"]) for row in found] == [("9", "9"), ("3", "9"), ("9", "9"), ("9", "9")]
    answer(*seek, "--to-datetime", "2020-01-01T00:00Z", "--yes", folder=folder)
    back = facts(*seek, "--from-group", "alerts", "--yes", folder=folder)["partitions"]
    assert [(row["from"], row["to"], row["lag_before"], row["lag_after"]) for row in back] == [("-1", "9", 10, 0)] * 4


def test_a_group_without_instances_is_deleted(folder: Path) -> None:
    asyncio.run(leave_records(folder, owned=False))
    assert answer("group", "delete", "--yes", folder=folder) == "deleted local/homes/alerts\n"
    assert facts("group", "list", folder=folder) == {"groups": [], "foreign": []}


def test_an_unknown_instance_cannot_be_retired(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    done = evenflow("retire", "bo", "--yes", folder=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no instance 'bo'" in done.stderr


COMMANDS = [("group", "seek", "--to-latest"), ("group", "pause"), ("group", "delete"), ("retire", "ada")]


@pytest.mark.parametrize("command", COMMANDS)
def test_after_a_no_nothing_changes(folder: Path, command: tuple[str, ...]) -> None:
    asyncio.run(leave_records(folder))
    done = asked("n\n", *command, folder=folder)
    assert done.returncode == 1
    assert "[y/N] " in done.stderr
    assert done.stderr.endswith("nothing was changed\n")
    found = describe(folder)
    assert (found["actions"], found["paused"]) == ([], False)
    assert [row["offset"] for row in found["partitions"]] == ["-1"] * 4


def test_after_a_yes_it_is_done(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    done = asked("y\n", "group", "pause", folder=folder)
    assert done.returncode == 0
    assert "This pauses the whole group of local/homes/alerts. Events in progress on ada" in done.stderr
    assert describe(folder)["paused"] is True


def test_a_stopped_partition_is_resumed_after_asking(folder: Path) -> None:
    stop = Stopped(0, Position("0", 0), "ValueError: no such home", attempts=5, by="ada", at=1.0)
    asyncio.run(leave_records(folder, Notes(stopped=stop)))
    refused = evenflow("group", "resume", "--partition", "1", folder=folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "partition 1 is blocked at event 0: ValueError: no such home" in refused.stderr
    assert describe(folder)["partitions"][1]["status"] == "stopped"
    assert facts("group", "resume", "--partition", "0", folder=folder)["stops_cleared"] == []


def test_a_stopped_partition_is_resumed_or_its_event_skipped(folder: Path) -> None:
    stop = Stopped(0, Position("0", 0), "ValueError: no such home", attempts=5, by="ada", at=1.0)
    asyncio.run(leave_records(folder, Notes(stopped=stop), owned=False))
    assert [finding["kind"] for finding in describe(folder)["findings"]] == ["unowned", "stopped"]
    done = evenflow("group", "resume", "--partition", "1", "--yes", folder=folder)
    assert done.stdout == "resumed partition 1 of local/homes/alerts; partition 1 retries its event\n"
    assert done.stderr.splitlines()[1:] == ["This retries this event of local/homes/alerts."]
    found = describe(folder)
    assert [finding["kind"] for finding in found["findings"]] == ["unowned"]
    assert found["partitions"][1]["offset"] == "-1"
    answer("group", "seek", "--shift-by", "1", "--partition", "1", "--yes", folder=folder)
    assert [row["offset"] for row in describe(folder)["partitions"]] == ["-1", "0", "-1", "-1"]


def test_the_actions_on_a_deleted_group_can_still_be_listed(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    answer("group", "pause", "--why", "tests", "--yes", folder=folder)
    assert [row["kind"] for row in facts("group", "actions", folder=folder)["actions"]] == ["pause"]
    answer("group", "delete", "--why", "no more", "--yes", folder=folder)
    found = facts("group", "actions", folder=folder)
    assert (found["exists"], [row["kind"] for row in found["actions"]]) == (False, ["delete", "pause"])
    assert "its checkpoints were: 0 at -1" in found["actions"][0]["what"]
    rows = rows_of(answer("group", "actions", "--limit", "1", folder=folder), "WHEN ")
    assert (rows[0], rows[1][1], len(rows)) == (["WHEN", "ACTION", "BY", "WHAT", "WHY"], "delete", 2)
    without = evenflow("group", "actions", "--store", "sqlite:leases", "--group", "alerts", folder=folder)
    assert (without.returncode, "pass --source URL to name its hub" in without.stderr) == (1, True)
    unknown = evenflow("group", "actions", "--group", "other", folder=folder)
    assert (unknown.returncode, "no actions on a group of this name" in unknown.stderr) == (1, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_terminal_it_asks_for_yes(folder: Path, command: tuple[str, ...]) -> None:
    asyncio.run(leave_records(folder))
    before = describe(folder)["partitions"]
    done = evenflow(*command, "--json", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pass --yes" in message_of(done)
    after = describe(folder)
    assert (after["actions"], after["paused"]) == ([], False)
    assert [row["offset"] for row in after["partitions"]] == [row["offset"] for row in before]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "pass exactly one of"),
        (["--to-earliest", "--to-latest"], 2, "pass exactly one of"),
        (["--to-datetime", "noon"], 2, "'noon' is not a time"),
        (
            ["--to-datetime", "90", "--yes"],
            2,
            "'90' is not a time; write 2026-02-03T04:05Z, or a time ago such as 90m.",
        ),
        (["--to-datetime", "0001-01-01T00:00+01:00"], 2, "is not a time"),
        (
            ["--to-offset", "99", "--partition", "0", "--yes"],
            1,
            "error: Partition 0: 99 is not in the log. Its oldest event is at position 0, its newest at 9.",
        ),
        (["--to-earliest", "--partition", "9", "--yes"], 1, "There is no partition 9"),
        (["--from-group", "nope", "--yes"], 1, "nope"),
    ],
)
def test_a_seek_that_makes_no_sense_is_refused(folder: Path, arguments: list[str], code: int, message: str) -> None:
    asyncio.run(leave_records(folder))
    done = evenflow("group", "seek", *arguments, folder=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in message_of(done)
    assert "Traceback" not in done.stderr


def test_a_seek_shows_the_resolved_time_and_where_it_falls_short(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    dry = ("group", "seek", "--dry-run")
    ahead = evenflow(*dry, "--to-datetime", "2099-01-01T01:00+01:00", folder=folder)
    assert ahead.stderr.splitlines() == [
        "to the first event enqueued at 2099-01-01T00:00:00Z or later",
        "no event was enqueued since then: this skips all events",
        "would move 4 partitions of local/homes/alerts; nothing was changed",
    ]
    for text in ("1d", "-1d"):
        ago = facts(*dry, "--to-datetime", text, folder=folder)
        assert {row["to"] for row in ago["partitions"]} == {"-1"}
        then = datetime.fromisoformat(ago["to_datetime"])
        assert 86_000 < (datetime.now(UTC) - then).total_seconds() < 87_000
    far = evenflow(*dry, "--shift-by", "100", "--partition", "1", folder=folder)
    assert far.stderr.startswith("partition 1 moves by 10, not by 100: that is the end of the log\n")
    back = facts(*dry, "--shift-by", "-5", folder=folder)["partitions"]
    assert {row["note"] is None for row in back} == {False}
    near = facts(*dry, "--shift-by", "3", folder=folder)["partitions"]
    assert {row["note"] for row in near} == {None}
