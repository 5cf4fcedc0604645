"""`evenflow dead-letters` as its users meet it: the real program, its output and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.hub import Hub
from evenflow.letters.redrive import read_filed
from evenflow.model import Change, Event, Group, Letter, Member, Verdict
from evenflow.stores.sqlite import SQLiteStore
from evenflow.urls import open_letters
from tests.integration.programs import EVENFLOW, PATIENCE_S, answer, asked, end, evenflow, facts, started, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.model import LetterRecord

pytestmark = pytest.mark.process

GROUP = Group("local", "homes", "alerts")
WHERE = ("--letters", "jsonl:dead", "--group", "alerts")
STORE = ("--store", "sqlite:leases")
TRACE = 'Traceback (most recent call last):\n  File "app.py", line 3, in handle\nValueError: no such home\n'


def letter(number: int, partition: str = "0", **more: Any) -> Letter:
    body, key = more.pop("body", f"door {number}".encode()), more.pop("key", f"home-{number}")
    event = Event(body, key, more.pop("properties", None), number, 1_700_000_000_000_000)
    known = {"reason": "poison", "error": "ValueError: no such home", "traceback": TRACE, "attempts": 5}
    return Letter(
        **{"partition": partition, "event": event, "instance": "one", "epoch": 3, "at": 1.7e9, **known, **more}
    )


LETTERS = [
    letter(7),
    letter(9, key="home-7", reason="parked", error="an earlier event of this key", traceback="", attempts=0),
    letter(2, "1", error="TimeoutError: slow\nvery", body=b"\x00\xff\x10", key=None, properties={"b": b"\x01", "n": 1}),
]


class Place:
    """A folder with a hub, a store, a target, and perhaps an owner who answers."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.target = f"{target.partition(':')[0]}:{folder / 'dead'}"
        self.failing: set[str] = set()
        self.handled: list[str] = []
        self.most = 1_000
        Hub.create(folder / "homes", 2).close()
        asyncio.run(self._make())

    async def _make(self) -> None:
        store = SQLiteStore(self.folder / "leases")
        member = Member(id="one", nonce="n", ttl_s=8.0)
        ledger = await store.beat(GROUP, member, None)
        assert ledger.me is not None
        self.me = ledger.me
        history = ledger.cursor.history
        claims = [
            Change(partition=name, revision=0, history=history, owner=self.me.owner, epoch=(history << 32) + 1, ttl_s=8)
            for name in "01"
        ]
        assert all(outcome.ok for outcome in await store.swap(GROUP, claims))
        await store.aclose()
        await self.file(*LETTERS)

    async def file(self, *records: LetterRecord) -> None:
        letters = open_letters(self.target)
        for record in records:
            partition = record.partition if isinstance(record, Letter) else record.letter.partition("@")[0]
            await letters.file(GROUP, partition, [record])
        await letters.aclose()

    def states(self) -> dict[str, str]:
        async def read() -> dict[str, str]:
            letters = open_letters(self.target)
            found: dict[str, str] = {one.letter.id: one.state for one in await read_filed(letters, GROUP)}
            await letters.aclose()
            return found

        return asyncio.run(read())

    def verdicts(self, kind: str) -> list[Verdict]:
        async def read() -> list[Verdict]:
            letters = open_letters(self.target)
            found = [one async for one in letters.read(GROUP) if isinstance(one, Verdict) and one.kind == kind]
            await letters.aclose()
            return found

        return asyncio.run(read())

    def actions(self) -> list[tuple[str, str, str]]:
        async def read() -> list[tuple[str, str, str]]:
            store = SQLiteStore(self.folder / "leases")
            found = [(one.kind, one.why, one.what) for one in await store.actions(GROUP)]
            await store.aclose()
            return found

        return asyncio.run(read())

    @contextmanager
    def owner(self) -> Iterator[None]:
        """Somebody who beats, and does what the group's state asks for, as the owner of both partitions."""
        over = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._own(over)))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    async def _own(self, over: threading.Event) -> None:
        store, letters = SQLiteStore(self.folder / "leases"), open_letters(self.target)
        while not over.is_set():
            ledger = await store.beat(GROUP, self.me, None)
            for partition in ledger.state.redrives:
                for one in await read_filed(letters, GROUP, partition):
                    if one.state != "again":
                        continue
                    if len(self.handled) < self.most:
                        self.handled.append(one.letter.id)
                        error = "ValueError: still no" if one.letter.id in self.failing else None
                        await letters.file(GROUP, partition, [one.answered(error, by="one", at=time.time())])
            await asyncio.sleep(0.05)
        await store.aclose()
        await letters.aclose()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "jsonl:dead")


def test_of_many_that_fail_again_the_first_are_told(place: Place, tmp_path: Path) -> None:
    asyncio.run(place.file(*(letter(number) for number in range(100, 130))))
    place.failing = set(place.states())
    with place.owner():
        done = evenflow("dead-letters", "redrive", *WHERE, *STORE, "--all", "--yes", "--why", "mended", folder=tmp_path)
    assert done.stderr.count("failed again") == 20
    assert "... and 13 more: evenflow dead-letters list shows all" in done.stderr


