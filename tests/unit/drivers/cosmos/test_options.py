"""Where a container of Cosmos DB is, from a URL, and that no secret is shown."""

from __future__ import annotations

import pytest

from evenflow.drivers.cosmos.options import EMULATOR_KEY, Address, Purpose, address_of
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY as SERVED_KEY
from evenflow.errors import Misconfigured, SourceUnavailable

FEED = Purpose("source", "cosmos", SourceUnavailable, 10.0, ("mode",))
KEY = "c2VjcmV0+/=="


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COSMOS_KEY", "COSMOS_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)


def found(url: str) -> Address:
    return address_of(url, FEED)[0]


def test_an_account_is_reached_by_https_and_with_an_identity() -> None:
    address, own = address_of("cosmos://shop.documents.azure.com/sales/orders%20new?mode=all", FEED)
    assert (address.endpoint, address.database, address.container) == (
        "https://shop.documents.azure.com:443/",
        "sales",
        "orders new",
    )
    assert (address.credential, address.is_local, own) == (None, False, {"mode": "all"})
    assert str(address) == "cosmos://shop.documents.azure.com/sales/orders new"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_server_on_this_machine_speaks_plain_http_and_has_the_emulators_key(host: str) -> None:
    address = found(f"cosmos://{host}:8081/d/c")
    assert (address.endpoint, address.credential, address.is_local) == (f"http://{host}:8081/", EMULATOR_KEY, True)
    assert found(f"cosmos://{host}:8081/d/c?tls=on").endpoint == f"https://{host}:8081/"
    assert EMULATOR_KEY == SERVED_KEY


def test_keys_come_by_option_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(f"cosmos://h/d/c?key={KEY}").credential == KEY
    monkeypatch.setenv("THE_KEY", KEY)
    assert found("cosmos://h/d/c?key_env=THE_KEY").credential == KEY
    monkeypatch.setenv("COSMOS_KEY", KEY)
    assert found("cosmos://h/d/c").credential == KEY
    monkeypatch.setenv("COSMOS_CONNECTION_STRING", f"AccountEndpoint=https://h:443/;AccountKey={KEY};")
    address = found("cosmos:///d/c")
    assert (address.endpoint, address.credential) == ("https://h:443/", KEY)


def test_other_options() -> None:
    address = found("cosmos://h/d/c?tls=unverified&preferred_locations=West%20Europe,North%20Europe")
    assert (address.is_verified, address.preferred_locations) == (False, ("West Europe", "North Europe"))
    assert found("cosmos://h:8082/d/c?tls=off").endpoint == "http://h:8082/"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("cosmos://h/d", "one database and one container"),
        ("cosmos://h/d/c/e", "one database and one container"),
        ("cosmos://h//c", "one database and one container"),
        ("cosmos://h/d/c%2Fe", "not a valid name of a container"),
        ("cosmos://h/d/c?tls=maybe", "on, off"),
        ("cosmos://h/d/c?tsl=on", "did you mean tls"),
        ("cosmos://:secret@h/d/c", "keys before the host are not supported"),
        ("cosmos://h/d/c?key=secret!", "not base64"),
        ("cosmos://h/d/c?key_env=NOT_THERE", "NOT_THERE"),
        ("cosmos:///d/c", "COSMOS_CONNECTION_STRING"),
        ("cosmos://h/d/c?connection_string_env=X", "names the account"),
        ("cosmos://h:port/d/c", "URL is invalid"),
    ],
)
def test_what_makes_no_sense_is_reported_without_secrets(url: str, says: str) -> None:
    with pytest.raises(Misconfigured, match=says) as caught:
        address_of(url, FEED)
    assert "secret" not in str(caught.value)
    assert "cosmos://HOST" in str(caught.value)


def test_a_broken_connection_string_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSMOS_CONNECTION_STRING", f"AccountEndpoint=;AccountKey={KEY}")
    with pytest.raises(Misconfigured, match="AccountEndpoint") as caught:
        found("cosmos:///d/c")
    assert KEY not in str(caught.value)


def test_a_key_is_in_no_repr() -> None:
    address = found(f"cosmos://h/d/c?key={KEY}")
    assert KEY not in f"{address!r} {address}"
