"""Instances in real processes on an object store that is away, or put back to what it was some heartbeats ago."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration import outages
from tests.servers.moto import Moto, shared
from tests.servers.processes import standing_still

if TYPE_CHECKING:
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
    scene.store_url = server.url(prefix)
    scene.look_url = server.url(prefix, more="&timeout_s=30")
    return scene


def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, server: Moto) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(standing_still, server))


def test_a_bucket_that_is_put_back_is_noticed_and_nothing_is_lost(scene: Scene, server: Moto, prefix: str) -> None:
    def put_back() -> None:
        backup = server.objects(prefix)
        scene.wait_for_heartbeats(3)
        server.put_back(backup, prefix)

    outages.a_store_that_lost_everything_is_made_anew(scene, put_back)


def test_a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene: Scene) -> None:
    outages.a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene)
