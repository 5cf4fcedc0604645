"""Real instances on a PostgreSQL store: what they do when the server, or the way to it, is away for a while."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.integration import outages
from tests.integration.calls import boot_s
from tests.integration.programs import wait_for
from tests.integration.scene import BEAT_S
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
def test_an_outage_shorter_than_the_time_to_live_interrupts_nothing(scene: Scene, server: Postgres) -> None:
    outages.an_outage_interrupts_nothing(scene, lambda: down(server))


def test_when_the_role_may_not_log_in_for_a_while_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: Postgres, database: str
) -> None:
    role = server.fresh("role")
    server.sql(f"CREATE ROLE {role} SUPERUSER LOGIN")  # whoever looks first makes the schema, and that is the test
    scene.store_url = server.url(database, user=role)

    @contextmanager
    def locked() -> Iterator[None]:
        server.sql(f"ALTER ROLE {role} NOLOGIN")
        server.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'")
        try:
            yield
        finally:
            server.sql(f"ALTER ROLE {role} LOGIN")

    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, locked, says="not permitted to log in")


@pytest.mark.parametrize("kind", ["held", "refused", "server down"])
@pytest.mark.usefixtures("database")
def test_at_a_longer_one_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: Postgres, proxy: Proxy, kind: str
) -> None:
    away = {"held": proxy.holding, "refused": proxy.refusing, "server down": lambda: down(server)}[kind]
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, away)


@pytest.mark.usefixtures("database")
def test_lost_answers_lose_nothing_and_never_make_two_owners(scene: Scene, proxy: Proxy) -> None:
    instances = outages.start_two(scene)
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        for _ in range(5):
            deaf_s = boot_s()
            with proxy.losing_answers():
                wait_for(lambda: boot_s() > deaf_s + BEAT_S, "some answers to be lost")  # noqa: B023
        instances.append(scene.start("three"))
        scene.wait_until_even(*instances)
    scene.wait_until_handled()


@pytest.mark.parametrize("wound", ["truncated", "dropped"])
def test_a_store_that_somebody_empties_is_made_anew_and_nothing_is_lost(
    scene: Scene, server: Postgres, database: str, wound: str
) -> None:
    def empty() -> None:
        if wound == "truncated":
            tables = "meta, groups, members, leases, moves, actions, checkpoints"
            server.sql("TRUNCATE " + ", ".join(f"evenflow.{table}" for table in tables.split(", ")), database)
        else:
            server.sql(f"DROP DATABASE {database} WITH (FORCE)")
            server.sql(f"CREATE DATABASE {database}")

    outages.a_store_that_lost_everything_is_made_anew(scene, empty)


@pytest.mark.usefixtures("database")
def test_a_killed_instance_is_taken_over_and_a_newcomer_is_handed_its_share(scene: Scene) -> None:
    outages.a_killed_instance_is_taken_over_in_time(scene)


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
