"""URLs of event hubs, and that no message shows a secret."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from azure.eventhub import TransportType

from evenflow.errors import Misconfigured
from evenflow.sources.eventhubs.options import VARIABLE, EventHubsAccess, arguments_of
from evenflow.sources.eventhubs.source import EventHubsSource, from_url
from evenflow.urls import hide_secrets, open_dead_letters, open_source

HOST = "homes.servicebus.windows.net"
KEY = "c2VjcmV0LWtleQ=="
CONNECTION_STRING = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=listen;SharedAccessKey={KEY}"


def client_of(source: EventHubsSource) -> Any:
    return source._connections.client("$Default")


def test_a_namespace_and_a_hub_are_enough() -> None:
    assert arguments_of(f"eventhubs://{HOST}/sensors") == {"namespace": HOST, "hub": "sensors"}


def test_a_key_may_stand_before_the_namespace_and_is_escaped() -> None:
    found = arguments_of(f"eventhubs://listen:a%2Fb%3D%3D@{HOST}:5671/sensors")
    assert found["namespace"] == f"{HOST}:5671"
    assert found["credential"].named_key == ("listen", "a/b==")


def test_an_address_with_colons_keeps_its_brackets() -> None:
    assert arguments_of("eventhubs://listen:k@[::1]:5672/sensors")["namespace"] == "[::1]:5672"


def test_a_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_KEY", "a/b==")
    found = arguments_of(f"eventhubs://listen@{HOST}/sensors?key_env=LISTEN_KEY")
    assert found["credential"].named_key == ("listen", "a/b==")


def test_options_have_the_names_of_the_official_client() -> None:
    url = (
        f"eventhubs://{HOST}/sensors?consumer_group=alerts&prefetch=1000&transport_type=websocket&use_tls=false"
        "&http_proxy=http://me:pass@proxy:3128&custom_endpoint_address=sb://gateway:8443&auth_timeout=5"
    )
    assert arguments_of(url) == {
        "namespace": HOST,
        "hub": "sensors",
        "consumer_group": "alerts",
        "prefetch": 1000,
        "transport_type": "websocket",
        "use_tls": False,
        "http_proxy": {"proxy_hostname": "http://proxy", "proxy_port": 3128, "username": "me", "password": "pass"},
        "custom_endpoint_address": "sb://gateway:8443",
        "auth_timeout": 5.0,
    }


def test_options_reach_the_official_client() -> None:
    source = from_url(
        f"eventhubs://listen:{KEY}@{HOST}/sensors?transport_type=websocket&socket_timeout=7&user_agent=homes"
    )
    config = client_of(source)._config
    assert config.transport_type is TransportType.AmqpOverWebsocket
    assert (config.socket_timeout, config.user_agent) == (7.0, "homes")


def test_a_url_without_a_namespace_means_the_connection_string_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, CONNECTION_STRING)
    monkeypatch.setenv("OTHER", f"{CONNECTION_STRING};EntityPath=doors")
    assert repr(open_source("eventhubs:///sensors")).startswith(f"<EventHubsSource eventhubs://{HOST}/sensors")
    assert repr(open_source("eventhubs://?connection_string_env=OTHER")).startswith(
        f"<EventHubsSource eventhubs://{HOST}/doors"
    )


def test_the_emulators_connection_string_needs_no_tls() -> None:
    text = "Endpoint=sb://localhost:5677;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"
    client = client_of(EventHubsSource(hub="sensors", connection_string=text))
    assert client._config.use_tls is False
    assert client.namespace == "localhost:5677"


def test_a_source_of_a_group_reads_as_its_consumer_group_unless_another_is_named() -> None:
    plain = EventHubsSource(hub="sensors", connection_string=CONNECTION_STRING)
    assert "as 'alerts'" in repr(plain.of_group("alerts"))
    assert "as '$Default'" in repr(plain)
    named = EventHubsSource(hub="sensors", connection_string=CONNECTION_STRING, consumer_group="shared")
    assert "as 'shared'" in repr(named.of_group("alerts"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("eventhubs:sensors", "write eventhubs://NAME"),
        (f"eventhubs://{HOST}", "names no hub"),
        (f"eventhubs://{HOST}/a/b", "not a hub's name"),
        (f"eventhubs://{HOST}/sensors?prefech=3", "unknown option 'prefech'"),
        (f"eventhubs://{HOST}/sensors?prefetch=0", "whole number"),
        (f"eventhubs://{HOST}/sensors?use_tls=maybe", "true or false"),
        (f"eventhubs://{HOST}/sensors?auth_timeout=-1", "number of seconds"),
        (f"eventhubs://{HOST}/sensors?http_proxy=me:secret@", "http://"),
        (f"eventhubs://{HOST}/sensors?connection_string_env=NAME", "Remove one of them"),
        (f"eventhubs://listen@{HOST}/sensors", "two parts"),
        (f"eventhubs://listen:a/secret@{HOST}/sensors", "eventhubs"),
        (f"eventhubs://{HOST}/sensors?key_env=LISTEN_KEY", "needs the policy"),
        ("eventhubs:///sensors?connection_string_env=NOT_SET", "NOT_SET is not set"),
        (f"eventhubs://listen:{KEY}@{HOST}/sensors?transport_type=pigeon", "'amqp' or 'websocket'"),
        (f"eventhubs://listen:{KEY}@{HOST}/sensors?connection_verify=/not/there.pem", "not a file of certificates"),
    ],
)
def test_the_error_of_a_wrong_url_shows_a_right_one(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as caught:
        from_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"connection_string": f"Endpoint={HOST};SharedAccessKeyName=listen;SharedAccessKey={KEY}"},
        {"connection_string": f"Endpoint=sb://{HOST}/;SharedAccessKey={KEY}"},
        {"connection_string": CONNECTION_STRING},  # it names no hub
        {"connection_string": f"{CONNECTION_STRING};;SharedAccessKey={KEY}"},
        {"connection_string": CONNECTION_STRING, "credential": object()},
        {"namespace": HOST, "hub": "sensors", "connection_string": CONNECTION_STRING},
        {"hub": "sensors"},
        {"hub": "sensors", "connection_string": CONNECTION_STRING, "prefetch": 0},
        {"hub": "sensors", "connection_string": CONNECTION_STRING, "retries": 7},
    ],
)
def test_contradicting_arguments_are_refused_without_showing_a_key(given: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="eventhubs: ") as caught:
        EventHubsSource(**given)
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_no_secret_is_in_a_repr_or_in_a_url_that_is_shown() -> None:
    url = f"eventhubs://listen:{KEY}@{HOST}/sensors?http_proxy=http://me:pass@proxy:3128"
    assert hide_secrets(url) == f"eventhubs://{HOST}/sensors"
    source = from_url(url)
    assert KEY not in repr(source)
    assert KEY not in repr(vars(source))
    assert KEY not in repr(EventHubsAccess(hub="sensors", connection_string=CONNECTION_STRING))


def test_dead_letters_may_go_to_an_event_hub() -> None:
    dead_letters = open_dead_letters(f"eventhubs://listen:{KEY}@{HOST}/dead")
    assert type(dead_letters).__name__ == "HubDeadLetters"
