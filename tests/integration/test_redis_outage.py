"""Instances in real processes on a Redis store whose server stands still, is killed, or is emptied under their feet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from evenflow.model import epoch_parts
from tests.integration import outages
from tests.integration.calls import boot_s
from tests.integration.programs import wait_for
from tests.integration.scene import BEAT_S, TTL_S, slack_s
from tests.servers.processes import standing_still
from tests.servers.redis import Endpoint, RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.kill()


@pytest.fixture
def scene(scene: Scene, server: RedisServer) -> Scene:
    scene.store_url = scene.look_url = server.url
    return scene


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def refusing(server: RedisServer) -> Iterator[None]:
    """It asks for a password that nobody was told, and has put everybody out."""
    server.ask("CONFIG", "SET", "requirepass", "sesame")
    for kind in ("normal", "pubsub"):
        server.ask("CLIENT", "KILL", "TYPE", kind, password="sesame")
    try:
        yield
    finally:
        server.ask("CONFIG", "SET", "requirepass", "", password="sesame")


FAULTS = pytest.mark.parametrize("fault", [standing_still, killed], ids=["stands still", "is killed"])
Fault = Callable[[RedisServer], AbstractContextManager[None]]


@FAULTS
def test_a_short_outage_interrupts_nothing(scene: Scene, server: RedisServer, fault: Fault) -> None:
    outages.an_outage_interrupts_nothing(scene, partial(fault, server))


@FAULTS
def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: RedisServer, fault: Fault
) -> None:
    away = outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(fault, server))
    may_take_s = 2 * BEAT_S + slack_s()
    for partition in scene.epochs():
        again_s = min(call.began_s for call in away.calls if call.partition == partition and call.began_s > away.back_s)
        assert again_s - away.back_s < may_take_s, "nobody waits for a time-to-live: everybody has spoken"


def test_when_credentials_are_refused_for_a_while_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: RedisServer
) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(
        scene, partial(refusing, server), says="refuses these credentials"
    )


def test_a_server_that_is_emptied_is_noticed_and_nothing_is_lost(scene: Scene, server: RedisServer) -> None:
    outages.a_store_that_lost_everything_is_made_anew(scene, lambda: server.ask("FLUSHALL"))


def test_a_server_that_forgets_all_at_its_restart_is_noticed_and_nothing_is_lost(
    scene: Scene, server: RedisServer
) -> None:
    server.kill()
    server.options = ()
    server.start()

    def restart() -> None:
        server.kill()
        server.start()

    outages.a_store_that_lost_everything_is_made_anew(scene, restart)


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
            outages.wait_until_noticed(scene, [one, two], died_s)
        scene.wait_until_handled()
        assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}
        for instance in (one, two):
            instance.close()


def test_a_killed_instance_is_taken_over_in_time(scene: Scene) -> None:
    outages.a_killed_instance_is_taken_over_in_time(scene)


def test_planned_moves_are_free_and_quick(scene: Scene) -> None:
    outages.planned_moves_are_free(scene)
