"""The flagship example with real processes: killed, added, stalled, ended; and the blobs are right to the last one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Event, Hub, Misconfigured, PartitionHalted
from evenflow.cli.demo.accounts import SUFFIX, Books
from evenflow.console.serving import bound
from evenflow.model import Group
from evenflow.runtime.clock import system_clock
from evenflow.steer import Who, resume
from evenflow.stores.sqlite import SQLiteStore
from examples.home_security import aggregate, alerts
from examples.home_security.blobs import Folder
from examples.home_security.inject import inject
from examples.home_security.layout import LAYOUT, About
from examples.home_security.let_go import let_go
from examples.home_security.places import GROUPS, Pace, Place, Scene, Town, machine_ms
from examples.home_security.reading import read_home
from examples.home_security.reports import MINUTE_MS
from tests.integration.home_security import DEMO, ROOT, figure, processes_in, started_demo
from tests.integration.programs import processes_with, slowness, started, wait_for
from tests.unit.home_security.streams import BEGIN_MS, report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evenflow.model import Checkpoint, Outcome
    from examples.home_security.reading import HomeView
    from tests.integration.home_security import Demo

pytestmark = pytest.mark.process


@pytest.mark.slow
def test_one_is_added_and_one_is_killed_and_every_minute_of_every_home_is_right(tmp_path: Path) -> None:
    """The homes' time goes fast, so that minutes become final and move into days while partitions move."""
    arguments = ("--homes", "300", "--speed", "60", "--begin", "17:00", "--seconds", "15")
    with started_demo(tmp_path, *arguments, program=DEMO) as demo:
        out, err = demo.process.communicate(timeout=110)
    assert demo.process.returncode == 0, out + err
    assert "aggregate-4 was started" in out
    assert "aggregate-1 was killed (SIGKILL)" in out
    assert "Somebody breaks into home" in out
    assert "carbon-monoxide" in out
    sent = figure(out, "events sent")
    assert figure(out, "beside them") == 2
    assert figure(out, "aggregated") == sent + 2 > 8_000
    assert figure(out, "alerts") > 0
    assert [figure(out, name) for name in ("lost", "counted twice", "handled twice")] == [0, 0, 0]
    assert "0 of them missing or too many" in out
    assert "taken over" in out
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_an_operator_acts_residents_see_it_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "200", "--speed", "4", "--keep") as demo:
        wait_for(lambda: demo.home(7), "home 7 to report")
        asyncio.run(inject(demo.place, 7, [("door", "open")], "away"))
        wait_for(lambda: [one.kind for one in seen(demo).alerts] == ["break-in"], "an alert", 5.0 * slowness())
        wait_for(lambda: doors_opened(seen(demo)) > 0, "the door in its minute", 5.0 * slowness())
        assert outcome(demo.act("add")) == "aggregate-4 was started. It gets its share with its first beats."
        assert "alerts-1 is stalled" in outcome(demo.act("stall", "alerts", subject="alerts-1"))
        assert "alerts-2 was killed" in outcome(demo.act("kill", "alerts", subject="alerts-2"))
        assert "not running" in outcome(demo.act("kill", subject="aggregate-99"))
        outcome(demo.act("retire", instance="aggregate-2"))
        wait_for(lambda: books(demo).reached("3") >= 5, "as many events as a seek goes back")
        demo.act("seek", to="shift", shift=-5, partitions=["3"])
        wait_for(lambda: sought(demo, "3"), "what comes again")
        assert "a quarter more events" in outcome(demo.act("detectors"))
        wait_for(lambda: "co" in {one.sensor for one in seen(demo).sensors}, "the detector")
        code, out, err = demo.end(signal.SIGINT)
    assert code == 0, out + err
    assert [figure(out, name) for name in ("lost", "counted twice", "handled twice")] == [0, 0, 0]
    assert figure(out, "again, by a seek") == 5, out + accounts_of(demo, "3")
    assert processes_in(tmp_path) == []
    # The page needs no consumer, and nothing was left half written.
    assert seen(demo).alerts[0].kind == "break-in"
    assert {path.name for path in demo.place.blobs.iterdir()} <= {"about", "recent", "days", "alerts", ".locks"}


def test_events_that_wait_for_a_paused_group_are_told_and_are_not_lost(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "50", "--speed", "10", "--consumers", "1") as demo:
        wait_for(lambda: demo.home(7), "home 7 to report")
        assert "paused the whole group" in outcome(demo.act("pause"))
        waits_from = sum(demo.newest().values())
        wait_for(lambda: sum(demo.newest().values()) > waits_from + 20, "events that wait")
        code, out, err = demo.end(signal.SIGINT)
    assert code == 0, out + err
    assert "events wait for aggregate: it is paused by a test" in out
    assert "In the console, resume it, and they are handled; or it ends without them" in out
    # Some came while the owner still had it in hand.
    assert figure(out, "waiting") > 0
    assert [figure(out, name) for name in ("lost", "counted twice", "handled twice")] == [0, 0, 0]


