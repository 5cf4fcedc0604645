"""Requesting that dead letters are handled again: which, from whom, how fast, and what is reported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.core.filed import Filed, fold
from evenflow.errors import DeadLettersUnavailable
from evenflow.model import (
    Action,
    Change,
    Cursor,
    DeadLetter,
    Event,
    Group,
    GroupState,
    Lease,
    Ledger,
    Member,
    Owner,
    Steering,
    Verdict,
    Wish,
)
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.operate.dead_letters.redrive import (
    PATIENCE_S,
    STEPS_MOST,
    UNOWNED_S,
    DeadLetterFilter,
    OwnerLiveness,
    Redrive,
    RedriveProgress,
    Requester,
    drop,
    in_steps,
    matching,
    overtaking,
    progress_of,
    read_filed,
)
from evenflow.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.model import DeadLetterRecord, PartitionId

GROUP = Group("local", "homes", "alerts")
ANNA = Requester("anna@laptop", "fixed")
TTL_S, HEARTBEAT_S = 8.0, 2.0


def dead_letter(number: int, partition: str = "0", key: str | None = None, **more: Any) -> DeadLetter:
    facts: dict[str, Any] = {"reason": "poison", "error": "ValueError: no", **more}
    return DeadLetter(partition=partition, event=Event(b"", key, sequence=number), **facts)


def filed(number: int = 0, partition: str = "0", **more: Any) -> Filed:
    return Filed(dead_letter=dead_letter(number, partition, **more))


def ids(found: list[Filed]) -> list[str]:
    return [one.dead_letter.id for one in found]


class FastClock:
    """Sleeping is what makes time pass; between two sleeps, an owner may work."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.work: Any = None

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.work is not None:
            await self.work()

    def nonce(self) -> str:
        return "nonce"

    def chance(self) -> float:
        return 0.5


class Scene:
    """A target with dead letters, a store with a group, and an owner of its partitions."""

    def __init__(self, *records: DeadLetterRecord) -> None:
        self.dead_letters = MemoryDeadLetters()
        self.records = records
        self.store = MemoryStore(wall=lambda: 0.0)
        self.clock = FastClock()
        self.handled: list[str] = []
        self.reports: list[RedriveProgress] = []
        self.failing: set[str] = set()

    async def begin(self, *owned: PartitionId) -> None:
        for record in self.records:
            partition = record.partition if isinstance(record, DeadLetter) else record.dead_letter.partition("@")[0]
            await self.dead_letters.file(GROUP, partition, [record])
        member = Member(id="one", nonce="n", ttl_s=TTL_S, heartbeat_s=HEARTBEAT_S)
        me = (await self.store.heartbeat(GROUP, member, None)).me
        assert me is not None
        self.me = me
        claims = [Change(partition=name, revision=0, history=0, owner=me.owner, epoch=1, ttl_s=TTL_S) for name in owned]
        assert all(outcome.ok for outcome in await self.store.swap(GROUP, claims))

    async def own(self) -> None:
        """What an owner does: a heartbeat, and all that its ledger asks for."""
        ledger = await self.store.heartbeat(GROUP, self.me, None)
        for lease in ledger.leases:
            if ledger.state.redrives.get(lease.partition, 0):
                filed = await read_filed(self.dead_letters, GROUP, lease.partition)
                for one in [one for one in filed if one.state == "again"]:
                    self.handled.append(one.dead_letter.id)
                    error = "again no" if one.dead_letter.id in self.failing else None
                    answer = one.answered(error, by="one", at=0.0)
                    await self.dead_letters.file(GROUP, lease.partition, [answer])

    def redrive(self) -> Redrive:
        return Redrive(self.dead_letters, self.store, GROUP, self.clock, ANNA)

    async def run(self, **options: Any) -> RedriveProgress:
        meant = await read_filed(self.dead_letters, GROUP)
        return await self.redrive().run(meant, report=self.reports.append, **options)

    async def asked(self) -> list[tuple[str, int]]:
        records = self.dead_letters.records(GROUP)
        return [(one.dead_letter, one.number) for one in records if isinstance(one, Verdict) and one.kind == "again"]

    async def redrives(self) -> dict[PartitionId, int]:
        ledger = await self.store.peek(GROUP)
        assert ledger is not None
        return ledger.state.redrives


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (DeadLetterFilter(), ["0@0", "0@1", "1@0"]),
        (DeadLetterFilter(partitions=frozenset("0")), ["0@0", "0@1"]),
        (DeadLetterFilter(keys=frozenset("a")), ["0@0", "1@0"]),
        (DeadLetterFilter(error="TIMEOUT"), ["0@1"]),
        (DeadLetterFilter(ids=frozenset(["1@0", "7@7"])), ["1@0"]),
        (DeadLetterFilter(states=frozenset(["again"])), []),
        (DeadLetterFilter(partitions=frozenset("0"), keys=frozenset("a")), ["0@0"]),
    ],
)
def test_dead_letters_are_chosen_by_all_that_is_said(choice: DeadLetterFilter, expected: list[str]) -> None:
    found = [filed(0, key="a"), filed(1, key="b", error="Timeout: slow"), filed(0, "1", key="a")]
    assert ids(matching(found, choice)) == expected


