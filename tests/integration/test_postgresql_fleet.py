"""Instances in real processes on a PostgreSQL store that is away, loses answers, or loses what it had."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.integration import outages
from tests.integration.calls import boot_s
from tests.integration.programs import wait_for
from tests.integration.scene import HEARTBEAT_S
from tests.integration.transacting import PARTITIONS, run_fleet
from tests.servers.postgres import shared_or_skip
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.scene import Scene
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process


@pytest.fixture
def server() -> Postgres:
    return shared_or_skip()


@pytest.fixture
def proxy(server: Postgres) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def database(server: Postgres, scene: Scene, proxy: Proxy) -> str:
    """Instances go through the proxy; the test itself looks past it."""
    name = server.make_database()
    scene.store_url, scene.look_url = server.url(name, port=proxy.port), server.url(name)
    return name


@contextmanager
def down(server: Postgres) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.usefixtures("database")
def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, server: Postgres) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, lambda: down(server))


@pytest.mark.usefixtures("database")
def test_lost_answers_lose_nothing_and_never_make_two_owners(scene: Scene, proxy: Proxy) -> None:
    instances = outages.start_two(scene, ttl_s=outages.TTL_S)
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        for _ in range(5):
            deaf_s = boot_s()
            with proxy.losing_answers():
                wait_for(lambda: boot_s() > deaf_s + HEARTBEAT_S, "some answers to be lost")  # noqa: B023
        instances.append(scene.start("three", ttl_s=outages.TTL_S))
        scene.wait_until_even(*instances)
    scene.wait_until_handled()


def test_a_database_that_is_dropped_and_made_again_is_noticed_and_nothing_is_lost(
    scene: Scene, server: Postgres, database: str
) -> None:
    def drop() -> None:
        server.sql(f"DROP DATABASE {database} WITH (FORCE)")
        server.sql(f"CREATE DATABASE {database}")

    outages.a_store_that_lost_everything_is_made_anew(scene, drop)


@pytest.mark.usefixtures("database")
def test_a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene: Scene) -> None:
    outages.a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene)


def test_effects_happen_exactly_once_while_the_way_is_cut_and_the_server_restarts(
    scene: Scene, server: Postgres, proxy: Proxy, database: str
) -> None:
    """Counts of events kept in the same database as the checkpoints, while everything around fails."""
    server.sql("CREATE TABLE seen (partition text, sequence bigint, epoch bigint)", database)

    def trouble() -> Iterator[None]:
        for _ in range(3):
            proxy.cut()
            yield
            with proxy.losing_answers():
                yield
        server.restart()
        yield

    asyncio.run(run_fleet(scene, trouble()))
    rows = server.sql("SELECT partition, sequence FROM seen", database)
    expected = [(partition, sequence) for partition, newest in scene.newest().items() for sequence in range(newest + 1)]
    assert len(expected) > PARTITIONS
    assert sorted(rows) == sorted(expected)
