"""Pause, resume, retire and delete, from outside."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from evenflow import Misconfigured
from evenflow.core.notes import Notes, Stopped, Tripped
from evenflow.model import EVERYTHING
from evenflow.operate.steer import Operator, delete, pause, resume, retire
from tests.unit.runtime.stage import GROUP, Seen, Stage, at, until

ANNA = Operator("anna", "the disk is full")


async def test_a_group_is_paused_and_resumed(stage: Stage) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 2)
        state = await pause(stage.store, GROUP, None, ANNA)
        assert set(state.pauses) == {EVERYTHING}
        await until(lambda: not processor.owned)
        assert await resume(stage.store, GROUP, None, ANNA, stage.clock()) == []
        await until(lambda: len(processor.owned) == 2)
        actions = [(one.kind, one.by, one.why, one.what) for one in await stage.store.actions(GROUP)]
        assert actions == [
            ("resume", "anna", "the disk is full", "the whole group"),
            ("pause", "anna", "the disk is full", "the whole group"),
        ]


async def test_what_is_not_there_is_refused(stage: Stage) -> None:
    clock = stage.clock()
    for nothing in (
        pause(stage.store, GROUP, None, ANNA),
        resume(stage.store, GROUP, None, ANNA, clock),
        retire(stage.store, GROUP, "a", ANNA),
        delete(stage.store, GROUP, ANNA, clock),
    ):
        with pytest.raises(Misconfigured, match="has no group fake/fake/group"):
            await nothing
    async with stage.processor(Seen(), instance_id="a") as processor:
        await until(lambda: len(processor.owned) == 2)
        with pytest.raises(Misconfigured, match=r"no partition 7, 10\. There are: 0, 1\."):
            await pause(stage.store, GROUP, ["10", "0", "7"], ANNA)
        with pytest.raises(Misconfigured, match="The list of partitions is empty"):
            await pause(stage.store, GROUP, [], ANNA)
        with pytest.raises(Misconfigured, match=r"no instance 'b'\. It has: a\."):
            await retire(stage.store, GROUP, "b", ANNA)
        await pause(stage.store, GROUP, None, ANNA)
        with pytest.raises(Misconfigured, match="Resume the group"):
            await resume(stage.store, GROUP, ["0"], ANNA, clock)
        assert [one.kind for one in await stage.store.actions(GROUP)] == ["pause"]


async def test_who_is_retired_leaves(stage: Stage) -> None:
    processor = stage.processor(Seen(), instance_id="a")
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(processor.owned) == 2)
    owner = await retire(stage.store, GROUP, "a", ANNA)
    assert (owner.id, owner.incarnation) == ("a", 1)
    await serving
    assert [one.what for one in await stage.store.actions(GROUP)] == ["instance a#1"]


@pytest.mark.parametrize("notes", [Notes(stopped=Stopped(1, at(1), "boom")), Notes(tripped=Tripped("down"))])
@pytest.mark.parametrize("how", ["no instances", "running", "paused"])
async def test_what_a_failure_halted_goes_on_where_it_stood(stage: Stage, notes: Notes, how: str) -> None:
    stage.fill(3)
    await stage.processor(Seen()).serve(until="caught_up")
    await _note(stage, "0", replace(notes, parked={"k": 0}, redriven=4))
    before = (await stage.records())["0"]
    processor = stage.processor(Seen())
    serving = asyncio.create_task(processor.serve()) if how != "no instances" else None
    if how == "paused":
        await pause(stage.store, GROUP, None, ANNA)
    await until(lambda: how != "running" or len(processor.owned) == 2)
    if how != "paused":
        assert await resume(stage.store, GROUP, ["1"], ANNA, stage.clock()) == []
    assert await resume(stage.store, GROUP, None, ANNA, stage.clock()) == ["0"]
    record = (await stage.records())["0"]
    assert record.notes == {"parked": {"k": 0}, "redriven": 4}
    assert (record.position, record.ordinal) == (before.position, before.ordinal)
    assert record.epoch > before.epoch
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    assert ledger.state.pauses == {}, "what was paused for it was resumed"
    assert (await stage.store.actions(GROUP))[0].what == "the whole group; cleared the failure of partition 0"
    if serving is not None:
        await until(lambda: len(processor.owned) == 2)
        processor.stop()
        await serving


async def _note(stage: Stage, partition: str, notes: Notes) -> None:
    """As its last owner would have written it."""
    record = (await stage.records())[partition]
    (outcome,) = await stage.store.commit(GROUP, [replace(record, notes=notes.as_dict())])
    assert outcome.ok


async def test_a_group_that_runs_is_not_deleted(stage: Stage) -> None:
    async with stage.processor(Seen(), instance_id="a") as processor:
        await until(lambda: len(processor.owned) == 2)
        await asyncio.sleep(1.0)
        with pytest.raises(Misconfigured, match=r"has live instances: a \(pid \d+ on .*Stop them first"):
            await delete(stage.store, GROUP, ANNA, stage.clock())
    assert list(await stage.store.groups()) == [GROUP]
    await delete(stage.store, GROUP, ANNA, stage.clock())
    assert list(await stage.store.groups()) == []
    (action,) = await stage.store.actions(GROUP)
    assert (action.kind, action.by) == ("delete", "anna")
    assert action.what == "group fake/fake/group; its checkpoints were: 0 at -1, 1 at -1"


async def test_a_group_of_the_dead_is_deleted(stage: Stage) -> None:
    process = stage.new_process()
    killed = stage.processor(Seen(), loop=process)
    process.start(killed.serve())
    await until(lambda: len(killed.owned) == 2)
    process.dead = True
    await asyncio.sleep(1.0)
    await delete(stage.store, GROUP, ANNA, stage.clock())
    assert list(await stage.store.groups()) == []
