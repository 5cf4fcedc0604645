"""Instances in real processes over the local hub, which is a process too: moves, deaths, a server that goes away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.scene import PATIENT_TTL_S
from tests.servers.event_hubs import HubServer
from tests.servers.processes import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process

PARTITIONS = 6
BACKLOG = [b"backlog"] * 200


@pytest.fixture
def server(scene: Scene) -> Iterator[HubServer]:
    folder = scene.folder / "served"
    with HubServer(folder, "homes", PARTITIONS, "alerts") as server:
        scene.hub, scene.partitions = folder / "homes", PARTITIONS
        scene.source_url, scene.namespace = server.url, f"{LOOPBACK}:{server.port}"
        yield server


@pytest.mark.usefixtures("server")
def test_planned_moves_lose_nothing_and_repeat_nothing(scene: Scene) -> None:
    scene.send_to_all(BACKLOG)
    with scene.load():
        (first,) = scene.start_even("first", work_s=0.0005, ttl_s=PATIENT_TTL_S)
        second = scene.start("second", work_s=0.0005, ttl_s=PATIENT_TTL_S)
        scene.wait_until_even(first, second)
        scene.wait_for_calls(second)
        even = scene.epochs()
        scene.wait_for_heartbeats(2)
        assert scene.epochs() == even, "something still moves although shares are even"
        second.ask_to_stop()
        assert second.exit_code() == 0
        scene.wait_until_even(first)
        scene.wait_for_calls(first, after_s=boot_s())
    assert not repeats(scene.wait_until_handled())


@pytest.mark.usefixtures("server")
def test_a_killed_instance_is_taken_over(scene: Scene) -> None:
    """How soon is a matter of the store alone: see test_takeover, and test_coordinator in virtual time."""
    with scene.load():
        killed, staying = scene.start_even("killed", "staying")
        scene.wait_for_calls(killed)
        moved = scene.owned(killed)
        assert moved
        killed.kill()
        scene.wait_until_even(staying)
        scene.wait_for_calls(staying, after_s=boot_s())
    scene.wait_until_handled()
    assert moved <= {call.partition for call in staying.calls}


def test_a_server_that_is_started_again_under_load_costs_nothing_but_time(scene: Scene, server: HubServer) -> None:
    with scene.load():
        one, other = scene.start_even("one", "other", ttl_s=PATIENT_TTL_S)
        scene.wait_for_calls(one)
        epochs = scene.epochs()
        server.kill()
        wait_for(lambda: "does not answer" in one.log, "the error to be reported")
        server.start()
        back_s = boot_s()
        scene.wait_for_calls(one, after_s=back_s)
        scene.wait_for_calls(other, after_s=back_s)
    assert scene.epochs() == epochs, "a lease moved although only the source was away"
    assert not repeats(scene.wait_until_handled())
    assert "SAS_KEY_VALUE" not in one.log + other.log
