"""Real instances on a PostgreSQL store: what they do when the server, or the way to it, is away for a while."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from evenflow.model import epoch_parts
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.scene import BEAT_S, MARGIN_S, SLACK_S, TTL_S
from tests.integration.transacting import PARTITIONS, run_fleet
from tests.servers.postgres import shared_or_skip
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.scene import Instance, Scene
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process

LONG_S = TTL_S + 1.0


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


def start_two(scene: Scene, **options: float) -> list[Instance]:
    scene.make_hub(4)
    return scene.start_even("one", "two", **options)


@contextmanager
def away(kind: str, server: Postgres, proxy: Proxy) -> Iterator[None]:
    if kind == "server down":
        server.stop()
        yield
        server.start()
        return
    with proxy.holding() if kind == "held" else proxy.refusing():
        yield


@pytest.mark.usefixtures("database")
def test_an_outage_shorter_than_the_time_to_live_interrupts_nothing(scene: Scene, server: Postgres) -> None:
    instances = start_two(scene)
    before = scene.epochs()
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        server.restart()
        back_s = boot_s()
        scene.wait_for_beats(2)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=back_s)
    calls = scene.wait_until_handled()
    assert scene.epochs() == before
    assert not repeats(calls)


@pytest.mark.parametrize("kind", ["held", "refused", "server down"])
@pytest.mark.usefixtures("database")
def test_at_a_longer_one_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: Postgres, proxy: Proxy, kind: str
) -> None:
    instances = start_two(scene)
    before = scene.epochs()
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        with away(kind, server, proxy):
            away_s = boot_s()
            wait_for(lambda: boot_s() > away_s + LONG_S, "the outage to pass")
            back_s = boot_s()
        for instance in instances:
            scene.wait_for_calls(instance, after_s=back_s)
    calls = scene.wait_until_handled()
    deadline_s = away_s + TTL_S - MARGIN_S
    assert not [str(call) for call in calls if deadline_s <= call.began_s < back_s]
    assert all(epoch > before[partition] for partition, epoch in scene.epochs().items())
    scene.wait_until_even(*instances)
    for instance in instances:
        assert instance.process.poll() is None
        assert "Traceback" not in instance.log


@pytest.mark.usefixtures("database")
def test_lost_answers_lose_nothing_and_never_make_two_owners(scene: Scene, proxy: Proxy) -> None:
    instances = start_two(scene)
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
    instances = start_two(scene, longest_ttl_s=TTL_S)
    with scene.load():
        for instance in instances:
            scene.wait_for_calls(instance)
        emptied_s = boot_s()
        if wound == "truncated":
            tables = "meta, groups, members, leases, moves, actions, checkpoints"
            server.sql("TRUNCATE " + ", ".join(f"evenflow.{table}" for table in tables.split(", ")), database)
        else:
            server.sql(f"DROP DATABASE {database} WITH (FORCE)")
            server.sql(f"CREATE DATABASE {database}")
        for instance in instances:
            wait_for(lambda: "the store lost writes (history 0 -> 1)" in instance.log, f"{instance} to notice")  # noqa: B023
        scene.wait_until_even(*instances)
        for instance in instances:
            scene.wait_for_calls(instance, after_s=emptied_s + TTL_S)
    scene.wait_until_handled()
    assert {epoch_parts(epoch)[0] for epoch in scene.epochs().values()} == {1}
    assert [instance.process.poll() for instance in instances] == [None, None]


@pytest.mark.usefixtures("database")
def test_a_killed_instance_is_taken_over_and_a_newcomer_is_handed_its_share(scene: Scene) -> None:
    scene.make_hub(8)
    with scene.load():
        survivor, victim = scene.start_even("survivor", "victim")
        scene.wait_for_calls(victim)
        orphans = scene.owned(victim)
        killed_s = victim.kill()
        wait_for(lambda: scene.owned(survivor) > orphans, "the takeover", TTL_S + BEAT_S + 2 * SLACK_S)
        newcomer = scene.start("newcomer")
        scene.wait_until_even(survivor, newcomer)
        scene.wait_for_calls(newcomer, after_s=killed_s)
    calls = scene.wait_until_handled()
    assert {repeat.before.pid for repeat in repeats(calls)} <= {victim.pid}


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
