"""Instances in real processes on an Azure Blob store whose service restarts, loses answers, or loses what it had."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Transient
from evenflow.model import Action
from evenflow.stores.azblob.store import AzureBlobStore, from_url
from evenflow.testing.store.scene import present
from tests.integration import outages
from tests.integration.one_client import GROUP, ME, patiently
from tests.servers.azurite import Azurite
from tests.servers.processes import fill, small_disk
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    scene.store_url = server.url(container, more="&shared=no")
    scene.look_url = server.url(container, more="&shared=no&timeout_s=30")
    return scene


@contextmanager
def restarted(server: Azurite) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


def test_a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene: Scene) -> None:
    outages.a_fleet_moves_without_repeats_and_takes_over_from_the_dead(scene)


def test_at_a_long_outage_everybody_stops_in_time_and_goes_on_by_itself(
    scene: Scene, server: Azurite, container: str
) -> None:
    """In a group as it is by default: processors of Azure's own may take part."""
    scene.store_url = server.url(container)
    scene.look_url = server.url(container, more="&timeout_s=30")
    outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(restarted, server))


def test_answers_that_are_lost_lose_nothing(scene: Scene, server: Azurite, container: str) -> None:
    """What was asked for took effect, and nobody was told."""
    with Proxy(server.port) as proxy:
        scene.store_url = server.url(container, proxy.port, "&shared=no&timeout_s=0.5")
        outages.an_outage_interrupts_nothing(scene, proxy.losing_answers, seconds=1.5)


def test_a_full_disk_is_an_outage_that_ends_by_itself(tmp_path: Path) -> None:
    """Azurite calls it an error of its own."""
    note = Action(kind="pause", by="anna", why="x" * 2_000, what="")

    async def play(store: AzureBlobStore, disk: Path) -> None:
        before = present(await store.heartbeat(GROUP, ME, None))
        fill(disk / "ballast")
        with pytest.raises(Transient, match=r"500|no more writes"):  # noqa: PT012
            for _ in range(100):
                await store.record(GROUP, note)
        (disk / "ballast").unlink()
        after = present(await patiently(lambda: store.heartbeat(GROUP, before, None)))
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
