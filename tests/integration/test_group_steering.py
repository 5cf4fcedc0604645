"""Steering a group with the real program, while real instances run in it; and what is asked first."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.core.notes import Notes, Stopped
from evenflow.hub import Hub
from evenflow.model import Position
from tests.integration.programs import PATIENCE_S, answer, asked, end, evenflow, facts, rest_of, seen, started, wait_for
from tests.integration.test_group import PROFILES, leave_records, rows_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.process

EVENTS = 10
APP = """
from evenflow import Processor

def processor():
    made = Processor(
        "hub:homes", "sqlite:leases", "alerts", beat_s=0.2, ttl_s=15.0, refresh_s=0.2
    )

    @made.on_event
    async def handle(event, partition):
        print(partition.id, event.sequence, flush=True)

    return made
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "evenflow.toml").write_text(PROFILES)
    with Hub.create(tmp_path / "homes", 4) as hub:
        for partition in range(4):
            asyncio.run(hub.send(["x"] * EVENTS, partition=partition))
    return tmp_path


@contextmanager
def running(folder: Path, workers: int = 1) -> Iterator[subprocess.Popen[str]]:
    with started("run", "app:processor", "--workers", str(workers), "--log-level", "warning", folder=folder) as run:
        share = [4 // workers] * workers
        wait_for(lambda: shares(folder) == share and lag(folder) == 0, "them to have handled everything")
        yield run


def describe(folder: Path) -> Any:
    return seen("group", "describe", folder=folder)


def shares(folder: Path) -> list[int]:
    found = describe(folder)
    return sorted(member["partitions"] for member in found["members"]) if found else []


def lag(folder: Path) -> int | None:
    found = describe(folder)
    return found["lag"] if found and not found["lag_unknown"] else None


def owners(folder: Path) -> list[str | None]:
    return [row["owner"] for row in describe(folder)["partitions"]]


def statuses(folder: Path) -> list[str]:
    return [row["status"] for row in describe(folder)["partitions"]]


def test_a_seek_shows_before_and_after_and_a_dry_run_changes_nothing(folder: Path) -> None:
    with running(folder) as run:
        text = answer("group", "seek", "--to-earliest", "--partition", "1", "--dry-run", folder=folder)
        assert rows_of(text, "PARTITION ") == [
            ["PARTITION", "FROM", "TO", "LAG-BEFORE", "LAG-AFTER"],
            ["1", "9", "-1", "0", "10"],
        ]
        dry = facts("group", "seek", "--shift-by", "-3", "--dry-run", folder=folder)
        assert (dry["done"], [(row["from"], row["to"]) for row in dry["partitions"]]) == (False, [("9", "6")] * 4)
        assert describe(folder)["actions"] == []
        _, out, _ = end(run)
    assert len(out.split("\n")) - 1 == 4 * EVENTS


def test_a_seek_in_a_running_group_makes_its_owner_handle_again(folder: Path) -> None:
    with running(folder) as run:
        done = facts("group", "seek", "--shift-by", "-3", "--partition", "2", "--why", "bug 17", "--yes", folder=folder)
        assert (done["done"], done["group"]) == (True, "alerts")
        (row,) = done["partitions"]
        assert row == {"partition": "2", "from": "9", "to": "6", "lag_before": 0, "lag_after": 3, "note": None}
        wait_for(lambda: lag(folder) == 0 and statuses(folder) == ["ok"] * 4, "it to be handled again")
        found = describe(folder)
        _, out, _ = end(run)
    assert [line for line in out.splitlines() if line.startswith("2 ")][EVENTS:] == ["2 7", "2 8", "2 9"]
    assert len([line for line in out.splitlines() if not line.startswith("2 ")]) == 3 * EVENTS
    (action,) = found["actions"]  # and not what it took
    assert (action["kind"], "@" in action["by"], action["why"]) == ("seek", True, "bug 17")


def test_a_shift_by_one_passes_exactly_the_event_that_stopped_a_running_group(folder: Path) -> None:
    poison = "    if event.sequence == 4 and partition.id == '1': raise ValueError('no such home')\n        print("
    stopping = APP.replace("    print(", poison).replace("import Processor", "import Processor, Retry")
    stopping = stopping.replace("refresh_s=0.2", "refresh_s=0.2, on_poison='stop', retry=Retry(attempts=1)")
    (folder / "app.py").write_text(stopping)
    with started("run", "app:processor", "--workers", "1", "--log-level", "warning", folder=folder) as run:
        wait_for(lambda: shares(folder) == [4] and statuses(folder)[1] == "stopped", "the event to stop it")
        done = facts("group", "seek", "--shift-by", "1", "--partition", "1", "--yes", folder=folder)
        assert [(row["from"], row["to"]) for row in done["partitions"]] == [("3", "4")]
        wait_for(lambda: lag(folder) == 0, "the rest to be handled")
        _, out, _ = end(run)
    handled = [line for line in out.splitlines() if line.startswith("1 ")]
    assert handled == [f"1 {number}" for number in range(EVENTS) if number != 4]


def test_a_seek_goes_where_another_group_is_and_to_a_time(folder: Path) -> None:
    with running(folder) as run:
        end(run)
    (folder / "app.py").write_text(APP.replace('"alerts", ', '"stats", start="latest", '))
    with started("run", "app:processor", "--log-level", "warning", folder=folder) as run:
        wait_for(lambda: evenflow("status", "--group", "stats", folder=folder).stdout.count(" ok ") == 4, "a start")
        end(run)
    seek = ("group", "seek", "--group", "stats")
    done = evenflow(*seek, "--to-offset", "3", "--partition", "1", "--yes", folder=folder)
    assert rows_of(done.stdout, "PARTITION ")[1:] == [["1", "9", "3", "0", "6"]]
    assert done.stderr.endswith("moved 1 partition of local/homes/stats\n")
    found = facts(*seek, "--from-group", "alerts", "--dry-run", folder=folder)["partitions"]
    assert [(row["from"], row["to"]) for row in found] == [("9", "9"), ("3", "9"), ("9", "9"), ("9", "9")]
    answer(*seek, "--to-datetime", "2020-01-01T00:00Z", "--yes", folder=folder)
    back = facts(*seek, "--from-group", "alerts", "--yes", folder=folder)["partitions"]
    assert [(row["from"], row["to"], row["lag_before"], row["lag_after"]) for row in back] == [("-1", "9", 10, 0)] * 4


def test_a_pause_is_obeyed_told_and_ended(folder: Path) -> None:
    with running(folder, 2) as run:
        assert answer("group", "pause", "--partition", "1", "--why", "tests", "--yes", folder=folder) == (
            "paused partition 1 of local/homes/alerts\n"
        )
        again = answer("group", "pause", "--partition", "1", "--yes", folder=folder)
        assert again.startswith("partition 1 of local/homes/alerts was paused already by ")
        assert again.endswith(": tests\n")
        wait_for(lambda: owners(folder)[1] is None, "its owner to give it back")
        found = describe(folder)
        assert [row["status"] for row in found["partitions"]][1] == "paused"
        assert "tests" in found["findings"][0]["what"]
        assert "It is paused, so no plan gives it to anybody" in answer("explain", "1", folder=folder)
        both = answer("group", "pause", "--partition", "1", "--partition", "2", "--yes", folder=folder)
        assert both.splitlines()[1:] == ["paused partition 2 of local/homes/alerts"]
        done = facts("group", "pause", "--yes", folder=folder)
        assert (done["group"], done["partitions"], done["changed"]) == ("alerts", None, True)
        assert facts("group", "pause", "--yes", folder=folder)["changed"] is False
        wait_for(lambda: owners(folder) == [None] * 4, "all to be given back")
        assert facts("group", "list", folder=folder)["groups"][0]["status"] == "paused"
        assert answer("group", "resume", folder=folder) == "resumed the whole group of local/homes/alerts\n"
        wait_for(lambda: statuses(folder) == ["ok"] * 4, "all to be owned again")
        kinds = [action["kind"] for action in describe(folder)["actions"]]
        end(run)
    assert kinds == ["resume", "pause", "pause", "pause"]
    not_so = answer("group", "resume", "--partition", "2", folder=folder)
    assert not_so == "partition 2 of local/homes/alerts was not paused\n"
    assert answer("group", "resume", folder=folder) == "the whole group of local/homes/alerts was not paused\n"
    assert len(describe(folder)["actions"]) == 4
    assert rows_of(answer("group", "describe", "--moves", "0", folder=folder), "WHEN ")[0] == [
        "WHEN", "ACTION", "BY", "WHAT", "WHY",
    ]  # fmt: skip


def test_who_is_retired_hands_over_and_ends(folder: Path) -> None:
    with running(folder, 2) as run:
        leaver, stayer = describe(folder)["members"]
        first, second = leaver["id"], stayer["id"]
        asked = answer("retire", first, "--yes", folder=folder)
        assert asked.startswith(f"asked {first} of local/homes/alerts to retire")
        wait_for(lambda: owners(folder) == [second] * 4, "the other to have all")
        wait_for(lambda: [member["id"] for member in describe(folder)["members"]] == [second], "it to leave")
        wait_for(lambda: not Path(f"/proc/{leaver['pid']}").exists(), "its process to end")
        code, _, err = end(run)
    assert code == 0
    assert "ended" in err  # by itself, and not started again
    assert re.search(rf"^worker-\d \| \S+Z {first} joined local/homes/alerts", err, re.MULTILINE), "whatever the level"
    wrong = evenflow("retire", "nobody", "--yes", folder=folder)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "has no instance 'nobody'" in wrong.stderr


def test_a_group_is_deleted_only_when_nobody_runs_in_it(folder: Path) -> None:
    with running(folder) as run:
        refused = evenflow("group", "delete", "--yes", folder=folder)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert lag(folder) == 0
        end(run)
    assert answer("group", "delete", "--yes", folder=folder) == "deleted local/homes/alerts\n"
    assert facts("group", "list", folder=folder) == {"groups": [], "foreign": []}


def test_what_was_done_to_a_deleted_group_can_still_be_seen(folder: Path) -> None:
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
    assert (without.returncode, "say of which hub it was: --source URL" in without.stderr) == (1, True)
    unknown = evenflow("group", "actions", "--group", "nobody", folder=folder)
    assert (unknown.returncode, "nothing that was done" in unknown.stderr) == (1, True)


def test_a_stopped_partition_is_resumed_after_asking(folder: Path) -> None:
    stop = Stopped(0, Position("0", 0), "ValueError: no such home", attempts=5, by="ada", at=1.0)
    asyncio.run(leave_records(folder, Notes(stopped=stop)))
    refused = evenflow("group", "resume", "--partition", "1", folder=folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "partition 1 stands before the event at 0: ValueError: no such home" in refused.stderr
    assert statuses(folder)[1] == "stopped"
    assert facts("group", "resume", "--partition", "0", folder=folder)["stops_cleared"] == []


def test_a_stopped_partition_is_resumed_or_its_event_passed_over(folder: Path) -> None:
    stop = Stopped(0, Position("0", 0), "ValueError: no such home", attempts=5, by="ada", at=1.0)
    asyncio.run(leave_records(folder, Notes(stopped=stop), owned=False))
    assert [finding["kind"] for finding in describe(folder)["findings"]] == ["unowned", "stopped"]
    done = evenflow("group", "resume", "--partition", "1", "--yes", folder=folder)
    assert done.stdout == "resumed partition 1 of local/homes/alerts; partition 1 tries its event again\n"
    assert done.stderr.splitlines()[1:] == ["tries this event of local/homes/alerts again"]
    found = describe(folder)
    assert [finding["kind"] for finding in found["findings"]] == ["unowned"]
    assert found["partitions"][1]["offset"] == "-1"
    answer("group", "seek", "--shift-by", "1", "--partition", "1", "--yes", folder=folder)
    assert [row["offset"] for row in describe(folder)["partitions"]] == ["-1", "0", "-1", "-1"]


@pytest.mark.parametrize(
    "command",
    [
        ("group", "seek", "--to-latest"),
        ("group", "pause"),
        ("group", "delete"),
        ("retire", "ada"),
    ],
)
def test_without_a_terminal_nobody_can_be_asked(folder: Path, command: tuple[str, ...]) -> None:
    asyncio.run(leave_records(folder))
    before = describe(folder)["partitions"]
    done = evenflow(*command, "--json", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "add --yes" in " ".join(done.stderr.replace("│", " ").split())
    after = describe(folder)
    assert (after["actions"], after["paused"]) == ([], False)
    assert [row["offset"] for row in after["partitions"]] == [row["offset"] for row in before]


@pytest.mark.parametrize(("reply", "code", "paused"), [("y", 0, True), ("n", 1, False)])
def test_on_a_terminal_it_asks(folder: Path, reply: str, code: int, paused: bool) -> None:
    asyncio.run(leave_records(folder))
    with asked(folder, "group", "pause") as (process, terminal, shown):
        assert "pauses the whole group of local/homes/alerts. What ada has in hand" in shown
        os.write(terminal, f"{reply}\n".encode())
        assert process.wait(PATIENCE_S) == code
    assert describe(folder)["paused"] is paused


@pytest.mark.parametrize(
    "command", [("group", "pause"), ("group", "seek", "--to-latest"), ("group", "delete"), ("retire", "ada")]
)
def test_one_ctrl_c_at_the_question_ends_it_and_nothing_is_changed(folder: Path, command: tuple[str, ...]) -> None:
    asyncio.run(leave_records(folder))
    before = describe(folder)["partitions"]
    with asked(folder, *command) as (process, terminal, _):
        os.write(terminal, b"\x03")
        assert process.wait(PATIENCE_S) == 1
        assert "nothing was changed" in rest_of(terminal)
    found = describe(folder)
    assert found["actions"] == []
    assert [row["offset"] for row in found["partitions"]] == [row["offset"] for row in before]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_question_ends_it_too(folder: Path, number: signal.Signals) -> None:
    asyncio.run(leave_records(folder))
    with asked(folder, "group", "pause") as (process, _, _):
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 1
    assert describe(folder)["actions"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_seek_that_is_ended_by_a_signal_leaves_nothing_paused(folder: Path, number: signal.Signals) -> None:
    """The owner has something in hand for longer than anybody waits."""
    (folder / "app.py").write_text(APP.replace("print(", "await __import__('asyncio').sleep(600); print("))
    with started("run", "app:processor", "--workers", "1", "--log-level", "warning", folder=folder):
        wait_for(lambda: shares(folder) == [4], "it to own all")
        with started("group", "seek", "--to-latest", "--partition", "1", "--yes", folder=folder) as seeking:
            wait_for(lambda: statuses(folder)[1] == "paused", "the seek to pause it")
            code, _, err = end(seeking, number)
        assert (code, "Traceback" in err) == (1, False), err
        assert "resumed partition 1" in err
        found = describe(folder)
        assert [row["pause"] for row in found["partitions"]] == [None] * 4
        assert found["actions"] == [], "nothing was done"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give exactly one of"),
        (["--to-earliest", "--to-latest"], 2, "give exactly one of"),
        (["--to-datetime", "noon"], 2, "'noon' is no time"),
        (["--to-datetime", "90", "--yes"], 2, "'90' is no time; write 2026-02-03T04:05Z, or how long ago: 90m."),
        (["--to-datetime", "0001-01-01T00:00+01:00"], 2, "is no time"),
        (
            ["--to-offset", "99", "--partition", "0", "--yes"],
            1,
            "error: Partition 0: 99 is not in the log. Its oldest event is at position 0, its newest at 9.",
        ),
        (["--to-earliest", "--partition", "9", "--yes"], 1, "There is no partition 9"),
        (["--from-group", "nope", "--yes"], 1, "nope"),
    ],
)
def test_a_seek_that_makes_no_sense_is_told(folder: Path, arguments: list[str], code: int, message: str) -> None:
    asyncio.run(leave_records(folder))
    done = evenflow("group", "seek", *arguments, folder=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_seek_says_which_time_it_means_and_what_it_cannot_do(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    dry = ("group", "seek", "--dry-run")
    ahead = evenflow(*dry, "--to-datetime", "2099-01-01T01:00+01:00", folder=folder)
    assert ahead.stderr.splitlines() == [
        "to the first event enqueued at 2099-01-01T00:00:00Z or later",
        "nothing was enqueued since then: this skips everything",
        "would move 4 partitions of local/homes/alerts; nothing was changed",
    ]
    for text in ("1d", "-1d"):
        ago = facts(*dry, "--to-datetime", text, folder=folder)
        assert {row["to"] for row in ago["partitions"]} == {"-1"}
        then = datetime.fromisoformat(ago["to_datetime"])
        assert 86_000 < (datetime.now(UTC) - then).total_seconds() < 87_000
    far = evenflow(*dry, "--shift-by", "100", "--partition", "1", folder=folder)
    assert far.stderr.startswith("partition 1 moves by 10, not by 100: the log ends there\n")
    back = facts(*dry, "--shift-by", "-5", folder=folder)["partitions"]
    assert {row["note"] is None for row in back} == {False}
    near = facts(*dry, "--shift-by", "3", folder=folder)["partitions"]
    assert {row["note"] for row in near} == {None}