def test_dead_letters_parked_behind_another_are_reported() -> None:
    found = [filed(0, key="a"), filed(1, key="a", reason="parked"), filed(2, key="b", reason="parked")]
    assert ids(overtaking(found, found)) == []
    assert ids(overtaking(found, found[1:])) == ["0@1"]


@pytest.mark.parametrize(
    ("count", "rate", "sizes", "step_s"),
    [
        (7, None, [7], 0.0),
        (0, 5.0, [0], 0.0),
        (7, 3.0, [3, 3, 1], 1.0),
        (3, 0.5, [1, 1, 1], 2.0),
        (2, 1.5, [1, 1], 1 / 1.5),
        (1_000, 1.0, [20] * STEPS_MOST, 20.0),
    ],
)
def test_a_rate_divides_it_into_steps(count: int, rate: float | None, sizes: list[int], step_s: float) -> None:
    steps, every_s = in_steps([filed(number) for number in range(count)], rate)
    assert [len(step) for step in steps] == sizes
    assert every_s == pytest.approx(step_s)


def test_a_tally_counts_answers_to_what_was_asked() -> None:
    again = Verdict(dead_letter="0@0", kind="again", number=1)
    failed = Verdict(dead_letter="0@0", kind="failed", number=1)
    assert progress_of({"0@0": 1}, fold([dead_letter(0)])).waiting == ("0@0",)
    assert progress_of({"0@0": 1}, fold([dead_letter(0), again])).waiting == ("0@0",)
    assert progress_of({"0@0": 1}, fold([dead_letter(0), again, failed])).failed == ("0@0",)
    assert progress_of({"0@0": 2}, fold([dead_letter(0), again, failed])).waiting == ("0@0",), (
        "an answer to an earlier try"
    )
    assert progress_of(
        {"0@0": 1}, fold([dead_letter(0), again, Verdict(dead_letter="0@0", kind="dropped")])
    ).dropped == ("0@0",)


def ledger(owner: Owner | None, *members: Member, state: GroupState | None = None) -> Ledger:
    lease = Lease(partition="0", owner=owner, epoch=1)
    return Ledger(
        cursor=Cursor("l", 0, 1), me=None, whole=True, leases=(lease,), members=members, state=state or GroupState()
    )


def member(mark: int) -> Member:
    return Member(id="one", nonce="n", incarnation=1, mark=mark, ttl_s=TTL_S, heartbeat_s=HEARTBEAT_S)


ONE = Owner("one", 1)


def test_a_group_without_instances_is_reported_at_once() -> None:
    attendance = OwnerLiveness()
    assert attendance.missing(None, ["0"], 0.0) == {"0": "no instance is running"}
    assert attendance.missing(ledger(ONE), ["0"], 0.0) == {"0": "no instance is running"}
    paused = GroupState(pauses={"0": Wish("bea")})
    assert attendance.missing(ledger(None, member(1), state=paused), ["0"], 0.0) == {"0": "it is paused by bea"}


