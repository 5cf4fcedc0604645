"""Instances in real processes on a Redis store whose server is killed, or replaced by one that has lost writes."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from evenflow.model import epoch_parts
from tests.integration import outages
from tests.integration.calls import boot_s
from tests.integration.outages import TTL_S
from tests.integration.programs import wait_for
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


def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, server: RedisServer) -> None:
    """How soon leases are given after a restart is in `tests/unit/stores/redis/test_lost.py`."""
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(killed, server))


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
        one = scene.start("one", ttl_s=TTL_S, longest_ttl_s=TTL_S)
        scene.wait_until_even(one)
        with scene.load():
            scene.wait_for_calls(one)
            wait_for(lambda: replica.offset == server.offset, "the replica to have it all")
            with between.holding():
                two = scene.start("two", ttl_s=TTL_S, longest_ttl_s=TTL_S)
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


def test_a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene: Scene) -> None:
    outages.a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene)
