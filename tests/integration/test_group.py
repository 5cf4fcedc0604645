"""Looking at a group while real instances run in it, and when one was killed. The rest is in tests/unit/cli."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.embedded.hub import Hub
from tests.integration.programs import end, next_line, started, wait_for
from tests.integration.terminal import Terminal
from tests.unit.cli.command import evenflow, facts, seen
from tests.unit.cli.group_scene import PROFILES

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TTL_S = 15.0
"""Of instances that are not killed: no busy machine makes them silent."""
APP = """
import asyncio
from evenflow import Every, Processor

def processor():
    made = Processor(
        "hub:homes", "sqlite:leases", "alerts", heartbeat_s=0.2, ttl_s={ttl_s}, margin_s=0.2, checkpoint=Every(events=5)
    )

    @made.on_event
    async def handle(event, partition):
        await asyncio.sleep(0.05)

    return made
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of two instances that are only looked at, and more events than they can handle."""
    folder = application(tmp_path_factory.mktemp("watched"))
    with two_workers(folder):
        yield folder


def application(folder: Path, events: int = 20_000, ttl_s: float = TTL_S) -> Path:
    (folder / "app.py").write_text(APP.format(ttl_s=ttl_s))
    (folder / "evenflow.toml").write_text(PROFILES)
    with Hub.create(folder / "homes", 4) as hub:
        for partition in range(4):
            asyncio.run(hub.send(["x"] * (events // 4), partition=partition))
    return folder


@contextmanager
def two_workers(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with started("run", "app:processor", "--workers", "2", "--log-level", "warning", folder=folder) as run:
        wait_for(lambda: owned(folder) == [2, 2], "two workers with two partitions each")
        yield run


def owned(folder: Path) -> list[int]:
    found = seen("group", "describe", folder=folder) or {"members": [], "partitions": []}
    settled = all(row["status"] == "ok" for row in found["partitions"])
    return sorted(member["partitions"] for member in found["members"]) if settled else []


def test_what_is_watched_shows_rates_until_ctrl_c(watched: Path) -> None:
    with started("group", "describe", "--watch", "--every", "0.5", "--json", folder=watched) as watching:
        first = json.loads(next_line(watching))
        later = wait_for(lambda: with_rates(json.loads(next_line(watching))), "a checkpoint of each between two looks")
        code, _, err = end(watching, signal.SIGINT)
    assert (code, err) == (0, "")
    assert (first["status"], first["findings"], first["problems"], first["actions"]) == ("ok", [], [], [])
    assert {(row["trend"], row["per_s"], row["expires_s"]) for row in first["partitions"]} == {(None, None, None)}
    assert all(0 < row["expires_s"] <= TTL_S for row in later["partitions"])
    assert later["catch_up_s"] > 0
    both = [{(row["status"], row["by_wall_clock"]) for row in look["members"]} for look in (first, later)]
    assert both == [{("alive", True)}, {("alive", False)}]


def with_rates(look: Any) -> Any:
    """This look, once everything that needs several looks is known."""
    has_beaten = not any(row["by_wall_clock"] for row in look["members"])
    return (
        look if has_beaten and look["trend"] == "shrinks" and all(row["per_s"] for row in look["partitions"]) else None
    )


def test_status_can_be_watched(watched: Path) -> None:
    with started("status", "--watch", "--json", folder=watched) as watching:
        first, second = next_line(watching), next_line(watching)
        code, _, err = end(watching, signal.SIGINT)
    assert (code, err) == (0, "")
    looks = [json.loads(line)["members"] for line in (first, second)]
    assert [{member["status"] for member in members} for members in looks] == [{"alive"}, {"alive"}]


def test_top_follows_until_ctrl_c(watched: Path) -> None:
    with started("top", "--every", "0.5", "--json", folder=watched) as watching:
        assert json.loads(next_line(watching))["per_s"] is None
        wait_for(lambda: json.loads(next_line(watching))["per_s"], "a rate")
        code, _, err = end(watching, signal.SIGINT)
    assert (code, err) == (0, "")


def test_top_on_a_terminal_is_a_table_and_leaves_the_terminal_as_it_was(watched: Path) -> None:
    with closing(Terminal(watched, "top", "--every", "0.5")) as terminal:
        terminal.wait_for("evenflow top   local/homes/alerts")
        terminal.wait_for("owned 4/4")
        terminal.wait_for("→")
        terminal.press("\x03")
        assert terminal.end() == 0
        assert terminal.shows_cursor_again


def test_a_killed_instance_is_told_as_silent_and_its_partitions_too(tmp_path: Path) -> None:
    folder = application(tmp_path, 400, ttl_s=1.5)
    with started("run", "app:processor", folder=folder) as run:
        wait_for(lambda: owned(folder) == [4], "one worker with all partitions")
        (member,) = facts("status", folder=folder)["members"]
        run.kill()
        os.kill(member["pid"], signal.SIGKILL)

    def is_told() -> Any:
        found = seen("status", folder=folder)
        return found if found["members"][0]["status"] == "silent" else None

    found = wait_for(is_told, "its silence to be long enough")
    assert {row["status"] for row in found["partitions"]} == {"owner silent"}
    assert found["findings"][0]["what"] == "this group has no live instances: all are silent."
    assert facts("plan", "--members", "1", folder=folder)["added"] == ["new-1"]
    (group,) = facts("group", "list", folder=folder)["groups"]
    assert (group["members"], group["status"]) == (0, "no instances")
    asked = evenflow("group", "delete", folder=folder)
    assert (asked.returncode, "may still run" in asked.stderr) == (2, False)
