"""Events that only wait: what they wait for, what to do; they are not called lost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from evenflow.model import EVERYTHING, GroupState, Wish
from examples.home_security.accounts import HandledCounts
from examples.home_security.fleet import ConsumerProcess, ended_how
from examples.home_security.summary import Summary, summary_lines
from examples.home_security.truth import Verdict
from examples.home_security.waiting import Cause, Waiting, cause_of
from tests.unit.console.scenes import found, lease, member, record

RIGHT = Verdict(homes=10, expected=90, counted=90, lost=0, twice=0, wrong=0, alerts=1, alerts_wrong=0)
PAUSED = Cause(what="it is paused by ann", todo="resume it", is_wanted=True)
STOPPED = Cause(what="partition 3 stopped: Corrupt", todo="fix it", is_wanted=False)
STOPPED_NOTE = {"stopped": {"ordinal": 4, "position": {"offset": "4"}, "error": "PartitionHalted: The blob is bad."}}


class Process:
    def __init__(self, returncode: int | None) -> None:
        self.returncode = returncode


def consumer(returncode: int | None = None, asked: str | None = None) -> ConsumerProcess:
    made = ConsumerProcess("aggregate-1", Process(returncode), 0.0)  # type: ignore[arg-type]
    made.asked = asked  # type: ignore[assignment]
    return made


def cause(
    *partitions: str, pauses: dict[str, Wish] | None = None, consumers: list[ConsumerProcess] | None = None
) -> Cause | None:
    survey = found(members=[member(1)], leases=[lease("0", 1)], state=GroupState(pauses=pauses or {}))
    records = [record("0", 3), replace(record("1", 3), notes=STOPPED_NOTE)]
    return cause_of(partitions, survey.ledger, records, [consumer()] if consumers is None else consumers)


def test_events_that_an_instance_will_handle_have_no_cause() -> None:
    assert cause("0") is None
    assert cause("0", "1") is None, "as long as one of them goes on"
    assert cause("0", "1", pauses={"1": Wish("ann")}) is None


def test_a_pause_names_the_operator() -> None:
    whole = cause("0", "1", pauses={EVERYTHING: Wish("ann", "the disk")})
    assert whole == Cause(what="it is paused by ann: the disk", todo="resume it", is_wanted=True)
    some = cause("0", pauses={"0": Wish("ann")})
    assert some == Cause(what="partition 0 paused by ann", todo="resume it", is_wanted=True)


def test_a_stopped_partition_was_not_requested() -> None:
    stopped = cause("0", "1", pauses={"0": Wish("ann")})
    assert stopped is not None
    assert not stopped.is_wanted
    assert "partition 1 stopped: PartitionHalted: The blob is bad" in stopped.what


@pytest.mark.parametrize(
    ("consumers", "is_wanted"),
    [
        ([consumer(-9, "kill"), consumer(0)], True),
        ([consumer(-9, "kill"), consumer(-11)], False),
    ],
)
def test_no_instance_is_running(consumers: list[ConsumerProcess], is_wanted: bool) -> None:
    found = cause("0", consumers=consumers)
    assert found == Cause(what="no instance of this group is running", todo="add an instance", is_wanted=is_wanted)


def summary(waiting: Waiting) -> Summary:
    return Summary(
        sent=100,
        verdict=RIGHT,
        tallies={"aggregate": HandledCounts(handled=90)},
        moves={"aggregate": {}},
        delays_s={"aggregate": (0.0, 0.0)},
        waiting={"aggregate": waiting},
    )


@pytest.mark.parametrize(
    ("because", "is_fine", "message"),
    [
        (PAUSED, True, "it is paused by ann"),
        (STOPPED, False, "partition 3 stopped"),
        (None, False, "no instance handled them in time"),
    ],
)
def test_a_summary_says_waiting_and_not_lost(because: Cause | None, is_fine: bool, message: str) -> None:
    found = summary(Waiting(partitions={"3": 7, "4": 3}, cause=because))
    lines = summary_lines(found)
    assert found.is_fine == is_fine
    assert [line.split()[1] for line in lines if line.strip().startswith("lost")] == ["0", "0"]
    (line,) = [line for line in lines if "waiting" in line]
    assert line.split()[1] == "10"
    assert message in line


def test_a_summary_without_any_says_nothing_of_it() -> None:
    assert not any("waiting" in line for line in summary_lines(summary(Waiting())))
    assert summary(Waiting()).is_fine


@pytest.mark.parametrize(
    ("returncode", "message"),
    [
        (-9, "it was ended by SIGKILL"),
        (-11, "it was ended by SIGSEGV"),
        (1, "it ended with code 1"),
        (-99, "it was ended by signal 99"),
    ],
)
def test_a_process_that_died_is_reported_with_the_name_of_the_signal(returncode: int, message: str) -> None:
    assert ended_how(returncode) == message
