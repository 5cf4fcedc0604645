"""Real hosts of a change feed processor on a container that is written to all the time: they come, go and are killed,
its ranges split and merge, and every version of every document is handled, in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration.calls import boot_s
from tests.integration.feed_scene import CosmosFeedScene, FeedScene
from tests.integration.programs import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]  # hosts and a server share a busy machine


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[FeedScene]:
    scene = FeedScene(tmp_path, ranges=4)
    yield scene
    scene.close()


@pytest.fixture
def on_cosmos(tmp_path: Path) -> Iterator[FeedScene]:
    scene = CosmosFeedScene(tmp_path, ranges=4)
    yield scene
    scene.close()


@pytest.mark.parametrize("where", ["scene", "on_cosmos"])
def test_hosts_come_and_one_is_killed(where: str, request: pytest.FixtureRequest) -> None:
    """Two hosts with two consumers each have half of the ranges each; with a third it is even again; one is killed,
    and what it had goes on from its continuation."""
    scene: FeedScene = request.getfixturevalue(where)
    with scene.writing():
        one, two = scene.host("one"), scene.host("two")
        scene.await_shares(one=2, two=2)
        wait_for(lambda: all({line.lease for line in host.lines} for host in (one, two)), "both to handle something")
        three = scene.host("three")
        wait_for(lambda: sorted(scene.shares().values()) == [1, 1, 2] and "three" in scene.shares(), "even shares")
        wait_for(lambda: three.lines, "the third one to handle something")
        moved = scene.repeats()
        killed = max((one, two, three), key=lambda host: scene.shares().get(host.name, 0))
        had = [
            name for name, lease in scene.leases.items() if lease.owner is not None and lease.owner.id == killed.name
        ]
        assert len(had) == 2
        killed.process.kill()
        killed.process.wait(PATIENCE_S)
        killed_s = boot_s()
        left = {name: scene.checkpoints[name].position.sequence or 0 for name in had}
        alive = {host.name: 2 for host in (one, two, three) if host is not killed}
        scene.await_shares(**alive)
    scene.await_all()
    assert moved == 0, "planned moves repeat nothing"
    assert scene.out_of_order() == []
    for name, lsn in left.items():
        after = [line for line in scene.lines() if line.lease == name and line.at_s > killed_s]
        assert after[0].lsn == lsn + 1, "right after its continuation"
    for host in (one, two, three):
        if host is not killed:
            assert host.end() == 0


def test_more_hosts_than_ranges(tmp_path: Path) -> None:
    """The rest wait without harm, and step in."""
    scene = FeedScene(tmp_path, ranges=2)
    try:
        with scene.writing():
            hosts = {name: scene.host(name) for name in ("one", "two", "three")}
            wait_for(lambda: sorted(scene.shares().values()) == [1, 1] and "" not in scene.shares(), "two owners")
            wait_for(lambda: all("joined container/orders/mails" in host.log for host in hosts.values()), "all to join")
            working = [hosts[name] for name in scene.shares()]
            (spare,) = (host for host in hosts.values() if host not in working)
            wait_for(lambda: all(host.lines for host in working), "them to handle something")
            moves = scene.leases
            assert spare.lines == []
            gone, stays = working
            gone.process.kill()
            wait_for(lambda: scene.shares() == {spare.name: 1, stays.name: 1}, "the spare one to step in")
            wait_for(lambda: spare.lines, "it to handle something")
            kept = next(name for name, lease in moves.items() if lease.owner and lease.owner.id == stays.name)
            assert scene.leases[kept].epoch == moves[kept].epoch, "what works is left alone"
        scene.await_all()
        assert scene.out_of_order() == []
        assert "Traceback" not in spare.log
        assert {host.end() for host in (spare, stays)} == {0}
    finally:
        scene.close()


def test_ranges_split_and_merge_while_hosts_run(scene: FeedScene) -> None:
    with scene.writing():
        hosts = [scene.host(name) for name in ("one", "two")]
        scene.await_shares(one=2, two=2)
        for _ in range(3):
            enough = len(scene.lines()) + 200
            scene.container.split(scene.container.ranges()[1].id)
            first, second, *_ = scene.container.ranges()
            scene.container.merge(first.id, second.id)
            wait_for(partial(scene.has_lines, enough), "them to go on")
        scene.await_shares(one=2, two=2)
    scene.await_all()
    assert scene.out_of_order() == []
    assert [host.end() for host in hosts] == [0, 0]
    open_ones = {name for name, lease in scene.leases.items() if not lease.ended}
    assert open_ones == {one.id for one in scene.container.ranges()}, "all others have ended, for good"
    assert len(scene.leases) > len(open_ones) + 3
    assert scene.repeats() == 0


def test_two_scheduled_runs_share_one_set_of_leases(scene: FeedScene) -> None:
    scene.write(rounds=10)
    for turn in range(2):
        runs = [scene.host(f"{name}-{turn}", until="caught_up") for name in ("a", "b")]
        assert [run.process.wait(PATIENCE_S) for run in runs] == [0, 0]
        scene.await_all()
        assert scene.repeats() == 0, "between them, each change was handled once"
        assert scene.shares() == {"": 4}, "and they have left"
        scene.write(rounds=3)
        scene.container.split(scene.container.ranges()[0].id)
        first, second, *_ = scene.container.ranges()
        scene.container.merge(first.id, second.id)
    scene.host("last", until="caught_up").process.wait(PATIENCE_S)
    scene.await_all()
    assert scene.repeats() == 0
