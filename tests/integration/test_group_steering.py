"""Steering a group while real instances run in it; terminals and signals. The rest is in tests/unit/cli."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.programs import PATIENCE_S, asked, end, rest_of, started, wait_for
from tests.unit.cli.command import answer, evenflow, facts, rows_of, seen
from tests.unit.cli.group_scene import EVENTS, leave_records, make_hub

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.process

APP = """
from evenflow import Processor

def processor():
    made = Processor(
        "hub:homes", "sqlite:leases", "alerts", heartbeat_s=0.2, ttl_s=15.0, refresh_s=0.2
    )

    @made.on_event
    async def handle(event, partition):
        print(partition.id, event.sequence, flush=True)

    return made
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return make_hub(tmp_path)


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


def test_a_seek_in_a_running_group_makes_its_owner_handle_again(folder: Path) -> None:
    with running(folder) as run:
        refused = evenflow("group", "delete", "--yes", folder=folder)
        assert (refused.returncode, refused.stdout) == (1, ""), "its instances run"
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


def test_a_pause_is_obeyed_told_and_ended(folder: Path) -> None:
    with running(folder, 2) as run:
        assert answer("group", "pause", "--partition", "1", "--why", "tests", "--yes", folder=folder) == (
            "paused partition 1 of local/homes/alerts\n"
        )
        again = answer("group", "pause", "--partition", "1", "--yes", folder=folder)
        assert again.startswith("partition 1 of local/homes/alerts was already paused by ")
        assert again.endswith(": tests\n")
        wait_for(lambda: owners(folder)[1] is None, "its owner to give it back")
        found = describe(folder)
        assert [row["status"] for row in found["partitions"]][1] == "paused"
        assert "tests" in found["findings"][0]["what"]
        assert "It is paused: no plan assigns it" in answer("explain", "1", folder=folder)
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
    assert "exited normally and is not restarted" in err
    assert re.search(rf"^worker-\d \| \S+Z {first} joined local/homes/alerts", err, re.MULTILINE), "whatever the level"


def test_on_a_terminal_it_asks(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    with asked(folder, "group", "pause") as (process, terminal, shown):
        assert "This pauses the whole group of local/homes/alerts. Events in progress on ada" in shown
        os.write(terminal, b"y\n")
        assert process.wait(PATIENCE_S) == 0
    assert describe(folder)["paused"] is True


def test_one_ctrl_c_at_the_question_ends_it_and_nothing_is_changed(folder: Path) -> None:
    asyncio.run(leave_records(folder))
    before = describe(folder)["partitions"]
    with asked(folder, "group", "seek", "--to-latest") as (process, terminal, _):
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


def test_a_seek_that_is_ended_by_a_signal_leaves_nothing_paused(folder: Path) -> None:
    """The owner has an event in hand for longer than the seek runs."""
    (folder / "app.py").write_text(APP.replace("print(", "await __import__('asyncio').sleep(600); print("))
    with started("run", "app:processor", "--workers", "1", "--log-level", "warning", folder=folder):
        wait_for(lambda: shares(folder) == [4], "it to own all")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with started("group", "seek", "--to-latest", "--partition", "1", "--yes", folder=folder) as seeking:
                wait_for(lambda: statuses(folder)[1] == "paused", f"the seek to pause it, before {number.name}")
                code, _, err = end(seeking, number)
            assert (code, "Traceback" in err) == (1, False), (number, err)
            assert "resumed partition 1" in err, number
            found = describe(folder)
            assert [row["pause"] for row in found["partitions"]] == [None] * 4, number
            assert found["actions"] == [], "nothing was done"