def test_whoever_moves_all_blobs_away_has_them_back_soon(tmp_path: Path) -> None:
    """Owners have in mind what they wrote. (What is not added to comes back later: no summary is asked for.)"""
    with started_demo(tmp_path, "--homes", "50", "--speed", "10", "--consumers", "1") as demo:
        wait_for(lambda: demo.home(7), "home 7 to report")
        demo.place.blobs.rename(tmp_path / "away")
        wait_for(lambda: (demo.place.blobs / "about").exists() and demo.home(7), "the blobs to be there again")


def test_it_can_be_ended_before_it_has_begun(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "50", "--consumers", "1") as demo:
        code, out, err = demo.end(signal.SIGTERM)
    assert code == 0, out + err
    assert figure(out, "lost") == 0
    assert_nothing_is_left(tmp_path)


def test_its_processes_end_when_it_is_killed_also_one_that_is_stalled(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "50", "--consumers", "1") as demo:
        wait_for(lambda: len(processes_in(tmp_path)) == 3, "a generator and two consumers")
        wait_for((demo.place.group("alerts") / "alerts-1.account").exists, "a consumer that has begun")
        (stalled,) = processes_with(str(tmp_path), "examples.home_security.alerts")
        os.kill(stalled, signal.SIGSTOP)
        demo.process.kill()
        wait_for(lambda: not processes_in(tmp_path), "their end")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--blobs", "ftp://somewhere"), "Blobs are in a folder, or at s3://"),
        (("--blobs", "/proc/nowhere"), "Blobs cannot be kept in /proc/nowhere: "),
        (("--blobs", "/dev/null"), "Name a folder that can be written to"),
        (("--blobs", "s3://nowhere/x?endpoint=http://127.0.0.1:9"), "allow_http=yes"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    run = subprocess.run(
        [*DEMO, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.returncode == 2
    assert told in run.stderr
    assert "Traceback" not in run.stderr
    assert_nothing_is_left(tmp_path)


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(tmp_path: Path) -> None:
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [*DEMO, "--port", str(port)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    assert run.returncode == 2
    assert f"Cannot serve on 127.0.0.1:{port}" in run.stderr


SLOW_TO_READ = """
import pathlib, sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "examples.home_security.command":
            pathlib.Path(__file__).with_name("reached").touch()
            time.sleep(60)

sys.meta_path.insert(0, Slow())
"""


def test_ctrl_c_while_it_still_reads_its_modules_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_READ)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with started("--homes", "50", folder=ROOT, program=DEMO, PYTHONPATH=paths) as process:
        wait_for((tmp_path / "reached").exists, "the first of them")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-signal.SIGINT, "")


def test_ctrl_c_before_it_has_begun_is_no_error(tmp_path: Path) -> None:
    with started("--homes", "50", "--consumers", "1", folder=ROOT, program=DEMO, TMPDIR=str(tmp_path)) as process:
        wait_for(lambda: any(tmp_path.iterdir()), "its folder")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert "Traceback" not in err
    assert_nothing_is_left(tmp_path)


def test_what_went_wrong_can_be_looked_into_afterwards(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "50", "--consumers", "1") as demo:
        (generator,) = wait_for(lambda: processes_with(str(tmp_path), "examples.home_security.generator"), "it to run")
        os.kill(generator, signal.SIGKILL)
        _, err = demo.process.communicate(timeout=90)
    assert demo.process.returncode == 2
    assert "The generator has ended by itself: it was ended by SIGKILL; see generator.log." in err
    assert f"kept, with the logs of all processes: {demo.place.folder}" in err
    assert demo.place.generator_log.exists()
    assert processes_in(tmp_path) == []


def test_what_cannot_be_understood_becomes_a_dead_letter_and_holds_nobody_up(tmp_path: Path) -> None:
    place = prepared(tmp_path)

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS), Event(b"rubbish", "home-1"), report(1, BEGIN_MS + MINUTE_MS)])
        for module in (aggregate, alerts):
            await module.make_processor(place, "one").serve(until="caught_up")

    asyncio.run(scenario())
    assert doors_reported(place) == 2
    found = asyncio.run(read_home(Folder(place.blobs), About(LAYOUT, 1, 10), 1))
    assert found is not None
    assert [alert.reports for alert in found.alerts] == [2]
    assert letters_in(place) == [1, 1]
    for group in GROUPS:
        books = Books(place.group(group))
        books.read()
        tally = books.tally({"0": 2})
        assert (tally.handled, tally.lost) == (3, 0), f"{group}: what is in the dead letters is not lost"


