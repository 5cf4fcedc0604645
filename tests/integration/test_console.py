"""`evenflow console` as a program: what it serves to whom, its stream, and how it ends."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.integration.programs import PATIENCE_S, end, evenflow, next_line, started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.scene import Scene

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


def first_message(address: str, path: str) -> Any:
    """The first that a stream tells; it has no end."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, "the stream has ended"
        return json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


@pytest.fixture
def urls(scene: Scene) -> list[str]:
    scene.make_hub(2)
    scene.start_even("ada")
    return ["--store", scene.store_url, "--source", f"hub:{scene.hub}", "--port", "0", "--no-open"]


def test_it_says_where_it_is_streams_and_ends(scene: Scene, urls: list[str]) -> None:
    with started("console", *urls, "--group", "alerts", folder=scene.folder) as console:
        address = next_line(console).strip()
        assert address.startswith("http://127.0.0.1:")
        told = first_message(address, f"/api/stream?group={KEY}")
        # The first picture may be one of nothing yet.
        assert "now" in told["sections"] or told["sections"] == {}
        status, about = ask(address, "/api/about")
        assert (status, about["group"], about["allow_actions"]) == (200, "alerts", False)
        assert ask(address, "/api/about", Host="evil.example")[0] == 421
        code, out, err = end(console)
        assert (code, out) == (0, "")
        assert "Traceback" not in err


def test_a_stream_that_is_read_does_not_keep_it_from_ending(scene: Scene, urls: list[str]) -> None:
    with started("console", *urls, folder=scene.folder) as console:
        place = urlsplit(next_line(console).strip())
        with socket.create_connection((place.hostname, place.port), PATIENCE_S) as reader:
            reader.sendall(f"GET /api/stream?group={KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
            assert end(console)[0] == 0


def test_with_a_token_data_is_for_those_who_know_it(scene: Scene, urls: list[str]) -> None:
    with started("console", *urls, folder=scene.folder, EVENFLOW_CONSOLE_TOKEN=TOKEN) as console:
        address = next_line(console).strip()
        assert TOKEN not in address
        assert ask(address, "/api/about")[0] == 401
        assert ask(address, "/api/about", Authorization=f"Bearer {TOKEN}")[1]["knows_you"]
        _, _, err = end(console)
        assert TOKEN not in err


def test_actions_make_a_token_of_their_own(scene: Scene, urls: list[str]) -> None:
    with started("console", *urls, "--allow-actions", folder=scene.folder) as console:
        address, _, made = next_line(console).strip().partition("#token=")
        assert len(made) >= 24
        assert ask(address, "/api/about")[1]["knows_you"] is False
        assert ask(address, "/api/about", Authorization=f"Bearer {made}")[1]["knows_you"] is True
        assert end(console)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--host", "0.0.0.0"], 2, "a token is asked for"),
        (["--token", "short"], 2, "at least 12 characters"),
        (["--host", "203.0.113.9", "--token", TOKEN], 1, "Cannot serve on 203.0.113.9"),
        (["--store", "leases"], 1, "did you mean sqlite:leases?"),
        (["--store", "sqlite:nothing", "--port", "0"], 1, "There is no store at nothing"),
    ],
)
def test_what_it_refuses(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    given = arguments if "--store" in arguments else ["--store", "sqlite:leases", *arguments]
    done = evenflow("console", "--no-open", *given, folder=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
