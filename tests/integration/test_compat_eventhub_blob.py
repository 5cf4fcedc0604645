"""The drop-in client with an official BlobCheckpointStore, on Azurite: beside an official client, and after it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from azure.eventhub.aio import EventHubConsumerClient as Official
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore as PlainBlobs
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from evenflow.compat.eventhub.aio import EventHubConsumerClient
from tests.integration.compat_scene import fill, served
from tests.servers.azurite_fixtures import azurite
from tests.unit.compat.eventhub.scene import Running, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.testing import EventHub
    from tests.servers.azurite import Azurite

__all__ = ["azurite", "served"]

TERMS = {"starting_position": "-1"}


def blobs(azurite: Azurite, container: str) -> Any:
    return BlobCheckpointStore.from_connection_string(azurite.connection_string, container)


def _has_marked(running: Running, count: int) -> Callable[[], bool]:
    return lambda: running.program.marked == count


def seen(*runs: Running) -> list[tuple[str, str]]:
    return sorted(one for run in runs for one in run.program.seen)


def test_it_goes_on_where_an_official_client_stopped(served: EventHub, azurite: Azurite) -> None:
    """With the store of async code, and after that with the one of plain code."""

    async def main() -> None:
        container = azurite.make_container()
        for partition in "01":
            await fill(served, 3, partition)
        async with blobs(azurite, container) as store, Running(Official, served, TERMS, checkpoint_store=store) as old:
            await until(lambda: old.program.marked == 6, "the first six")
        for kind, start in ((BlobCheckpointStore, 3), (PlainBlobs, 5)):
            for partition in "01":
                await fill(served, 2, partition, start)
            again = kind.from_connection_string(azurite.connection_string, container)
            async with Running(EventHubConsumerClient, served, TERMS, checkpoint_store=again) as new:
                await until(_has_marked(new, 4), f"four more with {kind.__module__}")
                assert seen(new) == [(partition, str(number)) for partition in "01" for number in (start, start + 1)]
                assert not new.program.errors

    asyncio.run(main())


def test_an_official_client_and_this_one_share_the_partitions(served: EventHub, azurite: Azurite) -> None:
    async def main() -> None:
        container = azurite.make_container()
        async with blobs(azurite, container) as store, Running(Official, served, TERMS, checkpoint_store=store) as old:
            await until(lambda: len(old.program.opened) == 2, "all to be the old one's")
            async with Running(
                EventHubConsumerClient, served, TERMS, checkpoint_store=blobs(azurite, container)
            ) as new:
                await until(lambda: new.program.opened, "a share for the new one")
                for partition in "01":
                    await fill(served, 5, partition)
                await until(lambda: len(set(seen(old, new))) == 10, "all events")
                await until(lambda: new.program.seen and old.program.seen, "both to have some")

    asyncio.run(main())


def test_one_partition_alone_has_the_checkpoints_of_the_group(azurite: Azurite, served: EventHub) -> None:
    """Those of an official client before it, and those that an official client goes on from."""

    async def main() -> None:
        alone, container = {**TERMS, "partition_id": "0"}, azurite.make_container()
        for number, kind in enumerate((Official, EventHubConsumerClient, EventHubConsumerClient, Official)):
            await fill(served, 2, start=number * 2)
            async with (
                blobs(azurite, container) as store,
                Running(kind, served, alone, checkpoint_store=store) as running,
            ):
                await until(lambda: running.program.marked == 2, f"the events of turn {number}")
                assert seen(running) == [("0", str(number * 2)), ("0", str(number * 2 + 1))]

    asyncio.run(main())