def test_what_is_behind_a_checkpoint_is_in_the_books_whenever_its_consumer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = prepared(tmp_path, write_s=0.0)
    late: list[Checkpoint] = []
    commit = SQLiteStore.commit

    async def looked_at(store: SQLiteStore, group: Group, records: Sequence[Checkpoint]) -> Sequence[Outcome]:
        accounts = Books(place.group("aggregate"))
        accounts.read()
        late.extend(record for record in records if (record.position.sequence or 0) > accounts.reached("0"))
        return await commit(store, group, records)

    monkeypatch.setattr(SQLiteStore, "commit", looked_at)

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS + minute * MINUTE_MS) for minute in range(20)])
        await aggregate.make_processor(place, "one").serve(until="caught_up")

    asyncio.run(scenario())
    assert doors_reported(place) == 20
    assert late == []


def test_a_recent_part_that_is_damaged_is_counted_again_and_poisons_nothing(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    blob = place.blobs / "recent" / "0"

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS), report(1, BEGIN_MS + MINUTE_MS)])
            await aggregate.make_processor(place, "one").serve(until="caught_up")
            blob.write_bytes(b"rubbish")
            await hub.send([report(1, BEGIN_MS + 2 * MINUTE_MS)])
            await aggregate.make_processor(place, "two").serve(until="caught_up")

    asyncio.run(scenario())
    assert doors_reported(place) == 3
    assert letters_in(place) == []


def test_a_recent_part_that_cannot_be_counted_again_stops_its_partition_until_somebody_lets_go(tmp_path: Path) -> None:
    place = prepared(tmp_path, retention_bytes=1)

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS)])
            await aggregate.make_processor(place, "one").serve(until="caught_up")
            (place.blobs / "recent" / "0").unlink()
            await hub.send([report(1, BEGIN_MS + MINUTE_MS)])
            hub.trim()
            with pytest.raises(PartitionHalted, match=r"recent/0 is damaged, removed or too old.*let_go FOLDER 0"):
                await aggregate.make_processor(place, "two").serve(until="caught_up")
            assert await let_go(place, "0") == 1
            with pytest.raises(Misconfigured, match=r"has events up to 0, and the hub those from 1 on"):
                await let_go(place, "0")
            store = SQLiteStore(place.leases)
            await resume(store, Group("local", "homes", "aggregate"), ["0"], Who(by="a test", why=""), system_clock())
            await store.aclose()
            await aggregate.make_processor(place, "three").serve(until="caught_up")

    asyncio.run(scenario())
    assert doors_reported(place) == 1
    assert letters_in(place) == []


def test_alerts_that_cannot_be_read_stop_their_partition_and_poison_nothing(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    blob = place.blobs / "alerts" / "0" / "0"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"rubbish")

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS)])
        with pytest.raises(PartitionHalted, match=r"alerts/0/0 is damaged.*Put a copy of it back, or remove it"):
            await alerts.make_processor(place, "one").serve(until="caught_up")

    asyncio.run(scenario())
    assert letters_in(place) == []
    assert blob.read_bytes() == b"rubbish"


def doors_reported(place: Place) -> int:
    found = asyncio.run(read_home(Folder(place.blobs), About(LAYOUT, 1, 10), 1))
    assert found is not None
    return sum(span.minutes * span.reports[1] for span in found.spans)


def letters_in(place: Place) -> list[int]:
    """How many, by file."""
    return [path.read_text().count("\n") for path in place.dead_letters.rglob("*.jsonl")]


def prepared(folder: Path, retention_bytes: int | None = None, write_s: float = 2.0) -> Place:
    place = Place(folder)
    Hub.create(place.hub, 1, retention_bytes=retention_bytes).close()
    pace = Pace(begin_ms=BEGIN_MS, begin_machine_ms=int(machine_ms()), speed=1.0)
    place.save(Scene(town=Town(homes=10), pace=pace, blobs=str(place.blobs), write_s=write_s))
    return place


def books(demo: Demo) -> Books:
    """What the consumers of `aggregate` have written down so far."""
    found = Books(demo.place.group("aggregate"))
    found.read()
    return found


def accounts_of(demo: Demo, partition: str) -> str:
    """What each consumer of `aggregate` has written down about it."""
    files = sorted(demo.place.group("aggregate").glob("*" + SUFFIX))
    return "\n".join(
        f"{path.stem}: {line}"
        for path in files
        for line in path.read_text().splitlines()
        if line.split()[1] == partition
    )


def sought(demo: Demo, partition: str) -> int:
    """How many events of `aggregate` came again because somebody wanted that."""
    found = books(demo)
    return found.tally({partition: found.reached(partition)}).sought


def seen(demo: Demo) -> HomeView:
    found = demo.home(7)
    assert found is not None
    return found


def doors_opened(home: HomeView) -> int:
    return sum(span.minutes * span.active[1] for span in home.spans)


def outcome(work: dict[str, Any]) -> str:
    """What was done, in words."""
    return str(work["outcome"])


def assert_nothing_is_left(folder: Path) -> None:
    assert processes_in(folder) == []
    assert list(folder.iterdir()) == []
