"""Keys, tokens, TLS and WebSockets, with the official Python clients; and what a server without a key refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote_plus

import pytest
from azure.eventhub import EventData, TransportType
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from tests.integration.certificates import make_certificate
from tests.integration.event_hub_clients import CLIENTS, AsyncClient, SyncClient, together
from tests.integration.event_hub_scene import Served, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Client: TypeAlias = SyncClient | AsyncClient

pytestmark = pytest.mark.process

KEY = "a key that must not be shown"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def certificate(folder: Path) -> tuple[Path, Path]:
    return make_certificate(folder)


@pytest.fixture(scope="module")
def served(folder: Path, certificate: tuple[Path, Path]) -> Iterator[Served]:
    file, key = map(str, certificate)
    hubs = [word for hub in ("homes:1", "other:1", "tls:1", "web:2") for word in ("--hub", hub)]
    with serving(folder, *hubs, "--key", f"app={KEY}", "--certificate", file, "--certificate-key", key) as found:
        yield found


def token(resource: str = "sb://localhost/homes", *, seconds: float = 600, key: str = KEY, name: str = "app") -> str:
    expires = str(int(time.time() + seconds))
    encoded = quote_plus(resource)
    signature = base64.b64encode(hmac.digest(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256))
    return f"SharedAccessSignature sr={encoded}&sig={quote_plus(signature)}&se={expires}&skn={name}"


def by_token(served: Served, text: str) -> str:
    return f"Endpoint=sb://localhost:{served.port};SharedAccessSignature={text};UseDevelopmentEmulator=true;EntityPath=homes"


def with_both(use: Callable[[type[Client]], None]) -> None:
    """The sync and the async client, at the same time."""
    together(*(partial(use, kind) for kind in CLIENTS))


def test_the_right_key_opens_and_others_do_not(served: Served) -> None:
    def use(kind: type[Client]) -> None:
        def refused(connection_string: str) -> str:
            with pytest.raises((AuthenticationError, EventHubError)) as found:
                kind(connection_string).send_one(EventData("x"))
            return str(found.value)

        refusals = together(
            lambda: refused(served.connection_string(key="wrong", name="app")),
            lambda: refused(served.connection_string(key=KEY, name="nobody")),
            lambda: refused(by_token(served, token(seconds=-10))),
            lambda: refused(by_token(served, token("sb://localhost/other"))),
        )
        assert [text for text in refusals if KEY in text] == []
        kind(by_token(served, token())).send_one(EventData("by a token"))
        right = kind(served.connection_string(key=KEY, name="app"))
        right.send_one(EventData("by a key"))
        found = right.receive(4, partition_id="0", starting_position="-1")
        assert sorted(found.bodies) == ["by a key", "by a key", "by a token", "by a token"]

    with_both(use)


def test_tls_on_its_own_port(served: Served, certificate: tuple[Path, Path]) -> None:
    def use(kind: type[Client]) -> None:
        text = f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY};EntityPath=tls"
        endpoint = {
            "custom_endpoint_address": f"sb://localhost:{served.tls_port}",
            "connection_verify": str(certificate[0]),
        }
        client = kind(text, **endpoint)
        client.send_one(EventData("through TLS"))
        assert client.facts()[0]["partition_ids"] == ["0"]

    with_both(use)


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")
def test_websockets(served: Served) -> None:
    def use(kind: type[Client]) -> None:
        client = kind(
            served.connection_string("web", key=KEY, name="app"),
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"sb://localhost:{served.port}",
        )
        partition = str(CLIENTS.index(kind))
        client.send([EventData("W" * 200_000)], partition_id=partition)
        found = client.receive(1, partition_id=partition, starting_position="-1")
        assert found.bodies == ["W" * 200_000]

    with_both(use)


def test_a_key_is_not_shown(served: Served) -> None:
    assert KEY not in str(served.facts)
    assert "SharedAccessKey=***" in served.facts["connection_string"]
    health = served.health()
    assert health == {"status": "ready", "hubs": ["homes", "other", "tls", "web"], "connections": health["connections"]}
