"""Real processes, steered from outside: paused, moved back, resumed and retired."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest

from evenflow.errors import Misconfigured
from evenflow.model import Group, Position
from evenflow.operate.steer import Operator, delete, pause, plan_seek, resume, retire, seek
from evenflow.runtime.clock import system_clock
from evenflow.sources.hub.source import HubSource
from evenflow.stores.sqlite.store import SQLiteStore
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import end, wait_for
from tests.integration.scene import PATIENT_TTL_S
from tests.integration.test_run import application, is_running, peek, pids, two_workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process

T = TypeVar("T")
GROUP = Group("local", "homes", "alerts")
ANNA = Operator("anna", "a wrong price")


def steer(folder: Path, what: Callable[[SQLiteStore], Awaitable[T]]) -> T:
    """As a tool does: a process of its own, which opens the store, does one thing, and is gone."""

    async def do() -> T:
        store = SQLiteStore(folder, create=False)
        try:
            return await what(store)
        finally:
            await store.aclose()

    return asyncio.run(do())


def seek_back(scene: Scene, to: int, *partitions: str) -> list[str]:
    told: list[str] = []

    async def move(store: SQLiteStore) -> None:
        source = HubSource(scene.hub)
        try:
            plans = await plan_seek(store, source, GROUP, Position(str(to), to), partitions or None)
            await seek(store, source, GROUP, plans, ANNA, system_clock(), told.append)
        finally:
            await source.aclose()

    steer(scene.store, move)
    return told


def test_a_paused_group_stands_still_is_moved_back_and_goes_on(scene: Scene) -> None:
    scene.make_hub(4)
    with scene.load():
        one, two = scene.start_even("one", "two", ttl_s=PATIENT_TTL_S)
        scene.wait_for_calls(one, after_s=boot_s())
        scene.wait_for_calls(two, after_s=boot_s())
        steer(scene.store, lambda store: pause(store, GROUP, None, ANNA))
        wait_for(lambda: {lease.owner for lease in scene.leases().values()} == {None}, "all to be let go")
        before = scene.checked_calls()
        scene.wait_for_heartbeats(3)
        assert len(scene.calls()) == len(before), "calls stop, though events come"
    assert not repeats(before)
    assert {lease.reason for lease in scene.leases().values()} == {"released: paused by anna: a wrong price"}
    stood = {name: record.position.sequence or 0 for name, record in scene.checkpoints().items()}
    ends = {name: max(call.last for call in before if call.partition == name) for name in stood}
    assert stood == ends, "drained and committed"

    back = {name: at // 2 for name, at in stood.items()}
    told = [line for name, at in back.items() for line in seek_back(scene, at, name)]
    assert told == [], "it was paused already: nothing to wait for"
    assert scene.pids() == {one.pid, two.pid}
    steer(scene.store, lambda store: resume(store, GROUP, None, ANNA, system_clock()))
    expected = Counter((name, sequence) for name, newest in scene.newest().items() for sequence in range(newest + 1))
    expected.update((name, sequence) for name, at in stood.items() for sequence in range(back[name] + 1, at + 1))
    wait_for(lambda: handled(scene) == expected, "the events after the places to be handled once more")
    scene.wait_for_heartbeats(2)
    assert handled(scene) == expected, "and exactly once more"
    actions = steer(scene.store, lambda store: store.actions(GROUP))
    assert [action.kind for action in actions] == ["resume", *["seek"] * 4, "pause"]
    assert {action.what for action in actions[1:5]} == {
        f"partition {name}: {at} -> {back[name]}" for name, at in stood.items()
    }


def handled(scene: Scene) -> Counter[tuple[str, int]]:
    return Counter(
        (call.partition, sequence)
        for call in scene.calls()
        if call.ended_s is not None
        for sequence in range(call.first, call.last + 1)
    )


def test_a_running_group_is_moved_through_its_owners(scene: Scene) -> None:
    scene.make_hub(3)
    scene.send_to_all([b"x"] * 20)
    one, two = scene.start_even("one", "two")
    scene.wait_until_handled()
    epochs = scene.epochs()
    told = seek_back(scene, 9, "0")
    assert told[0] == "paused partition 0 for the seek"
    assert told[-1] == "resumed partition 0 for the seek"
    expected = Counter((str(name), sequence) for name in range(3) for sequence in range(20))
    expected.update(("0", sequence) for sequence in range(10, 20))
    wait_for(lambda: handled(scene) == expected, "ten events to be handled once more")
    scene.wait_for_heartbeats(2)
    assert handled(scene) == expected
    assert {name: epoch for name, epoch in scene.epochs().items() if name != "0"} == {
        name: epoch for name, epoch in epochs.items() if name != "0"
    }, "the others did not notice"
    with pytest.raises(Misconfigured, match="has live instances"):
        steer(scene.store, lambda store: delete(store, GROUP, ANNA, system_clock()))
    one.ask_to_stop()
    two.kill()
    assert one.exit_code() == 0
    told = seek_back(scene, -1)
    assert "waiting for two to release partition" in " ".join(told)
    assert {record.position.sequence for record in scene.checkpoints().values()} == {-1}
    steer(scene.store, lambda store: delete(store, GROUP, ANNA, system_clock()))
    assert scene.ledger() is None


def test_a_worker_that_is_retired_is_not_started_again(tmp_path: Path) -> None:
    folder = application(tmp_path)
    with two_workers(folder) as run:
        ledger = asyncio.run(peek(folder))
        assert ledger is not None
        chosen = ledger.members[0]
        owner = steer(folder / "leases", lambda store: retire(store, GROUP, chosen.id, ANNA))
        assert owner == chosen.owner
        wait_for(lambda: list(pids(folder).values()) == [4], "the other one to have all four")
        wait_for(lambda: not is_running(chosen.pid), "its end")
        steer(folder / "leases", lambda store: _some_heartbeats(store))
        assert list(pids(folder).values()) == [4]
        code, _, err = end(run)
    assert code == 0, err
    name = next(line.partition(" | ")[0] for line in err.splitlines() if f"started (pid {chosen.pid})" in line)
    lines = [line.partition("Z ")[2] for line in err.splitlines() if line.startswith(name)]  # behind the time
    assert lines[-2:] == [
        f"{chosen.id} is retiring, as requested by anna: a wrong price",
        "exited normally and is not restarted; restart `evenflow run` to bring it back",
    ]
    joined = f"{chosen.id} joined local/homes/alerts (incarnation {chosen.incarnation})"
    assert any(line.endswith(joined) for line in lines)
    assert not any(line.startswith("died") for line in lines)


async def _some_heartbeats(store: SQLiteStore) -> None:
    """Longer than a worker that died is waited for before it is started again."""
    marks: set[int] = set()
    while len(marks) < 10:
        ledger = await store.peek(GROUP)
        assert ledger is not None
        marks.update(member.mark for member in ledger.members)
        await asyncio.sleep(0.05)
