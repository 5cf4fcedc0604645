"""What an instance measures of its partitions, what it publishes, and that it publishes seldom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from evenflow import Misconfigured, Processor
from evenflow.core.view import View
from evenflow.model import Cursor, GroupState, Lease, Member, Owner
from evenflow.runtime.hold import Hold
from evenflow.runtime.load import LATER_HEARTBEATS, Average, LoadMeter

if TYPE_CHECKING:
    from collections.abc import Mapping

OVER_S = 30.0
HEARTBEAT_S = 2.0


def member(name: str, load: dict[str, float] | None = None) -> Member:
    return Member(id=name, nonce=name, incarnation=1, ttl_s=8.0, load={} if load is None else load)


def view(members: list[Member], owners: Mapping[str, str]) -> View:
    leases = {name: Lease(partition=name, owner=Owner(owner, 1), revision=1) for name, owner in owners.items()}
    return View(Cursor("l", 0, 1), {one.id: one for one in members}, leases, GroupState())


class Instance:
    """A meter, and what happens around it once a heartbeat."""

    def __init__(self, name: str = "ada") -> None:
        self.me = member(name)
        self.meter = LoadMeter(OVER_S)
        self.holds: dict[str, Hold] = {}
        self.now_s = 100.0
        self.published = 0

    async def hold(self, *partitions: str) -> None:
        self.holds |= {name: Hold(name, 1, 1e9) for name in partitions}
        for name in partitions:
            self.holds[name].caught_up = True

    def heartbeat(self, shares: Mapping[str, float], times: int = 1) -> None:
        for _ in range(times):
            self.now_s += HEARTBEAT_S
            for name, share in shares.items():
                self.holds[name].busy_s += share * HEARTBEAT_S
            self.meter.measure(self.holds, self.now_s)
            news = self.meter.news(self.me)
            if news is not None:
                self.me = replace(self.me, load=news)
                self.published += 1
            self.meter.take_in(self.me, view([self.me], dict.fromkeys(self.holds, self.me.id)))


async def test_nothing_is_published_until_enough_was_seen_and_then_it_is_right() -> None:
    one = Instance()
    await one.hold("0", "1")
    one.heartbeat({"0": 0.5, "1": 0.1}, times=5)
    assert one.me.load == {}
    one.heartbeat({"0": 0.5, "1": 0.1}, times=10)
    assert one.me.load == {"0": 0.5, "1": 0.1}


async def test_an_even_load_is_published_once() -> None:
    one = Instance()
    await one.hold("0", "1")
    one.heartbeat({"0": 0.5, "1": 0.1}, times=200)
    assert one.published == 1


async def test_small_changes_wait_and_large_ones_do_not() -> None:
    one = Instance()
    await one.hold("0", "1")
    one.heartbeat({"0": 0.5, "1": 0.1}, times=40)
    one.heartbeat({"0": 0.52, "1": 0.1}, times=LATER_HEARTBEATS)
    assert one.published <= 2
    one.heartbeat({"0": 0.9, "1": 0.1}, times=8)
    assert one.me.load is not None
    assert one.me.load["0"] > 0.6


async def test_it_follows_a_change_over_the_time_constant() -> None:
    hold = await holding()
    hold.caught_up = True
    average = Average(hold, 0.0, before=0.0)
    average.look(0.0, OVER_S)
    for now_s in range(1, 31):
        hold.busy_s += 1.0
        average.look(float(now_s), OVER_S)
    assert average.value == pytest.approx(1 - 2.718281828**-1, rel=0.01)


async def test_a_long_call_counts_as_busy_all_the_time_and_never_as_more() -> None:
    hold = await holding()
    average = Average(hold, 0.0, before=0.5)
    for second in range(1, 400):
        if second % 20 == 0:
            hold.busy_s += 20.0
        average.look(float(second), OVER_S)
        assert average.value is not None
        assert average.value <= 1.0
    assert average.value == pytest.approx(1.0, abs=0.01)


async def test_what_comes_from_another_goes_on_from_what_that_one_published() -> None:
    one = Instance("bo")
    one.meter.take_in(one.me, view([one.me, member("ada", {"7": 0.4})], {"7": "bo"}))
    one.meter.take_in(one.me, view([one.me], {"7": "bo"}))  # ada has left
    await one.hold("7")
    one.heartbeat({"7": 0.4})
    assert one.me.load == {"7": 0.4}


async def test_what_was_passed_on_is_told_until_the_new_owner_tells_it() -> None:
    one = Instance()
    await one.hold("0", "1")
    one.heartbeat({"0": 0.5, "1": 0.1}, times=40)
    gone = one.holds.pop("0")
    assert gone.partition == "0"
    others = {"0": "bo", "1": "ada"}
    one.meter.take_in(one.me, view([one.me, member("bo")], others))
    one.meter.measure(one.holds, one.now_s)
    assert one.meter.news(one.me) is None
    one.meter.take_in(one.me, view([one.me, member("bo", {"0": 0.6})], others))
    assert one.meter.known["0"] == 0.6
    assert one.meter.news(one.me) == {"1": 0.1}


async def test_catching_up_after_a_move_is_not_the_load() -> None:
    hold = await holding()
    average = Average(hold, 0.0, before=0.2)
    for second in range(1, 11):
        hold.busy_s += 1.0
        average.look(float(second), OVER_S)
    assert average.value == 0.2
    hold.caught_up = True
    average.look(11.0, OVER_S)
    for second in range(12, 120):
        hold.busy_s += 0.3
        average.look(float(second), OVER_S)
    assert average.value == pytest.approx(0.3, abs=0.01)


async def test_who_never_catches_up_is_measured_after_the_time_constant() -> None:
    hold = await holding()
    average = Average(hold, 0.0, before=0.2)
    for second in range(1, 150):
        hold.busy_s += 1.0
        average.look(float(second), OVER_S)
    assert average.value is not None
    assert average.value > 0.9


async def holding() -> Hold:
    return Hold("0", 1, 1e9)


@pytest.mark.parametrize("wrong", [{"balance": "weight"}, {"balance": None}, {"load_s": 0}, {"load_s": float("nan")}])
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        Processor("hub:x", "memory:", "g", **wrong)  # type: ignore[arg-type]
