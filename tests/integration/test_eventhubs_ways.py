"""All the ways into an event hub that the official client has, through the source; and servers that give trouble."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from evenflow import Event, Hub, Processor
from evenflow.errors import Misconfigured
from evenflow.sources.eventhubs.client import ROUND_MOST, HubClient
from evenflow.sources.eventhubs.source import EventHubsSource, from_url
from evenflow.stores.memory import MemoryStore
from evenflow.testing import event_hub
from tests.integration.certificates import make_certificate
from tests.integration.event_hub_scene import Served, serving
from tests.integration.test_event_hubs_security import token
from tests.servers.processes import LOOPBACK
from tests.servers.proxy import HttpProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from evenflow.testing import EventHub

pytestmark = pytest.mark.process

KEY = "a key that must not be shown"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("ways"))


@pytest.fixture(scope="module")
def served(certificate: tuple[Path, Path]) -> Iterator[Served]:
    file, key = certificate
    options = ("--hub", "homes:2", "--key", f"app={KEY}", "--certificate", str(file), "--certificate-key", str(key))
    with serving(file.parent, *options) as found:
        yield found


async def there_and_back(source: EventHubsSource) -> None:
    """Send, and read it again: as a source that belongs to a group, with an owner level."""
    try:
        joined = source.of_group("$Default")
        starts = {one.id: await joined.resolve(one.id, "latest") for one in await joined.partitions()}
        await source.send([Event(b"over there", "home-7", {"n": 7})])
        bounds = await joined.bounds(list(starts))
        (name,) = [one for one, found in bounds.items() if found.newest != starts[one]]
        reader = await joined.open(name, starts[name], epoch=1 << 33)
        (event,) = (await reader.read(10, 1 << 20, PATIENCE_S)).events
        assert (event.body, event.key, event.properties) == (b"over there", "home-7", {"n": 7})
        await reader.aclose()
    finally:
        await source.aclose()


WAYS: dict[str, Callable[[Served, Path], dict[str, Any]]] = {
    "connection string": lambda served, file: {"connection_string": served.connection_string(key=KEY, name="app")},
    "a named key": lambda served, file: {
        "namespace": f"localhost:{served.port}",
        "hub": "homes",
        "credential": AzureNamedKeyCredential("app", KEY),
        "use_tls": False,
    },
    "a signature": lambda served, file: {
        "namespace": f"localhost:{served.port}",
        "hub": "homes",
        "credential": AzureSasCredential(token(f"sb://localhost:{served.port}/homes", key=KEY)),
        "use_tls": False,
    },
    "TLS": lambda served, file: {
        "namespace": "localhost",
        "hub": "homes",
        "credential": AzureNamedKeyCredential("app", KEY),
        "transport_type": "amqp",
        "custom_endpoint_address": f"sb://localhost:{served.tls_port}",
        "connection_verify": str(file),
    },
    "WebSockets": lambda served, file: {
        "connection_string": served.connection_string(key=KEY, name="app"),
        "transport_type": "websocket",
        "custom_endpoint_address": f"sb://localhost:{served.port}",
    },
    "WebSockets with TLS": lambda served, file: {
        "namespace": "localhost",
        "hub": "homes",
        "credential": AzureNamedKeyCredential("app", KEY),
        "transport_type": "websocket",
        "custom_endpoint_address": f"sb://localhost:{served.tls_port}",
        "connection_verify": str(file),
    },
}


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")
def test_all_ways_in(served: Served, certificate: tuple[Path, Path]) -> None:
    for name, options in WAYS.items():
        try:
            asyncio.run(there_and_back(EventHubsSource(**options(served, certificate[0]))))
        except Exception as error:
            raise AssertionError(f"there is no way in by {name}") from error


@pytest.mark.filterwarnings("ignore::DeprecationWarning:azure")
def test_through_an_http_proxy(served: Served, certificate: tuple[Path, Path]) -> None:
    with HttpProxy() as proxy:
        url = (
            f"eventhubs://app@localhost/homes?key_env=KEY_OF_APP&transport_type=websocket"
            f"&custom_endpoint_address=sb://localhost:{served.tls_port}&connection_verify={certificate[0]}"
            f"&http_proxy=http://me:secret@{LOOPBACK}:{proxy.port}"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KEY_OF_APP", KEY)
            source = from_url(url)
        asyncio.run(there_and_back(source))
        assert proxy.heads
        for head in proxy.heads:
            assert head.startswith(f"CONNECT localhost:{served.tls_port} ")
            assert "proxy-authorization: basic" in head.lower()


AZ = """#!/bin/sh
echo '{"accessToken":"a.b.c","expires_on":4000000000,"expiresOn":"2096-10-02 07:06:40.000000","tokenType":"Bearer"}'
"""


def test_without_a_key_it_is_what_this_machine_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """azure-identity itself, with a stand-in for the command that it asks. (A server without keys takes any token.)"""
    (tmp_path / "az").write_text(AZ)
    (tmp_path / "az").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
    with serving(tmp_path, "--hub", "homes:2") as free:
        asyncio.run(there_and_back(from_url(f"eventhubs://localhost:{free.port}/homes?use_tls=false")))


def test_all_partitions_are_asked_about_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    ask = HubClient._send_requests

    async def counted(client: HubClient, questions: list[Any]) -> None:
        rounds.append(len(questions))
        await ask(client, questions)

    monkeypatch.setattr(HubClient, "_send_requests", counted)

    async def main(served: EventHub) -> None:
        source = EventHubsSource(connection_string=served.connection_string)
        names = [one.id for one in await source.partitions()]  # opens the connection
        await source.send([Event(b"one", "home-7")])
        rounds.clear()
        bounds = await source.bounds(names)
        assert list(bounds) == names
        # The first question does not wait for others; those that come meanwhile go together, up to a round of them.
        assert rounds == [1, ROUND_MOST, len(names) - 1 - ROUND_MOST]
        assert sum(one.newest_at is not None for one in bounds.values()) == 1

        impatient = asyncio.create_task(source.bounds(names))
        patient = asyncio.create_task(source.bounds(names))
        asked = len(rounds)
        while len(rounds) == asked:  # noqa: ASYNC110 - the client asks
            await asyncio.sleep(0)
        impatient.cancel()
        assert await patient == bounds, "a caller that gives up takes no answer away from another"
        with pytest.raises(Misconfigured, match="partition 99"):
            await source.bounds(["0", "99"])
        assert await source.bounds(names) == bounds
        await source.aclose()

    with event_hub(40) as served:
        asyncio.run(main(served))


def test_a_server_that_is_slow_and_often_busy_loses_nothing(tmp_path: Path) -> None:
    """What a connection that is cut costs: see test_eventhubs_source."""
    with serving(tmp_path, "--hub", "homes:2", "--fault", "busy=0.2", "--fault", "delay=30ms") as served:

        async def main() -> None:
            source = from_url(f"eventhubs://any:any@localhost:{served.port}/homes?use_tls=false")
            processor = Processor(source, MemoryStore(), "$Default", heartbeat_s=0.3, ttl_s=20.0)
            seen: list[bytes] = []
            processor.on_event(_keep(seen))
            async with asyncio.timeout(PATIENCE_S), Hub(tmp_path / "data" / "homes") as hub, processor:
                for number in range(0, 50, 10):
                    await hub.send([Event(b"%d" % one, "home-7") for one in range(number, number + 10)])
                    while len(seen) < number + 10:  # noqa: ASYNC110 - it comes from the handler
                        await asyncio.sleep(0.01)
            await source.aclose()
            assert seen == [b"%d" % number for number in range(50)]

        asyncio.run(main())


def _keep(seen: list[bytes]) -> Callable[..., Any]:
    async def handle(event: Event, partition: Any) -> None:
        seen.append(event.body)

    return handle
