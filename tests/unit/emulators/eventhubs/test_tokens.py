"""Shared access signatures at `$cbs`: what a token opens, for how long, and which tokens are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest

from evenflow.amqp import types
from evenflow.amqp.performatives import ATTACH, DETACH, FLOW, TRANSFER
from evenflow.amqp.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections, value_of
from evenflow.amqp.types import NULL, TRUE, described, list_, map_, string, uint
from evenflow.emulators.eventhubs import claims, service
from tests.integration.amqp_peer import condition_of
from tests.unit.emulators.eventhubs.memory_server import memory_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.emulators.eventhubs.memory_server import MemoryClient, MemoryServer

KEY = "a key that must not be shown"
CBS_ANSWERS = 1
RECEIVE = "homes/ConsumerGroups/$Default/Partitions/0"


def token(resource: str = "sb://localhost/homes", *, seconds: float = 600, key: str = KEY, name: str = "app") -> str:
    """Valid for so many seconds of the real clock."""
    expires = str(int(time.time() + seconds))
    encoded = quote_plus(resource)
    signature = base64.b64encode(hmac.digest(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256))
    return f"SharedAccessSignature sr={encoded}&sig={quote_plus(signature)}&se={expires}&skn={name}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    with memory_server(tmp_path, {"homes": 1, "other": 1}, keys={"app": KEY}) as found:
        yield found


@pytest.fixture
def peer(server: MemoryServer) -> Iterator[MemoryClient]:
    """With a pair of links to `$cbs`."""
    with server.client() as found:
        found.open()
        found.begin()
        found.attach_sender("$cbs", 0)
        found.hear_of(FLOW)
        found.attach_receiver("$cbs", CBS_ANSWERS)
        found.hear_of(ATTACH)
        found.credit(10, CBS_ANSWERS)
        yield found


class Expiry:
    """Lets tokens get older, by the wall clock and by the timers of the server."""

    def __init__(self, server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._passed_s = 0.0
        for module in (claims, service):
            monkeypatch.setattr(module, "now_s", lambda: time.time() + self._passed_s)

    def pass_s(self, seconds: float) -> None:
        self._passed_s += seconds
        self._server.pass_s(seconds)


@pytest.fixture
def expiry(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> Expiry:
    return Expiry(server, monkeypatch)


def put_token(peer: MemoryClient, text: str, audience: str = "sb://localhost/homes") -> int:
    """The status of the answer."""
    facts = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
    peer.transfer(
        described(PROPERTIES, list_([types.ulong(7)]))
        + described(APPLICATION_PROPERTIES, map_((string(name), string(value)) for name, value in facts.items()))
        + described(VALUE, string(text)),
    )
    while True:
        code, _, payload = peer.hear()
        if code == TRANSFER:
            found = {section.code: value_of(payload, section) for section in sections(payload)}
            assert found[PROPERTIES][5] == 7, "the answer names its question"
            return int(found[APPLICATION_PROPERTIES]["status-code"])


def test_a_link_needs_a_token_and_ends_with_it(peer: MemoryClient, expiry: Expiry) -> None:
    peer.attach_receiver(RECEIVE, 5)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:unauthorized-access"
    assert put_token(peer, token(seconds=100)) == 202
    peer.attach_receiver(RECEIVE, 5)
    assert peer.hear_of(ATTACH)[5] is not None
    expiry.pass_s(101)
    handle, closed, error = peer.hear_of(DETACH)
    assert (handle, closed, condition_of(error)) == (5, True, "amqp:unauthorized-access")


def test_a_renewed_token_keeps_its_links(peer: MemoryClient, expiry: Expiry) -> None:
    assert put_token(peer, token(seconds=100)) == 202
    peer.attach_receiver(RECEIVE, 5)
    assert peer.hear_of(ATTACH)[5] is not None
    assert put_token(peer, token(seconds=200)) == 202
    expiry.pass_s(101)
    peer.say(FLOW, uint(0), uint(10), uint(0), uint(10), NULL, NULL, NULL, NULL, NULL, TRUE)
    assert peer.hear()[0] == FLOW, "it has nothing else to say"


def test_a_token_opens_what_it_is_for_and_nothing_beside_it(peer: MemoryClient) -> None:
    assert put_token(peer, token()) == 202
    peer.attach_receiver(RECEIVE.replace("homes", "other"), 5)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:unauthorized-access"
    peer.attach_sender("other", 6)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:unauthorized-access"
    peer.attach_receiver(RECEIVE, 7)
    assert peer.hear_of(ATTACH)[5] is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no token",
        "SharedAccessSignature ",
        "SharedAccessSignature sr=a&sig=b&se=c",
        token(key="wrong"),
        token(name="missing"),
        token(seconds=-5),
        token().replace("&se=", "&se=9"),
        token("sb://localhost/other"),
    ],
    ids=["empty", "words", "no fields", "no key", "wrong key", "unknown key", "expired", "changed", "of another hub"],
)
def test_an_invalid_token_is_answered_401(peer: MemoryClient, text: str) -> None:
    assert put_token(peer, text) == 401
