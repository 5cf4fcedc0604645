"""Checkpoints are written in as few calls as possible, again after a failure, and never after a refusal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, LeaseLost, Manual, StoreUnavailable
from evenflow.core.pacing import FIRST
from evenflow.model import Checkpoint, Outcome
from evenflow.runtime.committer import Committer
from evenflow.runtime.hold import Hold
from evenflow.signals import Committed, Trouble
from evenflow.stores.memory import MemoryStore
from tests.unit.runtime.stage import Stage, at, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Group

NEVER = 10**9


class Line(MemoryStore):
    """A store that answers commits late, not at all, or with an error, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(wall=lambda: 0.0)
        self.asked: list[dict[str, int]] = []
        self.troubles: list[Exception | None] = []
        """One for each call to come: what it raises; None for a call that is never answered."""
        self.refused: set[str] = set()
        self.takes_s = 0.0

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        self.asked.append({wish.partition: wish.ordinal for wish in checkpoints})
        if self.troubles:
            if (trouble := self.troubles.pop(0)) is None:
                await asyncio.get_running_loop().create_future()
            else:
                raise trouble
        await asyncio.sleep(self.takes_s)
        return [Outcome(partition=wish.partition, ok=wish.partition not in self.refused) for wish in checkpoints]


class Desk:
    """A committer at work, with some holds."""

    def __init__(self, stage: Stage, policy: Every | Manual, holds: int = 2) -> None:
        self.line = Line()
        self.stage = stage
        self.holds = [sealed(str(number)) for number in range(holds)]
        self.lost: list[Hold] = []
        self.committer = Committer(
            stage.parts(self.line, checkpoint=policy, ttl_s=8.0, margin_s=1.0), lambda: self.holds, self.lose
        )
        self.task = asyncio.create_task(self.committer.run())

    def lose(self, hold: Hold) -> None:
        hold.over = True
        self.lost.append(hold)

    @property
    def asked(self) -> list[dict[str, int]]:
        return self.line.asked


def sealed(partition: str, ordinal: int = 0) -> Hold:
    hold = Hold(partition, 3, 1e9)
    hold.begin(Checkpoint(partition=partition, epoch=3, position=at(ordinal - 1), ordinal=ordinal), 0.0)
    return hold


def handle(hold: Hold, count: int) -> None:
    done = hold.done[0] + count
    hold.done = (done, at(done - 1))


# --- when
async def test_after_so_many_seconds_all_that_moved_is_written_in_one_call(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=2.0), holds=3)
    handle(desk.holds[0], 5)
    handle(desk.holds[2], 7)
    await asyncio.sleep(1.99)
    assert desk.asked == []
    await asyncio.sleep(0.02)
    assert desk.asked == [{"0": 5, "2": 7}]
    assert [hold.committed for hold in desk.holds] == [5, 0, 7]
    handle(desk.holds[1], 1)
    await asyncio.sleep(2.0)
    assert desk.asked[1:] == [{"1": 1}]


async def test_when_nothing_moved_the_store_is_left_alone(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=1.0))
    await asyncio.sleep(10.0)
    assert desk.asked == []


async def test_after_so_many_events_it_is_written_at_once(stage: Stage) -> None:
    desk = Desk(stage, Every(events=3))
    handle(desk.holds[0], 2)
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(100.0)
    assert desk.asked == []
    handle(desk.holds[0], 1)
    handle(desk.holds[1], 2)
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    assert desk.asked == [{"0": 3}], "the other has not enough"
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(100.0)
    assert desk.asked == [{"0": 3}], "counted from the last checkpoint on"


async def test_events_and_seconds_whichever_comes_first(stage: Stage) -> None:
    desk = Desk(stage, Every(events=3, seconds=2.0))
    handle(desk.holds[0], 3)
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(0.001)
    assert desk.asked == [{"0": 3}]
    handle(desk.holds[1], 1)
    await asyncio.sleep(2.0)
    assert desk.asked == [{"0": 3}, {"1": 1}]


async def test_a_partition_that_always_asks_keeps_no_other_from_its_turn(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1, seconds=2.0))
    desk.line.takes_s = 0.5
    handle(desk.holds[1], 1)
    while stage.now_s < 3.0:
        handle(desk.holds[0], 1)
        desk.committer.look(desk.holds[0])
        await asyncio.sleep(0.1)
    assert desk.holds[1].committed == 1


async def test_where_only_seconds_count_no_number_of_events_asks(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=0.5))
    handle(desk.holds[0], NEVER)
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(0.4)
    assert desk.asked == []


