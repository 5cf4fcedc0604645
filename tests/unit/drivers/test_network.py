"""Why a server could not be reached: what drivers wrap becomes one wording."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

import pytest

from evenflow.drivers.network import has_no_account, host_and_port, unknown_option, why_unreached, with_account


def wrapped(cause: BaseException) -> Exception:
    try:
        raise RuntimeError("a driver's own words, with a secret") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ConnectionRefusedError(), "connection refused at h:1; is Azurite running there?"),
        (socket.gaierror(), "host name lookup failed for h:1"),
        (ssl.SSLCertVerificationError(), "certificate at h:1 is not trusted"),
        (ssl.SSLError("[SSL: WRONG_VERSION_NUMBER] wrong version number"), "h:1 does not speak TLS"),
        (ssl.SSLEOFError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"), "the connection to h:1 was closed"),
        (FileNotFoundError(), "socket not found for h:1"),
        (OSError("Network is unreachable"), "no route to h:1"),
        (TimeoutError(), "no answer from h:1"),
        (ConnectionResetError(), "was closed or the protocol does not match; check that Azurite listens there"),
        (Exception("kind: ConnectionRefused, message: 'Connection refused'"), "connection refused at h:1"),
    ],
)
def test_what_lies_behind_a_drivers_error_is_said_with_the_place(cause: BaseException, said: str) -> None:
    seen = why_unreached(wrapped(cause), "h:1", "Azurite")
    assert said in seen
    assert "secret" not in seen


def test_a_chain_of_causes_that_bites_its_tail_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "h:1" in why_unreached(one, "h:1", "Azurite")


@pytest.mark.parametrize(
    ("url", "shown"),
    [("http://h", "h:80"), ("https://me:secret@h/x", "h:443"), ("http://[::1]:9000/x", "[::1]:9000")],
)
def test_a_place_is_host_and_port(url: str, shown: str) -> None:
    assert host_and_port(url) == shown


@pytest.mark.parametrize(
    ("host", "nobodys"), [("127.0.0.1", True), ("[::1]", True), ("azurite", True), ("homes.blob.example", False)]
)
def test_an_address_or_a_short_name_belongs_to_no_account(host: str, nobodys: bool) -> None:
    assert has_no_account(urlsplit(f"http://{host}:1")) is nobodys
    expected = f"http://{host}:1/homes" if nobodys else f"http://{host}:1"
    assert with_account(f"http://{host}:1", "homes") == expected
    assert with_account(f"http://{host}:1/other", "homes") == f"http://{host}:1/other"


def test_an_option_that_was_nearly_right_is_named_and_so_are_all() -> None:
    assert unknown_option("timout_s", ["prefix", "timeout_s"]) == (
        "there is no option 'timout_s' (did you mean timeout_s?); the options are prefix, timeout_s"
    )
    assert "mean" not in unknown_option("zzz", ["prefix"])
