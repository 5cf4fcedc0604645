"""Instances in real processes on a Redis store whose server stands still, is killed, or is emptied under their feet."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from evenflow.model import epoch_parts
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.scene import BEAT_S, MARGIN_S, SLACK_S, TTL_S
from tests.servers.redis import Endpoint, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.scene import Instance, Scene

pytestmark = pytest.mark.process

SHORT_S = 0.8
LONG_S = TTL_S + 1.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.kill()


@pytest.fixture
def scene(scene: Scene, server: RedisServer) -> Scene:
    scene.store_url = scene.look_url = server.url
    return scene


def start_two(scene: Scene) -> list[Instance]:
    scene.make_hub(4)
    return scene.start_even("one", "two")


def stand_still(server: RedisServer, seconds: float) -> tuple[float, float]:
    """When it began and ended."""
    server.pause()
    began_s = boot_s()
    wait_for(lambda: boot_s() > began_s + seconds, "time to pass")
    ended_s = boot_s()
    server.resume()
    return began_s, ended_s


def be_dead(server: RedisServer, seconds: float) -> tuple[float, float]:
    began_s = boot_s()
    server.kill()
    wait_for(lambda: boot_s() > began_s + seconds, "time to pass")
    server.start()
    return began_s, boot_s()


FAULTS = pytest.mark.parametrize("fault", [stand_still, be_dead], ids=["stands still", "is killed"])


@FAULTS
def test_a_short_outage_interrupts_nothing(
    scene: Scene, server: RedisServer, fault: Callable[[RedisServer, float], tuple[float, float]]
) -> None:
    instances = start_two(scene)
    before = scene.epochs()
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        began_s, ended_s = fault(server, SHORT_S)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=ended_s)
    calls = scene.wait_until_handled()
    assert scene.epochs() == before
    assert not repeats(calls)
    assert {call.partition for call in calls if began_s < call.began_s < ended_s} == set(before)
    newest = scene.newest()
    wait_for(
        lambda: {name: one.position.sequence for name, one in scene.checkpoints().items()} == newest,
        "the checkpoints to catch up",
    )


@FAULTS
def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: RedisServer, fault: Callable[[RedisServer, float], tuple[float, float]]
) -> None:
    instances = start_two(scene)
    before = scene.epochs()
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        began_s, ended_s = fault(server, LONG_S)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=ended_s)
    calls = scene.wait_until_handled()
    deadline_s = began_s + TTL_S - MARGIN_S
    assert not [str(call) for call in calls if deadline_s <= call.began_s < ended_s]
    assert all(epoch > before[partition] for partition, epoch in scene.epochs().items())
    scene.wait_until_even(*instances)
    for instance in instances:
        assert instance.process.poll() is None
        assert "StoreUnavailable" in instance.log
        assert "Traceback" not in instance.log
    again_s = [min(c.began_s for c in calls if c.partition == one and c.began_s > ended_s) for one in before]
    assert max(again_s) - ended_s < 2 * BEAT_S + SLACK_S, "nobody waits for a time-to-live: everybody has spoken"


def test_a_server_that_is_emptied_is_noticed_and_nothing_is_lost(scene: Scene, server: RedisServer) -> None:
    scene.make_hub(4)
    instances = scene.start_even("one", "two", longest_ttl_s=TTL_S)
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        emptied_s = boot_s()
        server.ask("FLUSHALL")
        for instance in instances:
            wait_for(lambda: "the store lost writes (history 0 -> 1)" in instance.log, f"{instance} to notice")  # noqa: B023
        scene.wait_until_even(*instances)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=emptied_s + TTL_S)
    scene.wait_until_handled()
    assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}
    assert [instance.process.poll() for instance in instances] == [None, None]


def test_a_server_that_forgets_all_at_its_restart_is_noticed_and_nothing_is_lost(
    scene: Scene, server: RedisServer
) -> None:
    server.kill()
    server.options = ()
    server.start()
    scene.make_hub(4)
    instances = scene.start_even("one", "two", longest_ttl_s=TTL_S)
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        _, ended_s = be_dead(server, SHORT_S)
        scene.wait_until_even(*instances)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=ended_s + TTL_S)
    scene.wait_until_handled()
    assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}


def test_a_failover_that_loses_writes_is_noticed_and_nothing_is_lost(
    scene: Scene, server: RedisServer, tmp_path: Path
) -> None:
    """The replica has not heard from its master for a while when that one dies, and takes its place."""
    replica = RedisServer(tmp_path / "replica").start()
    with ExitStack() as ends, Endpoint(server.port) as between, Endpoint(server.port) as endpoint:
        ends.callback(replica.stop)
        replica.ask("REPLICAOF", "127.0.0.1", between.port)
        wait_for(lambda: replica.ask("INFO", "replication")["master_link_status"] == "up", "the first copy")
        scene.store_url = scene.look_url = f"redis://127.0.0.1:{endpoint.port}"
        scene.make_hub(4)
        one = scene.start("one", longest_ttl_s=TTL_S)
        scene.wait_until_even(one)
        with scene.load():
            scene.wait_for_calls(one)
            wait_for(lambda: replica.offset == server.offset, "the replica to have it all")
            with between.holding():
                two = scene.start("two", longest_ttl_s=TTL_S)
                scene.wait_until_even(one, two)
                scene.wait_for_calls(two)
                died_s = boot_s()
                server.kill()
                between.cut()
                replica.ask("REPLICAOF", "NO", "ONE")
            endpoint.point_to(replica.port)
            for instance in (one, two):
                wait_for(lambda: "the store lost writes (history 0 -> 1)" in instance.log, f"{instance} to notice")  # noqa: B023
            scene.wait_until_even(one, two)
            for instance in (one, two):
                scene.wait_for_calls(instance, after_s=died_s + TTL_S)
        scene.wait_until_handled()
        assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}
        for instance in (one, two):
            instance.close()


def test_a_killed_instance_is_taken_over_in_time(scene: Scene) -> None:
    scene.make_hub(8)
    with scene.load():
        survivor, victim = scene.start_even("survivor", "victim", checkpoint_s=0.5)
        scene.wait_for_calls(victim)
        orphans = scene.owned(victim)
        killed_s = victim.kill()
        wait_for(lambda: scene.owned(survivor) > orphans, "the takeover")
        scene.wait_for_calls(survivor, after_s=killed_s + BEAT_S)
    calls = scene.wait_until_handled()
    for orphan in orphans:
        again_s = min(call.began_s for call in calls if call.partition == orphan and call.began_s > killed_s)
        assert again_s - killed_s <= TTL_S + BEAT_S + SLACK_S


def test_planned_moves_are_free_and_quick(scene: Scene) -> None:
    scene.make_hub(8)
    with scene.load():
        one = scene.start("one")
        scene.wait_until_even(one)
        two = scene.start("two")
        scene.wait_until_even(one, two)
        scene.wait_for_calls(two)
        one.ask_to_stop()
        assert one.exit_code() == 0
        scene.wait_until_even(two)
        scene.wait_for_calls(two, after_s=boot_s())
        two.ask_to_stop()
        assert two.exit_code() == 0
        one = scene.start("one")
    calls = scene.wait_until_handled()
    assert not repeats(calls)
