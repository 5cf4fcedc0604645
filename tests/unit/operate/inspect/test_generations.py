"""Ended partitions, and children that wait for their parents, as operators see them: and no problems."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evenflow.cli.top_frame import frame
from evenflow.cli.views import LagView, StatusView, group_facts
from evenflow.errors import Misconfigured
from evenflow.model import Change, Checkpoint, Group, Member, Position
from evenflow.operate.inspect.explanation import explain
from evenflow.operate.inspect.survey import survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher
from evenflow.operate.steer.seeking import plan_seek
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeFeed, FakeSource

GROUP = Group("fake", "fake", "group")


class Scene:
    """Partition 0 was split into left and right and has ended, 1 was split into waiting children and is still owned."""

    def __init__(self, source: FakeSource) -> None:
        self.source, self.store = source, MemoryStore()
        for partition in ("0", "1"):
            for _ in range(10):
                source.append(partition, b"x")

    async def play(self) -> None:
        ledger = await self.store.heartbeat(GROUP, Member(id="ada", nonce="a", ttl_s=8.0), None)
        assert ledger.me is not None
        self.source.end("0", ["left", "right"])
        self.source.end("1", ["low", "high"])
        self._claim: dict[str, Any] = {"history": 0, "owner": ledger.me.owner, "ttl_s": 8.0}
        await self._own("0", 9)
        await self._own("1", 4)
        leases = {lease.partition: lease for lease in await self._leases()}
        over = Change(
            partition="0", revision=leases["0"].revision, history=0, owner=None, epoch=2, ended=True,
            reason="ended: split into left, right",
        )  # fmt: skip
        await self.store.swap(GROUP, [over])
        await self._own("left", -1)

    async def _own(self, partition: str, sequence: int) -> None:
        await self.store.swap(GROUP, [Change(partition=partition, revision=0, epoch=1, **self._claim)])
        record = Checkpoint(partition=partition, epoch=1, position=Position(str(sequence), sequence), ordinal=1)
        await self.store.seal(GROUP, partition, 1, record)

    async def _leases(self) -> Any:
        ledger = await self.store.peek(GROUP)
        assert ledger is not None
        return ledger.leases

    async def observe(self) -> GroupSnapshot:
        return GroupWatcher().observe(await survey(self.store, GROUP, self.source), 0.0, 1_000.0)


def looked(source: FakeSource) -> GroupSnapshot:
    async def main() -> GroupSnapshot:
        scene = Scene(source)
        await scene.play()
        return await scene.observe()

    return asyncio.run(main())


@pytest.mark.parametrize("kind", [FakeSource, FakeFeed])
def test_statuses_say_who_is_over_and_who_waits(kind: type[FakeSource]) -> None:
    snapshot = looked(kind(2))
    rows = {row.partition: row for row in snapshot.partitions}
    assert {name: row.status for name, row in rows.items()} == {
        "0": "ended", "1": "ok", "left": "ok", "right": "unowned", "low": "waiting", "high": "waiting",
    }  # fmt: skip
    assert rows["low"].waits_for == rows["high"].waits_for == ("1",)
    assert (rows["0"].lag, rows["0"].lag_s) == (0, 0.0)


@pytest.mark.parametrize("kind", [FakeSource, FakeFeed])
def test_neither_is_trouble_nor_in_a_plan(kind: type[FakeSource]) -> None:
    snapshot = looked(kind(2))
    assert [(finding.kind, finding.partitions) for finding in snapshot.findings] == [("unowned", ("right",))]
    assert set(snapshot.forecast.plan.owners) == {"1", "left", "right"}
    assert snapshot.forecast.waiting == ("low", "high")
    assert snapshot.members[0].partitions == 2
    assert snapshot.found.problems == ()
    lags = {row.partition: row.lag for row in snapshot.partitions}
    assert lags["1"] == 0 if kind is FakeFeed else lags["1"] is not None, "where it vanished, children have all of it"


def test_both_are_explained() -> None:
    snapshot = looked(FakeSource(2))
    ended, waiting = explain(snapshot, "0"), explain(snapshot, "low")
    assert "it ended" in ended.where
    assert ended.where.endswith("split into left, right.")
    assert ended.next == "It has ended: plans no longer include it."
    assert waiting.where == "It has never had an owner. It came from 1, which was split."
    assert waiting.next == "It waits for 1 to end: no plan assigns it before that."


def test_a_child_is_explained_with_its_parents() -> None:
    where = explain(looked(FakeSource(2)), "left").where
    assert where.startswith("ada owns it (epoch 1): ")
    assert where.endswith(". It came from 0, which was split.")
    assert "because" not in where


def test_where_a_child_came_from_is_known_without_a_source() -> None:
    async def main() -> None:
        scene = Scene(FakeSource(2))
        await scene.play()
        snapshot = GroupWatcher().observe(await survey(scene.store, GROUP, None), 0.0, 1_000.0)
        assert {row.partition: row.parents for row in snapshot.partitions} == {"0": (), "1": (), "left": ("0",)}

    asyncio.run(main())


@pytest.mark.parametrize("kind", [FakeSource, FakeFeed])
def test_what_has_ended_comes_last_and_is_not_counted(kind: type[FakeSource]) -> None:
    snapshot = looked(kind(2))
    assert [row.partition for row in snapshot.partitions] == ["1", "high", "left", "low", "right", "0"]
    assert ([row.partition for row in snapshot.ended], len(snapshot.open), snapshot.owned) == (["0"], 5, 2)
    assert group_facts(snapshot)["ended"] == 1


@pytest.mark.parametrize("made", [StatusView, LagView])
def test_what_has_ended_is_one_line_unless_all_is_asked_for(made: type[StatusView | LagView]) -> None:
    snapshot = looked(FakeSource(2))
    short, whole = made(snapshot).as_lines(), made(snapshot, whole=True).as_lines()
    assert "1 ended partition: 0 (--all shows each)" in short
    assert not any(line.startswith("0 ") for line in short)
    assert [line for line in whole if line.startswith("0 ") and "ended" in line]
    assert not any("--all" in line for line in whole)
    assert {"partition": "0", "status": "ended"}.items() <= made(snapshot).as_facts()["partitions"][-1].items()


def test_top_counts_what_has_not_ended() -> None:
    lines = [line.plain for line in frame(looked(FakeSource(2)))]
    assert lines[1].endswith("owned 2/5")
    assert "1 ended partition" in lines
    assert not any(line.startswith("0 ") for line in lines)


def test_a_seek_leaves_out_what_has_ended_and_says_so_when_it_is_named() -> None:
    async def main() -> None:
        scene = Scene(FakeSource(2))
        await scene.play()
        plans = await plan_seek(scene.store, scene.source, GROUP, "earliest", None)
        assert [one.partition for one in plans] == ["1", "high", "left", "low", "right"]
        with pytest.raises(Misconfigured, match=r"Partition 0 has ended.*Seek in the children"):
            await plan_seek(scene.store, scene.source, GROUP, "earliest", ["0", "left"])

    asyncio.run(main())