def test_an_owner_is_there_while_its_mark_moves() -> None:
    attendance = OwnerLiveness()
    for second in range(100):
        assert attendance.missing(ledger(ONE, member(second)), ["0"], float(second)) == {}
    silent_s = 2 * TTL_S + HEARTBEAT_S
    assert attendance.missing(ledger(ONE, member(99)), ["0"], 98.9 + silent_s) == {}
    found = attendance.missing(ledger(ONE, member(99)), ["0"], 99.1 + silent_s)
    assert found == {"0": "its owner one sends no heartbeats"}
    assert attendance.missing(ledger(ONE, member(100)), ["0"], 200.0) == {}


def test_a_partition_may_have_no_owner_for_a_while() -> None:
    attendance = OwnerLiveness()
    assert attendance.missing(ledger(None, member(1)), ["0"], 0.0) == {}
    assert attendance.missing(ledger(None, member(1)), ["0"], UNOWNED_S - 0.1) == {}
    assert attendance.missing(ledger(None, member(1)), ["0"], UNOWNED_S) == {"0": "it has no owner"}
    assert attendance.missing(ledger(None, member(1)), ["1"], UNOWNED_S) == {}


def test_all_are_asked_for_in_order_and_their_answers_counted() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0), dead_letter(0, "1"), dead_letter(1))
        scene.failing = {"0@1"}
        await scene.begin("0", "1")
        scene.clock.work = scene.own
        done = await scene.run()
        assert (done.redriven, done.failed, done.waiting) == (("0@0", "1@0"), ("0@1",), ())
        assert sorted(scene.handled) == ["0@0", "0@1", "1@0"]
        assert await scene.redrives() == {"0": 1, "1": 1}
        (action,) = await scene.store.actions(GROUP)
        assert (action.kind, action.by, action.why) == ("redrive", *ANNA)
        assert action.what == "requested 3 dead letters of partitions 0, 1 to be handled again"
        assert scene.reports[-1] == done
        asked = [one for one in scene.dead_letters.records(GROUP) if isinstance(one, Verdict) and one.kind == "again"]
        assert {(one.by, one.why) for one in asked} == {ANNA}

    asyncio.run(main())


def test_run_again_it_asks_nothing_twice() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0), dead_letter(1), dead_letter(2), dead_letter(3))
        again = Verdict(dead_letter="0@1", kind="again", number=1)
        done = [Verdict(dead_letter="0@2", kind=kind, number=1) for kind in ("again", "redriven")]
        scene.records += (again, *done, Verdict(dead_letter="0@3", kind="dropped"))
        await scene.begin("0")
        scene.clock.work = scene.own
        found = await scene.run()
        assert await scene.asked() == [("0@1", 1), ("0@2", 1), ("0@0", 1)]
        assert scene.handled == ["0@0", "0@1"], "in the order of the dead letters"
        assert found.redriven == ("0@1", "0@0")

    asyncio.run(main())


def test_who_was_interrupted_before_the_call_is_called_for_the_next_time() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0), Verdict(dead_letter="0@0", kind="again", number=1))
        await scene.begin("0")
        scene.clock.work = scene.own
        assert (await scene.run()).redriven == ("0@0",)
        assert await scene.redrives() == {"0": 1}
        assert (await scene.run()).total == 0
        assert await scene.redrives() == {"0": 1}, "there was nothing left to call for"

    asyncio.run(main())


def test_a_rate_is_kept_and_answers_are_seen_meanwhile() -> None:
    async def main() -> None:
        scene = Scene(*[dead_letter(number) for number in range(10)])
        await scene.begin("0")
        scene.clock.work = scene.own
        begun_s = scene.clock.now_s
        done = await scene.run(rate=2.0)
        assert len(done.redriven) == 10
        assert 4.0 <= scene.clock.now_s - begun_s < 6.0
        assert await scene.redrives() == {"0": 5}
        assert [one.total for one in scene.reports][:5] == [2, 4, 6, 8, 10]
        assert scene.reports[3].answered == 6, "what was asked for in earlier steps is answered by then"

    asyncio.run(main())


