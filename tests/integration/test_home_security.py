"""The flagship example with real processes: killed, added, stalled, ended; and the blobs are right to the last one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from examples.home_security.accounts import SUFFIX, Books
from examples.home_security.inject import inject
from tests.integration.home_security import DEMO, ROOT, figure, processes_in, started_demo
from tests.integration.programs import processes_with, slowness, started, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from examples.home_security.reading import HomeView
    from tests.integration.home_security import Demo

# A fleet of processes takes its time to start on a busy machine.
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.slow
def test_one_is_added_and_one_is_killed_and_every_minute_of_every_home_is_right(tmp_path: Path) -> None:
    """The homes' time goes fast, so that minutes become final and move into days while partitions move."""
    seconds = 15
    arguments = ("--homes", "300", "--speed", "60", "--begin", "17:00", "--seconds", str(seconds))
    with started_demo(tmp_path, *arguments, program=DEMO) as demo:
        out, err = demo.process.communicate(timeout=240)
    assert demo.process.returncode == 0, out + err
    assert "aggregate-4 was started" in out
    assert "aggregate-1 was killed (SIGKILL)" in out
    assert "Break-in at home" in out
    assert "carbon-monoxide" in out
    sent = figure(out, "events sent")
    assert figure(out, "injected") == 2
    assert figure(out, "aggregated") == sent + 2 > 8_000
    assert figure(out, "alerts") > 0
    assert [figure(out, name) for name in ("lost", "counted twice", "handled twice")] == [0, 0, 0]
    assert "0 of them missing or too many" in out
    # The killed consumer had at most a third of the stream. Its last checkpoint was up to two seconds old, and a little
    # older on a busy machine.
    assert figure(out, "handled again") <= sent / seconds * 2 / 3 * slowness()
    assert re.search(r"^  moves +\d+ .*handed over.* taken over$", out, re.MULTILINE)
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_an_operator_acts_residents_see_it_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "200", "--speed", "4", "--keep") as demo:
        wait_for(lambda: demo.home(7), "home 7 to report")
        asyncio.run(inject(demo.place, 7, [("door", "open")], "away"))
        wait_for(lambda: [one.kind for one in seen(demo).alerts] == ["break-in"], "an alert")
        wait_for(lambda: doors_opened(seen(demo)) > 0, "the door in its minute")
        assert outcome(demo.act("add")) == "aggregate-4 was started. It gets its share within a few heartbeats."
        assert "alerts-1 is stalled" in outcome(demo.act("stall", "alerts", subject="alerts-1"))
        assert "alerts-2 was killed" in outcome(demo.act("kill", "alerts", subject="alerts-2"))
        assert "is no longer running" in outcome(demo.act("kill", subject="aggregate-99"))
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


def blobs_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_blobs_that_were_moved_are_written_again_and_events_of_a_paused_group_are_reported(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--homes", "50", "--speed", "10", "--consumers", "1") as demo:
        wait_for(lambda: demo.home(7), "home 7 to report")
        # Owners know what they wrote. (What is not added to comes back later: no summary is asked for.)
        demo.place.blobs.rename(tmp_path / "moved")
        days = blobs_in(tmp_path / "moved" / "days")
        wait_for(lambda: (demo.place.blobs / "about").exists() and demo.home(7), "the blobs to be there again")
        # Those that are still missing when the group is paused would be reported as damaged.
        wait_for(lambda: days <= blobs_in(demo.place.blobs / "days"), "the days of all homes to be there again")
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
