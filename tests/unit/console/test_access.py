"""Who may come in: tokens, names, other sites."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from evenflow.console.access import LOOPBACK_NAMES, ConsoleAccess, is_cross_site, is_loopback

TOKEN = "a-token-of-the-house"


@pytest.mark.parametrize(
    ("given", "is_known"),
    [
        (f"Bearer {TOKEN}", True),
        (f"Bearer {TOKEN}x", False),
        ("Bearer ", False),
        (TOKEN, False),
        ("Bearer ünknown", False),
        ("", False),
    ],
)
def test_a_token_is_right_or_wrong(given: str, is_known: bool) -> None:
    assert ConsoleAccess(token=TOKEN).knows(Headers({"authorization": given})) is is_known


def test_without_a_token_no_client_is_known() -> None:
    assert not ConsoleAccess().knows(Headers({"authorization": "Bearer "}))


def test_the_token_is_not_shown() -> None:
    access = ConsoleAccess(token=TOKEN)
    assert TOKEN not in repr(access)
    assert TOKEN not in str(access)
    assert TOKEN not in str(access.__rich_repr__())


@pytest.mark.parametrize(
    ("host", "is_addressed"),
    [
        ("localhost:8642", True),
        ("127.0.0.1", True),
        ("[::1]:99", True),
        ("LOCALHOST", True),
        ("evil.example:8642", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_on_loopback_only_our_own_names_are_answered(host: str, is_addressed: bool) -> None:
    assert ConsoleAccess(hosts=LOOPBACK_NAMES).is_addressed(Headers({"host": host})) is is_addressed


@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"origin": "http://localhost:1", "host": "localhost:1"}, False),
        ({"origin": "http://evil.example", "host": "localhost:1"}, True),
        ({"origin": "null", "host": "localhost:1"}, True),
        ({}, False),
    ],
)
def test_another_sites_page_is_noticed(headers: dict[str, str], elsewhere: bool) -> None:
    assert is_cross_site(Headers(headers)) is elsewhere


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False), ("", False),
    ],
)  # fmt: skip
def test_loopback_is_known_by_its_address(host: str, inside: bool) -> None:
    assert is_loopback(host) is inside