@pytest.mark.parametrize("target", ["jsonl:dead", "hub:dead"])
def test_letters_are_listed_shown_redriven_and_dropped(tmp_path: Path, target: str) -> None:
    place = Place(tmp_path, target)
    where = ("--letters", target, "--group", "alerts", *STORE)
    listed = facts("dead-letters", "list", *where, folder=tmp_path)
    assert (listed["hub"], [one["letter"] for one in listed["letters"]]) == ("homes", ["0@7", "0@9", "1@2"])
    place.failing = {"1@2"}
    with place.owner():
        done = evenflow("dead-letters", "redrive", *where, "--all", "--yes", "--why", "mended", folder=tmp_path)
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
        ("again", "mended"), ("failed", "ValueError: still no"), ("dropped", "no home"),
    ]  # fmt: skip
    assert [action[:2] for action in place.actions()] == [("drop", "no home"), ("redrive", "mended")]


def test_a_list_is_a_table_for_people(place: Place) -> None:
    header, *rows = answer("dead-letters", "list", *WHERE, "--source", "hub:homes", folder=place.folder).splitlines()
    assert header.split() == ["LETTER", "STATE", "TRIES", "KEY", "REASON", "ATTEMPTS", "FILED", "ERROR"]
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
    asyncio.run(place.file(letter(1), Verdict(letter="0@1", kind="again", number=1)))
    asyncio.run(place.file(Verdict(letter="0@1", kind="redriven", number=1)))
    found = facts("dead-letters", "list", *WHERE, *STORE, *filters, folder=place.folder)
    assert [one["letter"] for one in found["letters"]] == expected


def test_all_of_a_letter_is_shown(place: Place) -> None:
    shown = answer("dead-letters", "show", "0@7", *WHERE, *STORE, folder=place.folder)
    for line in (
        "LETTER      0@7",
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


def test_a_redrive_as_json_tells_what_became_of_each(place: Place) -> None:
    place.failing = {"0@9"}
    with place.owner():
        done = evenflow(
            "dead-letters", "redrive", "--partition", "0", *WHERE, *STORE, "--yes", "--json", folder=place.folder
        )
    assert done.returncode == 1
    assert "redriving" not in done.stderr, "no bar"
    found = json.loads(done.stdout)
    assert (found["asked"], found["redriven"], found["waiting"]) == (2, ["0@7"], [])
    assert found["failed"] == [{"letter": "0@9", "error": "ValueError: still no"}]


def test_where_nobody_runs_it_says_so(place: Place) -> None:
    asyncio.run(_leave(place))
    done = evenflow("dead-letters", "redrive", "0@7", *WHERE, *STORE, "--yes", folder=place.folder)
    assert done.returncode == 1
    assert "partition 0: no instance runs" in done.stderr
    assert "asked for; they will be handled when an instance runs" in done.stderr
    again = evenflow("dead-letters", "redrive", "0@7", *WHERE, *STORE, "--yes", "--json", folder=place.folder)
    found = json.loads(again.stdout)
    assert (found["asked"], found["waiting"], found["unattended"]) == (0, ["0@7"], {"0": "no instance runs"})
    assert [one.number for one in place.verdicts("again")] == [1], "nothing is asked for twice"
    with place.owner():
        wait_for(lambda: place.states()["0@7"] == "redriven", "the letter to be handled")


async def _leave(place: Place) -> None:
    store = SQLiteStore(place.folder / "leases")
    ledger = await store.peek(GROUP)
    assert ledger is not None
    releases = [
        Change(
            partition=lease.partition, revision=lease.revision, history=lease.history, owner=None, epoch=lease.epoch + 1
        )
        for lease in ledger.leases
    ]
    await store.swap(GROUP, releases)
    left = await store.beat(GROUP, structs.replace(place.me, leaving=True), None)
    assert left.me is None
    await store.aclose()
    place.me = Member(id="two", nonce="n2", ttl_s=8.0)


def test_one_need_not_wait(place: Place) -> None:
    found = facts("dead-letters", "redrive", "--all", "--yes", "--no-wait", *WHERE, *STORE, folder=place.folder)
    assert (found["asked"], len(found["waiting"])) == (3, 3)
    assert set(place.states().values()) == {"again"}


def test_interrupted_it_goes_on_where_it_stopped(place: Place) -> None:
    asyncio.run(place.file(*[letter(number) for number in range(100, 140)]))
    arguments = ("dead-letters", "redrive", "--all", "--yes", "--rate", "2", "--json", *WHERE, *STORE)
    with place.owner():
        with started(*arguments, folder=place.folder) as redrive:
            wait_for(lambda: len(place.handled) >= 4, "some letters to be handled")
            code, out, _ = end(redrive, signal.SIGINT)
        assert code == 1
        found = json.loads(out)
        assert found["interrupted"] is True
        assert 2 <= len(place.verdicts("again")) < 43
        assert 4 <= found["asked"] <= len(place.verdicts("again")), "those that this run has asked for"
        rest = facts("dead-letters", "redrive", "--all", "--yes", *WHERE, *STORE, folder=place.folder)
    assert rest["failed"] == rest["waiting"] == []
    assert set(place.states().values()) == {"redriven"}
    assert sorted(place.handled) == sorted(place.states()), "each was handled once"
    assert len(place.verdicts("again")) == 43


@pytest.mark.parametrize("command", ["redrive", "drop"])
def test_one_ctrl_c_at_the_question_ends_it_and_nothing_is_changed(place: Place, command: str) -> None:
    with asked(place.folder, "dead-letters", command, "--all", *WHERE, *STORE) as (process, terminal, _):
        os.write(terminal, b"\x03")
        assert process.wait(PATIENCE_S) == 1
    assert set(place.states().values()) == {"dead"}


def test_what_overtakes_is_warned_of(place: Place) -> None:
    with place.owner():
        done = evenflow("dead-letters", "redrive", "0@9", *WHERE, *STORE, "--yes", folder=place.folder)
    assert done.returncode == 0
    assert "warning: 0@9 follows an earlier letter of its key" in done.stderr


@pytest.mark.parametrize(("word", "code", "state"), [("y\n", 0, "dropped"), ("n\n", 1, "dead"), ("\n", 1, "dead")])
def test_at_a_terminal_it_asks_first(place: Place, word: str, code: int, state: str) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*EVENFLOW, "dead-letters", "drop", "0@7", *WHERE, *STORE],
            cwd=place.folder, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        os.write(ours, word.encode())
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, out) == (code, "")
    assert "Drop 1 dead letter of group local/homes/alerts for good?" in err
    assert "ValueError: no such home" in err, "it shows what it will do"
    assert place.states()["0@7"] == state


