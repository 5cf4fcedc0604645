"""Instances in real processes on an object store that is away, emptied, or put back to what it was some beats ago."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration import outages
from tests.servers.moto import KEYS, Moto, shared
from tests.servers.processes import standing_still
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process


@pytest.fixture
def server() -> Moto:
    return shared()


@pytest.fixture
def prefix(server: Moto) -> str:
    return server.fresh()


@pytest.fixture
def scene(scene: Scene, server: Moto, prefix: str) -> Scene:
    scene.store_url = scene.look_url = server.url(prefix)
    return scene


def test_a_short_outage_interrupts_nothing(scene: Scene, server: Moto) -> None:
    outages.an_outage_interrupts_nothing(scene, partial(standing_still, server))


def test_a_way_that_is_cut_for_a_while_interrupts_nothing(scene: Scene, server: Moto, prefix: str) -> None:
    with Proxy(server.port) as proxy:
        scene.store_url = server.url(prefix, port=proxy.port)
        outages.an_outage_interrupts_nothing(scene, proxy.refusing)


def test_a_server_that_is_too_busy_for_most_requests_interrupts_nothing(scene: Scene, server: Moto) -> None:
    outages.an_outage_interrupts_nothing(scene, lambda: server.faulty("503", "SlowDown", 0.7))


def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, server: Moto) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(standing_still, server))


def test_when_credentials_are_refused_for_a_while_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: Moto
) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(
        scene, lambda: server.faulty("403", "AccessDenied"), says="refuses these credentials"
    )


def emptied(server: Moto, prefix: str, scene: Scene) -> None:
    server.put_back({}, prefix)


def put_back(server: Moto, prefix: str, scene: Scene) -> None:
    backup = server.objects(prefix)
    scene.wait_for_beats(3)
    server.put_back(backup, prefix)


@pytest.mark.parametrize("wound", [emptied, put_back], ids=["is emptied", "is put back"])
def test_a_bucket_that_loses_writes_is_noticed_and_nothing_is_lost(
    scene: Scene, server: Moto, prefix: str, wound: Callable[[Moto, str, Scene], None]
) -> None:
    outages.a_store_that_lost_everything_is_made_anew(scene, partial(wound, server, prefix, scene))


def test_a_killed_instance_is_taken_over_in_time(scene: Scene) -> None:
    outages.a_killed_instance_is_taken_over_in_time(scene)


def test_planned_moves_are_free(scene: Scene) -> None:
    outages.planned_moves_are_free(scene)


def test_the_command_line_knows_it(scene: Scene, server: Moto) -> None:
    scene.make_hub(2)
    scene.start_even("one")
    done = list_groups(scene.store_url)
    assert done.returncode == 0, done.stderr
    assert "homes  alerts" in done.stdout
    done = list_groups(server.url(bucket="nowhere"))
    assert done.returncode != 0
    assert "There is no bucket 'nowhere'" in done.stderr
    assert KEYS["secret_access_key"] not in done.stdout + done.stderr


def list_groups(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evenflow.cli", "group", "list", "--store", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