async def test_by_hand_nothing_is_written_by_itself(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    handle(desk.holds[0], NEVER)
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(1000.0)
    assert desk.asked == []


async def test_those_who_ask_at_the_same_time_share_a_call(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1), holds=5)
    for hold in desk.holds:
        handle(hold, 2)
        desk.committer.look(hold)
    await asyncio.sleep(0.1)
    assert desk.asked == [{str(number): 2 for number in range(5)}]
    assert [one.partitions for one in stage.told(Committed)] == [5]


async def test_those_who_ask_while_a_call_is_on_its_way_share_the_next(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1), holds=3)
    desk.line.takes_s = 1.0
    for hold in desk.holds:
        handle(hold, 1)
        desk.committer.look(hold)
        await asyncio.sleep(0.1)
    handle(desk.holds[1], 1)
    desk.committer.look(desk.holds[1])
    await asyncio.sleep(5.0)
    assert desk.asked == [{"0": 1}, {"1": 2, "2": 1}]


# --- when it fails
@pytest.mark.parametrize("policy", [Every(seconds=1.0), Every(events=3), Every(events=3, seconds=60.0)])
@pytest.mark.parametrize("trouble", [StoreUnavailable("away"), None])
async def test_what_could_not_be_written_is_tried_again(stage: Stage, policy: Every, trouble: Exception | None) -> None:
    desk = Desk(stage, policy)
    desk.line.troubles = [trouble, trouble]
    handle(desk.holds[0], 3)
    desk.committer.look(desk.holds[0])
    await asyncio.sleep(15.0)
    assert desk.asked == [{"0": 3}] * 3
    assert desk.holds[0].committed == 3
    assert [(told.where, told.attempt) for told in stage.told(Trouble)] == [("commit", 1), ("commit", 2)]


async def test_what_was_refused_twice_waits_behind_the_others(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1), holds=FIRST + 2)
    desk.line.troubles = [StoreUnavailable("one of them is too large"), StoreUnavailable("one of them is too large")]
    for some in (desk.holds[:FIRST], desk.holds[FIRST:]):
        for hold in some:
            handle(hold, 1)
            desk.committer.look(hold)
        await asyncio.sleep(0.001)
    await asyncio.sleep(10.0)
    first, others = [str(number) for number in range(FIRST)], [str(FIRST), str(FIRST + 1)]
    assert [list(asked) for asked in desk.asked] == [first, first, others + first[:-2], first[-2:]]


async def test_what_was_not_answered_once_keeps_its_turn(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1), holds=FIRST + 2)
    desk.line.troubles = [None]
    for some in (desk.holds[:FIRST], desk.holds[FIRST:]):
        for hold in some:
            handle(hold, 1)
            desk.committer.look(hold)
        await asyncio.sleep(0.001)
    await asyncio.sleep(10.0)
    assert [list(asked)[:1] for asked in desk.asked] == [["0"], ["0"], ["32"]]


async def test_a_call_that_is_never_answered_is_given_up(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=1.0))
    desk.line.troubles = [None]
    handle(desk.holds[0], 3)
    await asyncio.sleep(1.0 + 3.4)
    assert stage.told(Trouble) == []
    await asyncio.sleep(0.2)
    assert [type(told.error) for told in stage.told(Trouble)] == [StoreUnavailable], "after half of its patience"


async def test_tries_are_not_made_one_right_after_the_other(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    desk.line.troubles = [StoreUnavailable("away")] * 1000
    handle(desk.holds[0], 1)
    marking = asyncio.create_task(desk.committer.mark(desk.holds[0], desk.holds[0].done))
    await asyncio.sleep(60.0)
    assert 30 < len(desk.asked) < 200
    marking.cancel()


async def test_after_a_success_failures_count_anew(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1))
    for _ in range(2):
        desk.line.troubles = [StoreUnavailable("away")]
        handle(desk.holds[0], 1)
        desk.committer.look(desk.holds[0])
        await asyncio.sleep(10.0)
    assert [told.attempt for told in stage.told(Trouble)] == [1, 1]


async def test_another_error_ends_the_committer(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=1.0))
    desk.line.troubles = [ValueError("our own mistake")]
    handle(desk.holds[0], 1)
    with pytest.raises(ValueError, match="our own mistake"):
        await desk.task


async def test_a_refusal_is_a_loss_and_not_tried_again(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=1.0))
    desk.line.refused = {"0"}
    for hold in desk.holds:
        handle(hold, 2)
    await asyncio.sleep(1.5)
    assert desk.lost == [desk.holds[0]]
    assert [hold.committed for hold in desk.holds] == [0, 2]
    assert stage.told(Trouble) == []