def test_a_damaged_target_is_listed_as_far_as_it_goes_and_changed_by_nobody(place: Place) -> None:
    path = place.folder / "dead/local/homes/alerts/0.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first[:40], b"\n", *others]))
    done = evenflow("dead-letters", "list", *WHERE, *STORE, "--json", folder=place.folder)
    assert done.returncode == 1
    assert [one["letter"] for one in json.loads(done.stdout)["letters"]] == ["0@9", "1@2"]
    assert "dead/local/homes/alerts/0.jsonl, line 1, is damaged" in done.stderr
    refused = evenflow("dead-letters", "drop", "--all", "--yes", *WHERE, *STORE, folder=place.folder)
    assert refused.returncode == 1
    assert "line 1, is damaged" in refused.stderr
    assert b"dropped" not in path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", *WHERE], 2, "or --source, to say which hub's group is meant"),
        (["list", *WHERE, *STORE, "7"], 2, "a letter is named PARTITION@OFFSET"),
        (["list", *WHERE, *STORE, "--state", "alive"], 2, "a state is dead, again, redriven, dropped"),
        (["list", *WHERE, *STORE, "0@99"], 1, "error: This group has no dead letter 0@99"),
        (["show", "0@99", *WHERE, *STORE], 1, "error: This group has no dead letter 0@99"),
        (["list", "--letters", "jsonl:nothing", "--group", "alerts", *STORE], 1, "error: There are no dead letters at"),
        (["list", "--letters", "hub:nothing", "--group", "alerts", *STORE], 1, "error: There is no hub at nothing"),
        (["list", "--letters", "ftp://me:secret@host", "--group", "a", *STORE], 1, "'ftp://host': no such kind"),
        (["list", "--letters", "jsonl:dead", "--group", "other", *STORE], 1, "error: The store knows no group 'other'"),
        (["redrive", *WHERE, "--all"], 2, "--store"),
        (["redrive", *WHERE, *STORE], 2, "say which"),
        (["redrive", *WHERE, *STORE, "--all"], 2, "add --yes to do it"),
        (["redrive", *WHERE, *STORE, "--all", "--rate", "0"], 2, "--rate"),
        (["drop", *WHERE, *STORE], 2, "say which"),
        (["drop", *WHERE, *STORE, "--key", "home-7"], 2, "add --yes to do it"),
        (["drop", *WHERE, *STORE, "0@99", "--yes"], 1, "error: This group has no dead letter 0@99"),
    ],
)
def test_an_error_is_told_in_a_line_and_by_the_exit_code(
    place: Place, arguments: list[str], code: int, message: str
) -> None:
    done = evenflow("dead-letters", *arguments, folder=place.folder)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, done.stdout) == (code, "")
    assert message in said
    assert "Traceback" not in said
    assert "secret" not in said
    assert not (place.folder / "nothing").exists()
    assert set(place.states().values()) == {"dead"}


def test_an_empty_list_says_why_it_is_empty(place: Place) -> None:
    flags = ("--letters", place.target, "--group", "alerts", *STORE)
    none = evenflow("dead-letters", "list", *flags, "--key", "nobody", folder=place.folder)
    assert (none.returncode, none.stderr) == (0, "no dead letters match\n")
    done = evenflow("dead-letters", "drop", "--all", "--yes", *flags, folder=place.folder)
    assert done.returncode == 0, done.stderr
    empty = evenflow("dead-letters", "list", *flags, folder=place.folder)
    assert empty.stderr.endswith("are redriven or dropped: --all shows them\n")
