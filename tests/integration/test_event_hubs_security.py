"""Keys, tokens, TLS and WebSockets, with the official Python clients; and what a server without a key refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote_plus

import pytest
from azure.eventhub import EventData, TransportType
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from evenflow.amqp import types
from evenflow.amqp.performatives import ATTACH, DETACH, FLOW, TRANSFER
from evenflow.amqp.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, value_of
from evenflow.amqp.sections import sections as sections_of
from evenflow.amqp.types import described, list_, map_, string
from tests.integration.amqp_peer import Peer, condition_of
from tests.integration.certificates import make_certificate
from tests.integration.event_hub_clients import CLIENTS, AsyncClient, SyncClient, together
from tests.integration.event_hub_scene import Served, serving
from tests.integration.programs import evenflow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Client: TypeAlias = SyncClient | AsyncClient

pytestmark = pytest.mark.process

KEY = "a key that must not be shown"
CBS_ANSWERS = 1
RECEIVE = "homes/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def certificate(folder: Path) -> tuple[Path, Path]:
    return make_certificate(folder)


@pytest.fixture(scope="module")
def served(folder: Path, certificate: tuple[Path, Path]) -> Iterator[Served]:
    file, key = map(str, certificate)
    with serving(
        folder,
        "--hub",
        "homes:1",
        "--hub",
        "other:1",
        "--key",
        f"app={KEY}",
        "--certificate",
        file,
        "--certificate-key",
        key,
    ) as found:
        yield found


@pytest.fixture(params=CLIENTS, ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> type[Client]:
    found: type[Client] = request.param
    return found


def token(resource: str = "sb://localhost/homes", *, seconds: float = 600, key: str = KEY, name: str = "app") -> str:
    expires = str(int(time.time() + seconds))
    encoded = quote_plus(resource)
    signature = base64.b64encode(hmac.digest(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256))
    return f"SharedAccessSignature sr={encoded}&sig={quote_plus(signature)}&se={expires}&skn={name}"


def by_token(served: Served, text: str) -> str:
    return f"Endpoint=sb://localhost:{served.port};SharedAccessSignature={text};UseDevelopmentEmulator=true;EntityPath=homes"


def test_the_right_key_opens_and_others_do_not(served: Served, kind: type[Client]) -> None:
    def refused(connection_string: str) -> str:
        with pytest.raises((AuthenticationError, EventHubError)) as found:
            kind(connection_string).send_one(EventData("x"))
        return str(found.value)

    right = kind(served.connection_string(key=KEY, name="app"))
    right.send_one(EventData("x"))
    refusals = together(
        lambda: refused(served.connection_string(key="wrong", name="app")),
        lambda: refused(served.connection_string(key=KEY, name="nobody")),
        lambda: refused(by_token(served, token(seconds=-10))),
        lambda: refused(by_token(served, token("sb://localhost/other"))),
    )
    assert [text for text in refusals if KEY in text] == []
    kind(by_token(served, token())).send_one(EventData("by a token"))
    found = right.receive(2, partition_id="0", starting_position="-1")
    assert "by a token" in found.bodies


def test_tls_on_its_own_port(served: Served, kind: type[Client], certificate: tuple[Path, Path]) -> None:
    text = f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY};EntityPath=homes"
    endpoint = {
        "custom_endpoint_address": f"sb://localhost:{served.tls_port}",
        "connection_verify": str(certificate[0]),
    }
    client = kind(text, **endpoint)
    client.send_one(EventData("through TLS"))
    assert client.facts()[0]["partition_ids"] == ["0"]


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")
def test_websockets(served: Served, kind: type[Client]) -> None:
    client = kind(
        served.connection_string("other", key=KEY, name="app"),
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://localhost:{served.port}",
    )
    client.send([EventData("W" * 200_000)], partition_id="0")
    found = client.receive(1, partition_id="0", starting_position="-1", patience_s=10.0)
    assert found.bodies[0] == "W" * 200_000


def put_token(peer: Peer, text: str, audience: str = "sb://localhost/homes") -> int:
    """The status of the answer."""
    facts = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
    peer.transfer(
        described(PROPERTIES, list_([types.ulong(7)]))
        + described(APPLICATION_PROPERTIES, map_((string(name), string(value)) for name, value in facts.items()))
        + described(VALUE, string(text)),
        delivery_id=0,
        handle=0,
    )
    while True:
        code, _, payload = peer.hear()
        if code == TRANSFER:
            found = {section.code: value_of(payload, section) for section in sections_of(payload)}
            assert found[PROPERTIES][5] == 7, "the answer names its question"
            return int(found[APPLICATION_PROPERTIES]["status-code"])


@pytest.fixture
def peer(served: Served) -> Iterator[Peer]:
    """With a pair of links to `$cbs`."""
    with Peer(served.port) as found:
        found.open()
        found.begin()
        found.attach_sender("$cbs", 0)
        found.hear_of(FLOW)
        found.attach_receiver("$cbs", CBS_ANSWERS)
        found.hear_of(ATTACH)
        found.credit(10, CBS_ANSWERS)
        yield found


def test_a_link_needs_a_token_and_ends_with_it(peer: Peer) -> None:
    peer.attach_receiver(RECEIVE, 5)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:unauthorized-access"
    assert put_token(peer, token(seconds=2)) == 202
    peer.attach_receiver(RECEIVE, 5)
    assert peer.hear_of(ATTACH)[5] is not None
    handle, closed, error = peer.hear_of(DETACH)
    assert (handle, closed, condition_of(error)) == (5, True, "amqp:unauthorized-access")


def test_a_token_opens_what_it_is_for_and_nothing_beside_it(peer: Peer) -> None:
    assert put_token(peer, token()) == 202
    peer.attach_receiver(RECEIVE.replace("homes", "other"), 5)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:unauthorized-access"
    peer.attach_sender("other", 6)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:unauthorized-access"
    peer.attach_receiver(RECEIVE, 7)
    assert peer.hear_of(ATTACH)[5] is not None


def test_a_token_that_is_renewed_keeps_its_links(peer: Peer) -> None:
    assert put_token(peer, token(seconds=2)) == 202
    peer.attach_receiver(RECEIVE, 5)
    assert peer.hear_of(ATTACH)[5] is not None
    assert put_token(peer, token()) == 202
    peer.socket.settimeout(3.5)
    with pytest.raises(TimeoutError):
        peer.hear_of(DETACH)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no token",
        "SharedAccessSignature ",
        "SharedAccessSignature sr=a&sig=b&se=c",
        token(key="wrong"),
        token(name="nobody"),
        token(seconds=-5),
        token().replace("&se=", "&se=9"),
        token("sb://localhost/other"),
    ],
)
def test_a_token_that_does_not_hold_is_answered_401(peer: Peer, text: str) -> None:
    assert put_token(peer, text) == 401


def test_beyond_this_machine_a_key_is_demanded(tmp_path: Path) -> None:
    done = evenflow("hub", "serve", "data", "--host", "0.0.0.0", "--port", "0", folder=tmp_path)
    assert done.returncode == 1
    assert "--key" in done.stderr


def test_a_key_is_not_shown(served: Served) -> None:
    assert KEY not in str(served.facts)
    assert "SharedAccessKey=***" in served.facts["connection_string"]


def test_health_is_told_over_http(served: Served) -> None:
    assert served.health() == {
        "status": "ready",
        "hubs": ["homes", "other"],
        "connections": served.health()["connections"],
    }
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/elsewhere", timeout=10)
    with found.value:
        assert found.value.code == 404
