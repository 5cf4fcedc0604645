"""`evenflow hub serve` and `evenflow container serve`: a wrong option ends them with a message."""

from __future__ import annotations

import resource
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.cli.serving import new_loop
from evenflow.emulators.eventhubs.faults import EventHubsFaultOptions
from tests.unit.cli.command import evenflow, message_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", autouse=True)
def _uvloop_is_loaded() -> None:
    """The first loop of libuv opens a pipe that stays until the process ends."""
    new_loop().close()


@pytest.fixture(autouse=True)
def _same_limits() -> Iterator[None]:
    """Servers raise the number of files that their process may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--hub", "a/b"], 2, "not a valid hub name"),
        (["--hub", "groups.json:2"], 2, "is reserved"),
        (["--hub", "x:0"], 2, "1 to"),
        (["--hub", "x:" + "9" * 5_000], 2, "declare a hub"),
        (["--certificate-key", "missing.pem"], 2, "no effect without"),
        (["--host", "." * 100, "--key", "a=b"], 1, "Cannot listen"),
        (["--host", "0.0.0.0"], 1, "--key NAME=KEY"),
        (["--config", "missing.json"], 1, "Cannot read missing.json"),
        (["--certificate", "missing.pem"], 1, "not a PEM certificate"),
        (["--key", "nameless"], 2, "NAME=KEY"),
        (["--fault", "flood=1"], 2, "unknown fault"),
        (["--fault", "busy=often"], 2, "is not a number"),
        (["--fault", "busy=2"], 2, "between 0 and 1"),
        (["--fault", "busy=nan"], 2, "between 0 and 1"),
        (["--fault", "drop=soon"], 2, "is not a duration"),
        (["--fault", "drop=0"], 2, "between a millisecond and a day"),
        (["--fault", "delay=nanms"], 2, "at most a day"),
        (["--fault", "delay=-5ms"], 2, "at most a day"),
        (["--fault", "throttle=nan"], 2, "at least 1"),
        (["--fault", "throttle=inf"], 2, "at least 1"),
        (["--fault", "throttle=-5"], 2, "at least 1"),
        (["--fault", "throttle=0.5"], 2, "at least 1"),
        (["--fault", "throttle=0"], 2, "at least 1"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_hub_is_not_served_with_wrong_options(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    refused(tmp_path, "hub", options, code, words)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--container", "orders"], 1, "does not declare a container"),
        (["--container", "shop/orders:customer"], 1, "does not declare a container"),
        (["--container", "shop/or?ders:/k"], 1, "is not a valid id"),
        (["--host", "0.0.0.0"], 1, "Set a private key (--key)"),
        (["--key", "not base64!"], 1, "base64"),
        (["--fault", "flood=1"], 2, "unknown fault"),
        (["--fault", "busy=often"], 2, "is not a number"),
        (["--fault", "gone=2"], 2, "between 0 and 1"),
        (["--certificate", "missing.pem"], 1, "not a PEM certificate"),
        (["--ranges", "0"], 2, "range"),
        (["--container", "shop/a:/k", "--container", "shop/a:/other"], 1, "has the partition key /k"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_container_is_not_served_with_wrong_options(
    tmp_path: Path, options: list[str], code: int, words: str
) -> None:
    refused(tmp_path, "container", options, code, words)


@pytest.mark.parametrize("what", ["hub", "container"])
def test_a_port_in_use_is_reported(tmp_path: Path, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused(tmp_path, what, ["--port", str(taken.getsockname()[1])], 1, "Choose another port")


def refused(folder: Path, what: str, options: list[str], code: int, words: str) -> None:
    done = evenflow(what, "serve", "data", "--port", "0", *options, folder=folder)
    assert (done.returncode, words in message_of(done)) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_faults_of_the_command_line_are_those_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []

    async def remember(plan: Any) -> None:
        plans.append(plan)

    monkeypatch.setattr(import_module("evenflow.cli.hub.serve"), "_serve", remember)
    faults = ["busy=0.25", "throttle=20", "drop=1s", "delay=100ms"]
    done = evenflow("hub", "serve", "data", *(word for fault in faults for word in ("--fault", fault)), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [plan.faults for plan in plans] == [EventHubsFaultOptions(busy=0.25, throttle=20.0, drop_s=1.0, delay_s=0.1)]
