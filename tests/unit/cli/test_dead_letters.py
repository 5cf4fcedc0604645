"""`evenflow dead-letters`: list, show, redrive, drop, and their errors."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from evenflow.model import Verdict
from tests.integration.programs import wait_for
from tests.unit.cli.command import answer, asked, evenflow, facts, message_of
from tests.unit.cli.dead_letters_scene import STORE, WHERE, Place, dead_letter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "jsonl:dead")


def test_of_many_failures_the_first_are_reported(place: Place, tmp_path: Path) -> None:
    asyncio.run(place.file(*(dead_letter(number) for number in range(100, 130))))
    place.failing = set(place.states())
    with place.owner():
        done = evenflow("dead-letters", "redrive", *WHERE, *STORE, "--all", "--yes", "--why", "fixed", folder=tmp_path)
    assert done.stderr.count("failed again") == 20
    assert "... and 13 more; `evenflow dead-letters list` shows all" in done.stderr


@pytest.mark.parametrize("target", ["jsonl:dead", "hub:dead"])
def test_dead_letters_are_listed_shown_redriven_and_dropped(tmp_path: Path, target: str) -> None:
    place = Place(tmp_path, target)
    where = ("--dead-letters", target, "--group", "alerts", *STORE)
    listed = facts("dead-letters", "list", *where, folder=tmp_path)
    assert (listed["hub"], [one["dead_letter"] for one in listed["dead_letters"]]) == ("homes", ["0@7", "0@9", "1@2"])
    place.failing = {"1@2"}
    with place.owner():
        done = evenflow("dead-letters", "redrive", *where, "--all", "--yes", "--why", "fixed", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "1@2 failed again: ValueError: still no" in done.stderr
    assert "2 redriven, 1 failed" in done.stderr
    assert place.handled[:2] == ["0@7", "0@9"]
    assert place.states() == {"0@7": "redriven", "0@9": "redriven", "1@2": "dead"}
    dropped = facts("dead-letters", "drop", "1@2", *where, "--yes", "--why", "no home", folder=tmp_path)
    assert dropped["dropped"] == ["1@2"]
    assert place.states()["1@2"] == "dropped"
    assert answer("dead-letters", "list", *where, folder=tmp_path) == ""
    shown = facts("dead-letters", "show", "1@2", *where, folder=tmp_path)
    assert [(one["verdict"], one["why"]) for one in shown["verdicts"]] == [
        ("again", "fixed"), ("failed", "ValueError: still no"), ("dropped", "no home"),
    ]  # fmt: skip
    assert [action[:2] for action in place.actions()] == [("drop", "no home"), ("redrive", "fixed")]


def test_a_list_is_a_table(place: Place) -> None:
    header, *rows = answer("dead-letters", "list", *WHERE, "--source", "hub:homes", folder=place.folder).splitlines()
    assert header.split() == ["ID", "STATE", "TRIES", "KEY", "REASON", "ATTEMPTS", "FILED", "ERROR"]
    assert rows[0].split() == [
        "0@7", "dead", "0", "home-7", "poison", "5", "2023-11-14T22:13:20Z", "ValueError:", "no", "such", "home",
    ]  # fmt: skip
    assert rows[2].split()[3] == "-"
    assert rows[2].endswith("TimeoutError: slow"), "an error's first line"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--partition", "0"], ["0@7", "0@9"]),
        (["--key", "home-7", "--error", "EARLIER"], ["0@9"]),
        (["--state", "again"], []),
        (["--state", "redriven"], ["0@1"]),
        (["--all"], ["0@7", "0@9", "0@1", "1@2"]),
        (["0@1", "1@2"], ["0@1", "1@2"]),
    ],
)
def test_a_list_is_filtered(place: Place, filters: list[str], expected: list[str]) -> None:
    asyncio.run(place.file(dead_letter(1), Verdict(dead_letter="0@1", kind="again", number=1)))
    asyncio.run(place.file(Verdict(dead_letter="0@1", kind="redriven", number=1)))
    found = facts("dead-letters", "list", *WHERE, *STORE, *filters, folder=place.folder)
    assert [one["dead_letter"] for one in found["dead_letters"]] == expected


def test_everything_about_a_dead_letter_is_shown(place: Place) -> None:
    shown = answer("dead-letters", "show", "0@7", *WHERE, *STORE, folder=place.folder)
    for line in (
        "ID          0@7",
        "STATE       dead",
        "ATTEMPTS    5",
        "INSTANCE    one",
        "  door 7",
        "KEY         home-7",
    ):
        assert line in shown.splitlines()
    assert '  File "app.py", line 3, in handle' in shown
    binary = answer("dead-letters", "show", "1@2", *WHERE, *STORE, folder=place.folder)
    assert "00 ff 10" in binary
    assert '  b: {"$bytes":"AQ=="}' in binary
    known = facts("dead-letters", "show", "1@2", *WHERE, *STORE, folder=place.folder)
    assert (known["body"], known["body_base64"], known["key"]) == (None, "AP8Q", None)
    assert known["properties"] == {"b": {"$bytes": "AQ=="}, "n": 1}


def test_a_redrive_as_json_has_the_result_of_each(place: Place) -> None:
    place.failing = {"0@9"}
    with place.owner():
        done = evenflow(
            "dead-letters", "redrive", "--partition", "0", *WHERE, *STORE, "--yes", "--json", folder=place.folder
        )
    assert done.returncode == 1
    assert "redriving" not in done.stderr, "no bar"
    found = json.loads(done.stdout)
    assert (found["asked"], found["redriven"], found["waiting"]) == (2, ["0@7"], [])
    assert found["failed"] == [{"dead_letter": "0@9", "error": "ValueError: still no"}]


def test_without_a_live_instance_it_says_so(place: Place) -> None:
    asyncio.run(place.leave())
    done = evenflow("dead-letters", "redrive", "0@7", *WHERE, *STORE, "--yes", folder=place.folder)
    assert done.returncode == 1
    assert "partition 0: no instance is running" in done.stderr
    assert "requested; they will be handled when an instance runs" in done.stderr
    again = evenflow("dead-letters", "redrive", "0@7", *WHERE, *STORE, "--yes", "--json", folder=place.folder)
    found = json.loads(again.stdout)
    assert (found["asked"], found["waiting"], found["unattended"]) == (0, ["0@7"], {"0": "no instance is running"})
    assert [one.number for one in place.verdicts("again")] == [1], "nothing is requested twice"
    with place.owner():
        wait_for(lambda: place.states()["0@7"] == "redriven", "the dead letter to be handled")


def test_a_redrive_need_not_wait(place: Place) -> None:
    found = facts("dead-letters", "redrive", "--all", "--yes", "--no-wait", *WHERE, *STORE, folder=place.folder)
    assert (found["asked"], len(found["waiting"])) == (3, 3)
    assert set(place.states().values()) == {"again"}


def test_a_redrive_out_of_order_is_warned_of(place: Place) -> None:
    with place.owner():
        done = evenflow("dead-letters", "redrive", "0@9", *WHERE, *STORE, "--yes", folder=place.folder)
    assert done.returncode == 0
    assert "warning: 0@9 follows an earlier dead letter of the same key, which is not selected" in done.stderr


@pytest.mark.parametrize(("word", "code", "state"), [("y\n", 0, "dropped"), ("n\n", 1, "dead"), ("\n", 1, "dead")])
def test_at_a_terminal_it_asks_first(place: Place, word: str, code: int, state: str) -> None:
    done = asked(word, "dead-letters", "drop", "0@7", *WHERE, *STORE, folder=place.folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Permanently drop 1 dead letter of group local/homes/alerts?" in done.stderr
    assert "ValueError: no such home" in done.stderr, "it shows what it will do"
    assert place.states()["0@7"] == state


def test_a_damaged_target_is_listed_as_far_as_possible_and_never_changed(place: Place) -> None:
    path = place.folder / "dead/local/homes/alerts/0.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first[:40], b"\n", *others]))
    done = evenflow("dead-letters", "list", *WHERE, *STORE, "--json", folder=place.folder)
    assert done.returncode == 1
    assert [one["dead_letter"] for one in json.loads(done.stdout)["dead_letters"]] == ["0@9", "1@2"]
    assert "dead/local/homes/alerts/0.jsonl, line 1, is damaged" in done.stderr
    refused = evenflow("dead-letters", "drop", "--all", "--yes", *WHERE, *STORE, folder=place.folder)
    assert refused.returncode == 1
    assert "line 1, is damaged" in refused.stderr
    assert b"dropped" not in path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", *WHERE], 2, "or --source URL to name the group's hub"),
        (["list", *WHERE, *STORE, "7"], 2, "'7' is not the id of a dead letter; write PARTITION@OFFSET"),
        (["list", *WHERE, *STORE, "--state", "alive"], 2, "'alive' is not a state; use dead, again, redriven, dropped"),
        (["list", *WHERE, *STORE, "0@99"], 1, "error: This group has no dead letter 0@99"),
        (["show", "0@99", *WHERE, *STORE], 1, "error: This group has no dead letter 0@99"),
        (
            ["list", "--dead-letters", "jsonl:nothing", "--group", "alerts", *STORE],
            1,
            "error: There are no dead letters at",
        ),
        (
            ["list", "--dead-letters", "hub:nothing", "--group", "alerts", *STORE],
            1,
            "error: There is no hub at nothing",
        ),
        (["list", "--dead-letters", "ftp://me:secret@host", "--group", "a", *STORE], 1, "'ftp://host': unknown scheme"),
        (
            ["list", "--dead-letters", "jsonl:dead", "--group", "other", *STORE],
            1,
            "error: The store has no group 'other'",
        ),
        (["redrive", *WHERE, "--all"], 2, "--store"),
        (["redrive", *WHERE, *STORE], 2, "no dead letters selected"),
        (["redrive", *WHERE, *STORE, "--all"], 2, "pass --yes to confirm"),
        (["redrive", *WHERE, *STORE, "--all", "--rate", "0"], 2, "--rate"),
        (["drop", *WHERE, *STORE], 2, "no dead letters selected"),
        (["drop", *WHERE, *STORE, "--key", "home-7"], 2, "pass --yes to confirm"),
        (["drop", *WHERE, *STORE, "0@99", "--yes"], 1, "error: This group has no dead letter 0@99"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(place: Place, arguments: list[str], code: int, message: str) -> None:
    done = evenflow("dead-letters", *arguments, folder=place.folder)
    said = message_of(done)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in said
    assert "Traceback" not in said
    assert "secret" not in said
    assert not (place.folder / "nothing").exists()
    assert set(place.states().values()) == {"dead"}


def test_an_empty_list_says_why_it_is_empty(place: Place) -> None:
    flags = ("--dead-letters", place.target, "--group", "alerts", *STORE)
    none = evenflow("dead-letters", "list", *flags, "--key", "home-0", folder=place.folder)
    assert (none.returncode, none.stderr) == (0, "no dead letters match\n")
    done = evenflow("dead-letters", "drop", "--all", "--yes", *flags, folder=place.folder)
    assert done.returncode == 0, done.stderr
    empty = evenflow("dead-letters", "list", *flags, folder=place.folder)
    assert empty.stderr == "no open dead letters; 3 redriven or dropped (--all shows them)\n"