async def test_what_is_over_is_not_lost_again(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=1.0))
    desk.line.refused = {"0"}
    handle(desk.holds[0], 2)
    desk.holds[0].over = True
    await desk.committer.last_try(desk.holds[0])
    assert desk.asked == [{"0": 2}]
    assert desk.lost == []


# --- by hand
async def test_a_mark_returns_when_it_is_written(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    hold = desk.holds[0]
    desk.line.takes_s = 1.0
    await desk.committer.mark(hold, (4, at(3)))
    assert desk.asked == [{"0": 4}]
    assert hold.committed == 4
    assert stage.now_s == pytest.approx(1.0)


async def test_a_mark_during_a_call_waits_for_the_next(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    hold = desk.holds[0]
    desk.line.takes_s = 1.0
    first = asyncio.create_task(desk.committer.mark(hold, (4, at(3))))
    await asyncio.sleep(0.5)
    await desk.committer.mark(hold, (6, at(5)))
    assert first.done()
    assert desk.asked == [{"0": 4}, {"0": 6}]


async def test_a_mark_that_was_overtaken_is_written_already(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    hold = desk.holds[0]
    await desk.committer.mark(hold, (6, at(5)))
    await desk.committer.mark(hold, (4, at(3)))
    assert desk.asked == [{"0": 6}]
    assert hold.marked == (6, at(5))


async def test_a_mark_is_tried_until_it_is_written(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    desk.line.troubles = [StoreUnavailable("away"), None, StoreUnavailable("away")]
    await desk.committer.mark(desk.holds[0], (4, at(3)))
    assert desk.asked == [{"0": 4}] * 4


async def test_a_mark_of_a_partition_that_is_lost_is_an_error(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    desk.line.refused = {"0"}
    with pytest.raises(LeaseLost, match="partition 0: somebody else owns it; this checkpoint was not written"):
        await desk.committer.mark(desk.holds[0], (4, at(3)))
    assert desk.lost == [desk.holds[0]]


async def test_a_cancelled_mark_disturbs_nobody_else(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    desk.line.takes_s = 1.0
    marking = [asyncio.create_task(desk.committer.mark(hold, (4, at(3)))) for hold in desk.holds]
    await asyncio.sleep(0.5)
    marking[0].cancel()
    await marking[1]
    assert desk.holds[1].committed == 4


# --- before a stop
@pytest.mark.parametrize("policy", [Every(seconds=100.0), Every(events=NEVER), Manual()])
async def test_settled_is_all_that_may_be_written(stage: Stage, policy: Every | Manual) -> None:
    desk = Desk(stage, policy)
    hold = desk.holds[0]
    handle(hold, 5)
    hold.marked = (4, at(3))
    desk.line.troubles = [StoreUnavailable("away")]
    assert await desk.committer.settle(hold)
    assert hold.committed == (4 if policy == Manual() else 5)
    asked = len(desk.asked)
    assert await desk.committer.settle(hold)
    assert len(desk.asked) == asked, "there is nothing more to write"


async def test_nothing_marked_is_nothing_to_settle(stage: Stage) -> None:
    desk = Desk(stage, Manual())
    handle(desk.holds[0], 5)
    assert await desk.committer.settle(desk.holds[0])
    assert desk.asked == []


async def test_what_was_lost_before_it_was_written_is_not_settled(stage: Stage) -> None:
    desk = Desk(stage, Every(seconds=100.0))
    desk.line.refused = {"0"}
    handle(desk.holds[0], 5)
    assert not await desk.committer.settle(desk.holds[0])
    assert desk.lost == [desk.holds[0]]


async def test_a_last_try_is_one_try(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1))
    hold = desk.holds[0]
    desk.line.troubles = [StoreUnavailable("away")]
    handle(hold, 5)
    hold.over = True
    await desk.committer.last_try(hold)
    await asyncio.sleep(100.0)
    assert desk.asked == [{"0": 5}]


async def test_a_last_try_during_a_call_is_made_after_it(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1))
    desk.line.takes_s = 1.0
    handle(desk.holds[1], 1)
    desk.committer.look(desk.holds[1])
    await asyncio.sleep(0.5)
    handle(desk.holds[0], 5)
    desk.holds[0].over = True
    await desk.committer.last_try(desk.holds[0])
    assert desk.asked == [{"1": 1}, {"0": 5}]
    assert desk.holds[0].committed == 5


async def test_an_answer_about_the_past_takes_nothing_back(stage: Stage) -> None:
    desk = Desk(stage, Every(events=1))
    hold: Any = desk.holds[0]
    desk.line.takes_s = 1.0
    handle(hold, 2)
    desk.committer.look(hold)
    await asyncio.sleep(0.5)
    hold.committed = 9
    await until(lambda: stage.told(Committed))
    assert hold.committed == 9