def test_without_live_owners_it_says_so_and_ends() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0), dead_letter(0, "1"))
        await scene.begin("0", "1")
        await scene.store.steer(GROUP, Steering(pause=("1",)), Action(kind="pause", by="bea", why="", what=""))
        scene.clock.work = None
        done = await scene.run()
        assert done.waiting == ("0@0", "1@0")
        assert done.unattended == {"0": "its owner one sends no heartbeats", "1": "it is paused by bea"}
        assert done.quiet_s > 2 * TTL_S
        assert await scene.asked() == [("0@0", 1), ("1@0", 1)]

    asyncio.run(main())


def test_it_need_not_wait() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0))
        await scene.begin("0")
        done = await scene.run(wait=False)
        assert done.waiting == ("0@0",)

    asyncio.run(main())


class AwayDeadLetters(MemoryDeadLetters):
    away = 0

    async def read(self, group: Group, partition: PartitionId | None = None) -> AsyncIterator[DeadLetterRecord]:
        if self.away:
            self.away -= 1
            raise DeadLettersUnavailable("the target is unreachable")
        for record in self.records(group, partition):
            yield record


def test_a_target_that_is_away_for_a_while_is_waited_for() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0))
        scene.dead_letters = dead_letters = AwayDeadLetters()
        await scene.begin("0")
        meant = await read_filed(dead_letters, GROUP)
        dead_letters.away = 3
        redrive = scene.redrive()
        scene.clock.work = None

        async def own_when_back() -> None:
            if not dead_letters.away:
                await scene.own()

        scene.clock.work = own_when_back
        done = await redrive.run(meant, report=scene.reports.append)
        assert [one.problem for one in scene.reports[:3]] == ["the target is unreachable"] * 3
        assert (done.redriven, done.problem) == (("0@0",), "")

    asyncio.run(main())


def test_a_target_that_stays_away_is_an_error() -> None:
    async def main() -> None:
        scene = Scene(dead_letter(0))
        scene.dead_letters = dead_letters = AwayDeadLetters()
        await scene.begin("0")
        meant = await read_filed(dead_letters, GROUP)
        dead_letters.away = 10_000
        begun_s = scene.clock.now_s
        with pytest.raises(DeadLettersUnavailable):
            await scene.redrive().run(meant)
        assert PATIENCE_S <= scene.clock.now_s - begun_s < PATIENCE_S + 2

    asyncio.run(main())


def test_what_is_open_can_be_dropped_and_owners_are_called() -> None:
    async def main() -> None:
        scene = Scene(
            dead_letter(0), dead_letter(1), Verdict(dead_letter="0@1", kind="again", number=1), dead_letter(0, "1")
        )
        scene.records += (Verdict(dead_letter="1@0", kind="dropped", why="before"),)
        await scene.begin("0", "1")
        meant = await read_filed(scene.dead_letters, GROUP)
        assert await drop(scene.dead_letters, scene.store, GROUP, meant, scene.clock, ANNA) == 2
        found = await read_filed(scene.dead_letters, GROUP)
        assert [one.state for one in found] == ["dropped"] * 3
        assert [one.verdict.why for one in found if one.verdict] == ["fixed", "fixed", "before"]
        assert await scene.redrives() == {"0": 1}, "a key of theirs may be clear now"
        (action,) = await scene.store.actions(GROUP)
        assert (action.kind, action.what) == ("drop", "dropped 2 dead letters of partition 0: 0@0, 0@1")
        assert await drop(scene.dead_letters, scene.store, GROUP, found, scene.clock, ANNA) == 0
        assert len(await scene.store.actions(GROUP)) == 1

    asyncio.run(main())


def test_an_ended_partition_counts_as_owned_as_long_as_its_dead_letters_are_answered() -> None:
    attendance = OwnerLiveness()
    (lease,) = ledger(None, member(1)).leases
    over = structs.replace(ledger(None, member(1)), leases=(structs.replace(lease, ended=True),))
    for second in range(60):
        assert attendance.missing(over, ["0"], float(second), answered=second // 10) == {}
    found = attendance.missing(over, ["0"], 80.0, answered=5)
    assert found == {"0": "it has ended, and no owner of a child answers"}
