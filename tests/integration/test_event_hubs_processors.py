"""The official processors of Python and of JavaScript, with their blob checkpoint stores on Azurite, share a group on
the local Event Hubs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from evenflow.stores.azblob.options import EMULATOR, EMULATOR_KEY
from tests.integration.certificates import make_certificate
from tests.integration.event_hub_scene import serving
from tests.servers.azurite_fixtures import azurite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.azurite import Azurite

__all__ = ["azurite"]

pytestmark = pytest.mark.process

NODE = Path(__file__).parent.parent / "node"
PATIENCE_S = 60.0
PARTITIONS = ["0", "1", "2", "3"]
KEY = "SharedAccessKeyName=any;SharedAccessKey=any;EntityPath=homes"


class JavaScript:
    """What the other processor says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.owned: set[str] = set()
        self.seen: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fact = json.loads(line)
            if "opened" in fact:
                self.owned.add(fact["opened"])
            elif "closed" in fact:
                self.owned.discard(fact["closed"])
            elif "error" in fact:
                self.errors.append(fact["error"])
            else:
                self.seen.append((fact["partition"], fact["body"]))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0
        self._thread.join(PATIENCE_S)


@contextmanager
def javascript(azurite: Azurite, container: str, port: int, certificate: Path) -> Iterator[JavaScript]:
    where = [f"Endpoint=sb://localhost:{port};{KEY}", "alerts", azurite.endpoint(), EMULATOR, EMULATOR_KEY, container]
    with subprocess.Popen(
        ["node", "event_processor.mjs", *where],
        cwd=NODE,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield JavaScript(process)
        finally:
            process.kill()


async def until(look: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline_s, f"waited in vain for {what}"
        await asyncio.sleep(0.05)


def test_processors_of_two_languages_share_a_group(azurite: Azurite, tmp_path: Path) -> None:
    container = azurite.make_container()
    certificate, key = make_certificate(tmp_path)
    options = ["--certificate", str(certificate), "--certificate-key", str(key)]
    # Through TLS, both call the namespace localhost, without a port; so they find each other's blobs.
    with serving(tmp_path, "--hub", "homes:4:alerts", *options) as served:
        endpoint = {
            "custom_endpoint_address": f"sb://localhost:{served.tls_port}",
            "connection_verify": str(certificate),
        }
        text = f"Endpoint=sb://localhost;{KEY}"
        asyncio.run(share(azurite, container, served.tls_port, certificate, text, endpoint))


async def share(
    azurite: Azurite, container: str, port: int, certificate: Path, text: str, endpoint: dict[str, Any]
) -> None:
    owned: set[str] = set()
    seen: list[tuple[str, str]] = []

    async def on_event(partition: Any, event: Any) -> None:
        seen.append((partition.partition_id, event.body_as_str()))
        await partition.update_checkpoint(event)

    async def on_open(partition: Any) -> None:
        owned.add(partition.partition_id)

    async def on_close(partition: Any, reason: Any) -> None:
        owned.discard(partition.partition_id)

    store = BlobCheckpointStore.from_connection_string(azurite.connection_string, container)
    consumer = EventHubConsumerClient.from_connection_string(
        text, "alerts", checkpoint_store=store, load_balancing_interval=1, **endpoint
    )
    producer = EventHubProducerClient.from_connection_string(text, **endpoint)

    async def send(word: str) -> list[tuple[str, str]]:
        for partition in PARTITIONS:
            await producer.send_batch([EventData(f"{word} {n}") for n in range(3)], partition_id=partition)
        return [(partition, f"{word} {n}") for partition in PARTITIONS for n in range(3)]

    async with store, consumer, producer:
        task = asyncio.create_task(
            consumer.receive(
                on_event, on_partition_initialize=on_open, on_partition_close=on_close, starting_position="-1"
            )
        )
        alone = await send("alone")
        await until(lambda: set(alone) <= set(seen), "Python alone")
        with javascript(azurite, container, port, certificate) as other:
            await until(lambda: len(other.owned) == 2 and len(owned) == 2, "two partitions each")
            assert other.owned | owned == set(PARTITIONS)
            together = await send("together")
            await until(lambda: set(together) <= {*seen, *other.seen}, "both together")
            assert {partition for partition, body in other.seen if body == "together 2"} == other.owned
            assert [body for _, body in other.seen if body.startswith("alone")] == [], "these had checkpoints"
            await asyncio.to_thread(other.stop)
        await until(lambda: owned == set(PARTITIONS), "Python alone again")
        again = await send("again")
        await until(lambda: set(again) <= set(seen), "all by Python")
        assert other.errors == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
