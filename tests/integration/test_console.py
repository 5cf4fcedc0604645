"""`evenflow console` as a program: who may read what, its stream, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.integration.programs import PATIENCE_S, end, next_line, started
from tests.unit.cli.group_scene import leave_records, make_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TOKEN = "a-token-of-the-house"
KEY = "local/homes/alerts"


def ask(address: str, path: str, **headers: str) -> tuple[int, Any]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@contextmanager
def stream(address: str, path: str) -> Iterator[http.client.HTTPResponse]:
    """It has no end."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        yield connection.getresponse()
    finally:
        connection.close()


def first_message(answer: http.client.HTTPResponse) -> Any:
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return json.loads(line.removeprefix(b"data: "))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a group; that its instance runs is of no interest here."""
    make_hub(tmp_path)
    asyncio.run(leave_records(tmp_path))
    return tmp_path


URLS = ("--store", "sqlite:leases", "--source", "hub:homes", "--port", "0", "--no-open")


def test_it_prints_where_it_is_streams_and_ends_though_a_stream_is_read(folder: Path) -> None:
    with started("console", *URLS, "--group", "alerts", folder=folder) as console:
        address = next_line(console).strip()
        assert address.startswith("http://127.0.0.1:")
        status, about = ask(address, "/api/about")
        assert (status, about["group"], about["allow_actions"]) == (200, "alerts", False)
        assert ask(address, "/api/about", Host="evil.example")[0] == 421
        with stream(address, f"/api/stream?group={KEY}") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            first = first_message(answer)
            # The first picture may be one of nothing yet.
            assert "now" in first["sections"] or first["sections"] == {}
            code, out, err = end(console)
        assert (code, out) == (0, "")
        assert "Traceback" not in err


def test_with_a_token_data_is_for_those_who_know_it(folder: Path) -> None:
    with started("console", *URLS, folder=folder, EVENFLOW_CONSOLE_TOKEN=TOKEN) as console:
        address = next_line(console).strip()
        assert TOKEN not in address
        assert ask(address, "/api/about")[0] == 401
        assert ask(address, "/api/about", Authorization=f"Bearer {TOKEN}")[1]["knows_you"]
        _, _, err = end(console)
        assert TOKEN not in err


def test_actions_make_a_token_of_their_own(folder: Path) -> None:
    with started("console", *URLS, "--allow-actions", folder=folder) as console:
        address, _, made = next_line(console).strip().partition("#token=")
        assert len(made) >= 24
        assert ask(address, "/api/about")[1]["knows_you"] is False
        assert ask(address, "/api/about", Authorization=f"Bearer {made}")[1]["knows_you"] is True
        assert end(console)[0] == 0
