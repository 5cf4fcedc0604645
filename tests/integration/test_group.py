"""Seeing a group: the real program, a real hub and store, and instances that run meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from evenflow.core.notes import Notes, Stopped
from evenflow.hub import Hub
from evenflow.model import Change, Checkpoint, Event, Group, Letter, Member, Position
from evenflow.stores.sqlite import SQLiteStore
from evenflow.urls import open_letters
from tests.integration.programs import answer, end, evenflow, facts, next_line, seen, started, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TTL_S = 15.0
"""Of instances that nobody kills: no busy machine makes them silent."""
APP = """
import asyncio
from evenflow import Every, Processor

def processor():
    made = Processor(
        "hub:homes", "sqlite:leases", "alerts", beat_s=0.2, ttl_s={ttl_s}, margin_s=0.2, checkpoint=Every(events=5)
    )

    @made.on_event
    async def handle(event, partition):
        await asyncio.sleep(0.05)

    return made
"""
PROFILES = """
default = "alerts"

[profiles.alerts]
source = "hub:homes"
store = "sqlite:leases"
group = "alerts"
"""
GROUP = Group("local", "homes", "alerts")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of two instances that are only looked at, with a profile, and more events than they can handle."""
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


def rows_of(text: str, header: str) -> list[list[str]]:
    """The cells of the table whose first column has this name."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(header))
    cells = []
    for line in lines[start:]:
        if not line:
            break
        cells.append(line.split())
    return cells


def test_groups_are_listed_with_what_is_up_with_them(watched: Path) -> None:
    head, row = rows_of(answer("group", "list", folder=watched), "NAMESPACE")
    assert head == ["NAMESPACE", "HUB", "GROUP", "MEMBERS", "PARTITIONS", "OWNED", "LAG", "STATUS"]
    assert row[:6] == ["local", "homes", "alerts", "2", "4", "4"]
    assert 0 < int(row[6]) <= 20_000
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
    assert {row[9] for row in partitions[1:]} == {"4999"}
    assert {(row[12], row[6]) for row in partitions[1:]} == {("-", "-")}  # one look tells neither
    members = rows_of(text, "MEMBER ")
    assert [row[2:4] for row in members[1:]] == [["2", "2"], ["2", "2"]]
    assert rows_of(text, "WHEN ")[0] == ["WHEN", "PARTITION", "FROM", "TO", "EPOCH", "REASON"]


def test_a_group_is_described_to_programs_and_watched(watched: Path) -> None:
    with started("group", "describe", "--watch", "--every", "0.5", "--json", folder=watched) as watching:
        first = json.loads(next_line(watching))
        later = [json.loads(next_line(watching)) for _ in range(4)][-1]
        code, _, err = end(watching, signal.SIGINT)
    assert (code, err) == (0, "")
    assert (first["status"], first["findings"], first["problems"], first["actions"]) == ("ok", [], [], [])
    assert {(row["trend"], row["per_s"], row["expires_s"]) for row in first["partitions"]} == {(None, None, None)}
    assert all(row["per_s"] > 0 and 0 < row["expires_s"] <= TTL_S for row in later["partitions"])
    assert later["trend"] == "shrinks"
    assert later["catch_up_s"] > 0
    assert {member["status"] for member in later["members"]} == {"alive"}


def test_lag_is_shown_alone_with_its_total(watched: Path) -> None:
    head, *rows, total = rows_of(answer("lag", folder=watched), "PARTITION ")
    assert head == ["PARTITION", "STATUS", "SEQUENCE", "NEWEST", "LAG", "LAG-TIME", "TREND"]
    assert total[0] == "total"
    assert int(total[4]) == sum(int(row[4]) for row in rows) > 0
    assert all(int(row[3]) - int(row[2]) == int(row[4]) for row in rows)
    found = facts("lag", folder=watched)
    assert found["lag"] == sum(row["lag"] for row in found["partitions"])
    assert (found["lag_unknown"], found["trend"]) == (0, None)


def test_a_partition_that_cannot_be_read_blanks_no_other(tmp_path: Path) -> None:
    folder = application(tmp_path, 8)
    asyncio.run(leave_records(folder))
    next((folder / "homes" / "partitions").glob("*0002*.sqlite*")).write_bytes(b"not a database" * 100)
    done = evenflow("lag", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["lag"] is None for row in found["partitions"]] == [False, False, True, False]
    assert (found["lag"], found["lag_unknown"]) == (6, 1)
    assert "warning: partition 2: " in done.stderr
    assert rows_of(answer("lag", folder=folder), "PARTITION ")[-1][:6] == ["total", "1", "unknown", "-", "-", "6"]


def test_top_prints_a_frame_a_look_without_a_terminal(watched: Path) -> None:
    text = answer("top", "--count", "3", "--every", "0.7", folder=watched)
    frames = text.strip().split("evenflow top ")[1:]
    assert len(frames) == 3
    assert "events/s -   lag " in frames[0]
    assert "↓" in frames[2]
    rows = rows_of(frames[2], "PARTITION ")
    assert all(float(row[5].replace(",", "")) > 0 for row in rows[1:])
    assert [len(rows_of(frames[2], "MEMBER ")), len(rows)] == [3, 5]
    looks = answer("top", "--count", "2", "--every", "0.5", "--json", folder=watched).splitlines()
    assert [json.loads(look)["per_s"] is None for look in looks] == [True, False]


def test_a_partition_is_explained(watched: Path) -> None:
    text = answer("explain", "3", folder=watched)
    found = facts("explain", "3", folder=watched)
    owner = found["owner"]
    assert text.startswith("Partition 3 of local/homes/alerts: ok\n\n")
    assert f"{owner} owns it, in epoch " in text
    assert text.endswith(f"The next plan leaves it with {owner}. {owner} has 2, its share is 2 of 4.\n")
    assert (found["next_owner"], {move["partition"] for move in found["moves"]}) == (owner, {"3"})
    assert found["moves"][0]["after"] == owner
    wrong = evenflow("explain", "9", folder=watched)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "error: local/homes/alerts has no partition '9'. It has: 0, 1, 2 and 3.\n"


def test_a_plan_tells_what_would_move(watched: Path) -> None:
    more = facts("plan", "--members", "4", folder=watched)
    assert (more["added"], more["removed"], len(more["moves"])) == (["new-1", "new-2"], [], 2)
    assert {move["after"] for move in more["moves"]} == {"new-1", "new-2"}
    assert [(share["now"], share["share"]) for share in more["shares"]] == [(2, 1), (2, 1), (0, 1), (0, 1)]
    fewer = answer("plan", "--members", "1", folder=watched)
    assert fewer.startswith("1 instance, 2 moves of 4 partitions\nremoved: ")
    assert len(rows_of(fewer, "PARTITION ")) == 3
    assert rows_of(fewer, "MEMBER ")[0] == ["MEMBER", "NOW", "SHARE"]
    assert facts("plan", folder=watched)["moves"] == []
    assert owned(watched) == [2, 2]


def test_a_plan_of_too_many_instances_is_wrong_usage(watched: Path) -> None:
    assert len(facts("plan", "--members", "10000", folder=watched)["shares"]) == 10_000
    done = evenflow("plan", "--members", "10001", folder=watched)
    assert (done.returncode, done.stdout) == (2, "")
    assert "10000" in done.stderr


def test_flags_and_the_environment_say_which_group_too(watched: Path) -> None:
    assert facts("lag", "--profile", "alerts", folder=watched)["group"] == "alerts"
    wrong = evenflow("lag", "--group", "nope", folder=watched)
    assert wrong.stderr == ("error: The store knows no group 'nope' of hub 'homes'. It has: local/homes/alerts.\n")
    with started("lag", folder=watched, EVENFLOW_PROFILE="nope") as lag:
        _, err = lag.communicate(timeout=30)
    assert "has no profile 'nope'. It has: alerts." in err


async def leave_records(
    folder: Path, notes: Notes | None = None, *, owned: bool = True, load: dict[str, float] | None = None
) -> None:
    """A group that an instance has begun and left: a checkpoint before the first event of each partition.

    Notes are those of partition 1. Owned: its leases have not run out yet.
    """
    store = SQLiteStore(folder / "leases")
    try:
        ledger = await store.beat(GROUP, Member(id="ada", nonce="a", ttl_s=60.0, load=load), None)
        assert ledger.me is not None
        for number in range(4):
            name, nothing = str(number), Position("-1", -1)
            change = Change(
                partition=name, revision=0, history=0, owner=ledger.me.owner, epoch=1, ttl_s=60.0, reason="claimed"
            )
            await store.swap(GROUP, [change])
            record = Checkpoint(partition=name, epoch=1, position=nothing, ordinal=0)
            await store.seal(GROUP, name, 1, record)
            if notes is not None and name == "1":
                stopped = Checkpoint(partition=name, epoch=1, position=nothing, ordinal=0, notes=notes.as_dict())
                await store.commit(GROUP, [stopped])
        ledger = await store.beat(GROUP, ledger.me, None)
        if not owned:
            released = [
                Change(partition=lease.partition, revision=lease.revision, history=0, owner=None, epoch=2)
                for lease in ledger.leases
            ]
            assert ledger.me is not None
            await store.swap(GROUP, released)
            await store.beat(GROUP, msgspec.structs.replace(ledger.me, leaving=True), None)
    finally:
        await store.aclose()


def test_a_stopped_partition_says_what_failed_and_what_to_do(tmp_path: Path) -> None:
    folder = application(tmp_path, 8)
    stop = Stopped(0, Position("0", 0), "ValueError: no such home", attempts=5, by="ada", at=1.0)
    asyncio.run(leave_records(folder, Notes(stopped=stop, parked={"home-7": 0})))
    found = facts("group", "describe", folder=folder)
    assert [row["status"] for row in found["partitions"]] == ["ok", "stopped", "ok", "ok"]
    assert found["partitions"][1]["failure"]["error"] == "ValueError: no such home"
    assert [finding["kind"] for finding in found["findings"]] == ["stopped", "parked"]
    for command in (("status",), ("group", "describe"), ("explain", "1")):
        text = answer(*command, folder=folder)
        assert "stands before the event at 0, which failed 5 times, seen by ada: ValueError: no such home" in text
        assert "Look at it: evenflow hub tail homes --from 0 --partition 1 --count 1; mend the handler" in text
        assert "evenflow group resume --partition 1 --profile alerts; or" in text
    flags = ("--store", "sqlite:leases", "--source", "hub:homes", "--group", "alerts")
    assert f"evenflow group resume --partition 1 {' '.join(flags)}; or" in answer("status", *flags, folder=folder)
    assert "(home-7) follow an earlier one" in text
    assert answer("explain", "0", folder=folder).count("!") == 0


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
    assert found["findings"][0]["what"] == "every instance of this group is silent."
    assert facts("plan", "--members", "1", folder=folder)["added"] == ["new-1"]
    (group,) = facts("group", "list", folder=folder)["groups"]
    assert (group["members"], group["status"]) == (0, "nobody runs")
    asked = evenflow("group", "delete", folder=folder)
    assert (asked.returncode, "may still run" in asked.stderr) == (2, False)


def test_a_partition_that_stands_still_falls_behind_in_time_too(tmp_path: Path) -> None:
    folder = application(tmp_path, 8)
    asyncio.run(leave_records(folder))
    first = facts("lag", folder=folder)
    later = facts("lag", folder=folder)
    assert all(0 < before["lag_s"] < after["lag_s"] for before, after in both(first, later))


def both(first: Any, later: Any) -> list[tuple[Any, Any]]:
    return list(zip(first["partitions"], later["partitions"], strict=True))


def test_loads_are_shown_where_instances_publish_them(tmp_path: Path) -> None:
    folder = application(tmp_path, 8)
    asyncio.run(leave_records(folder, load={"0": 0.9, "1": 0.1, "2": 0.1, "3": 0.1}))
    found = facts("group", "describe", folder=folder)
    assert [row["load"] for row in found["partitions"]] == [0.9, 0.1, 0.1, 0.1]
    (member,) = found["members"]
    assert (round(member["load"], 6), round(member["load_of_mean"], 6)) == (1.2, 1.0)
    text = answer("group", "describe", folder=folder)
    assert [row[13] for row in rows_of(text, "PARTITION ")[1:]] == ["0.90", "0.10", "0.10", "0.10"]
    assert rows_of(text, "MEMBER ")[0][4] == "LOAD"
    assert "The next plan leaves it with ada. ada has 4 of 4, and is at 1.00 of the mean load.\n" in answer(
        "explain", "0", folder=folder
    )
    plan = answer("plan", "--members", "2", folder=folder)
    assert rows_of(plan, "MEMBER ") == [
        ["MEMBER", "NOW", "SHARE", "LOAD-NOW", "LOAD-THEN"],
        ["ada", "4", "1", "2.00", "1.50"],
        ["new-1", "0", "3", "0.00", "0.50"],
    ]
    assert answer("plan", "--members", "0", folder=folder).splitlines()[-1].startswith("nobody would own anything")


def test_dead_letters_are_told_where_their_target_is_known(tmp_path: Path) -> None:
    folder = application(tmp_path, 8)
    asyncio.run(leave_records(folder))
    assert facts("status", folder=folder)["dead_letters"] is None
    asyncio.run(file_letters(folder))
    found = facts("status", "--letters", "jsonl:dead", folder=folder)
    assert (found["dead_letters"], found["status"]) == (2, "dead letters")
    text = answer("group", "describe", "--letters", "jsonl:dead", folder=folder)
    assert "! dead letters: 2 events could not be handled: they are in the dead letters.\n" in text
    assert "  Look at them: evenflow dead-letters list --letters jsonl:dead --profile alerts\n" in text
    (folder / "evenflow.toml").write_text(PROFILES + 'letters = "jsonl:dead"\n')
    assert "Look at them: evenflow dead-letters list --profile alerts\n" in answer("status", folder=folder)
    (folder / "evenflow.toml").write_text(PROFILES + 'letters = "jsonl:nowhere"\n')
    done = evenflow("status", folder=folder)
    assert (done.returncode, "dead letters: " in done.stderr) == (0, True)


async def file_letters(folder: Path) -> None:
    letters = open_letters(f"jsonl:{folder / 'dead'}")
    filed = [Letter(partition="1", event=Event(b"x", sequence=number), reason="poison", error="E") for number in (0, 1)]
    await letters.file(GROUP, "1", filed)
    await letters.aclose()
