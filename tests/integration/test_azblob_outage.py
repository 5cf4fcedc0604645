"""Instances in real processes on an Azure Blob store whose service stands still, restarts, or loses what it had."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Transient
from evenflow.model import Action
from evenflow.stores.azblob import AzureBlobStore, from_url
from evenflow.testing.store_scene import present
from tests.integration import outages
from tests.integration.one_client import GROUP, ME, patiently
from tests.servers.azurite import Azurite
from tests.servers.processes import fill, small_disk, standing_still
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """It keeps what it has in a folder; each test has a container of its own there."""
    folder = tmp_path_factory.mktemp("azurite")
    server = Azurite(folder / "log", folder / "data").start()
    yield server
    server.kill()


@pytest.fixture
def container(server: Azurite) -> str:
    return server.make_container()


@pytest.fixture
def scene(scene: Scene, server: Azurite, container: str) -> Scene:
    scene.store_url = scene.look_url = server.url(container, more="&shared=no")
    return scene


@contextmanager
def restarted(server: Azurite) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


FAULTS = pytest.mark.parametrize("fault", [standing_still, restarted], ids=["stands still", "restarts"])


def test_planned_moves_are_free(scene: Scene) -> None:
    outages.planned_moves_are_free(scene)


def test_a_killed_instance_is_taken_over_in_time(scene: Scene) -> None:
    outages.a_killed_instance_is_taken_over_in_time(scene)


@FAULTS
def test_a_short_outage_interrupts_nothing(
    scene: Scene, server: Azurite, fault: Callable[[Azurite], AbstractContextManager[None]]
) -> None:
    outages.an_outage_interrupts_nothing(scene, partial(fault, server))


def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, server: Azurite) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(restarted, server))


@pytest.fixture
def open_scene(scene: Scene, server: Azurite, container: str) -> Scene:
    """As by default: processors of another make may take part."""
    scene.store_url = scene.look_url = server.url(container)
    return scene


def test_a_short_outage_interrupts_nothing_in_a_group_that_others_may_share(open_scene: Scene, server: Azurite) -> None:
    outages.an_outage_interrupts_nothing(open_scene, partial(standing_still, server))


def test_at_a_long_outage_everybody_stops_in_time_in_a_group_that_others_may_share(
    open_scene: Scene, server: Azurite
) -> None:
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(open_scene, partial(restarted, server))


def test_at_a_way_that_is_cut_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: Azurite, container: str
) -> None:
    with Proxy(server.port) as proxy:
        scene.store_url = server.url(container, proxy.port, "&shared=no")
        outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, proxy.holding)


def test_answers_that_are_lost_lose_nothing(scene: Scene, server: Azurite, container: str) -> None:
    """What was asked for took effect, and nobody was told."""
    with Proxy(server.port) as proxy:
        scene.store_url = server.url(container, proxy.port, "&shared=no&timeout_s=0.5")
        outages.an_outage_interrupts_nothing(scene, proxy.losing_answers, seconds=1.5)


def test_a_full_disk_is_an_outage_that_ends_by_itself(tmp_path: Path) -> None:
    """Azurite calls it an error of its own."""
    note = Action(kind="pause", by="anna", why="x" * 2_000, what="")

    async def play(store: AzureBlobStore, disk: Path) -> None:
        before = present(await store.beat(GROUP, ME, None))
        fill(disk / "ballast")
        with pytest.raises(Transient, match=r"500|no more writes"):  # noqa: PT012
            for _ in range(100):
                await store.record(GROUP, note)
        (disk / "ballast").unlink()
        after = present(await patiently(lambda: store.beat(GROUP, before, None)))
        assert after.incarnation == before.incarnation
        assert await store.actions(GROUP), "what was acknowledged before is there"
        await store.aclose()

    with small_disk(tmp_path / "small", "600k") as disk:
        server = Azurite(tmp_path / "azurite.log", disk).start()
        try:
            asyncio.run(play(from_url(server.url()), disk))
        finally:
            server.kill()


def test_a_container_that_is_made_anew_is_noticed_and_nothing_is_lost(
    scene: Scene, server: Azurite, container: str
) -> None:
    def empty() -> None:
        with server.container(container) as client:
            client.delete_container()
            client.create_container()

    outages.a_store_that_lost_everything_is_made_anew(scene, empty)
