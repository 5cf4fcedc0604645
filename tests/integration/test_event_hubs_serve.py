"""`evenflow hub serve` as a program: its first line, its end, its declarations, and the lock on its folder."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

from evenflow.emulators.eventhubs.server import connection_string
from tests.integration.event_hub_scene import serving
from tests.integration.programs import EVENFLOW, PATIENCE_S, evenflow, started

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

STARTS = 3


def test_one_line_says_that_it_is_ready_and_sigterm_ends_it(tmp_path: Path) -> None:
    with started("hub", "serve", "data", "--port", "0", folder=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        rest, said = process.communicate(timeout=PATIENCE_S)
    assert line.startswith("ready: Endpoint=sb://127.0.0.1:")
    assert line.endswith(";UseDevelopmentEmulator=true;EntityPath=hub\n")
    assert (rest, said, process.returncode) == ("", "", 0)


def test_it_is_ready_after_less_than_a_second_of_work(tmp_path: Path) -> None:
    """In processor time, from its start to its end: other programs on the machine do not count."""
    worked_s = min(_worked_s(tmp_path, f"data-{number}") for number in range(STARTS))
    assert worked_s < 1.0


def _worked_s(folder: Path, data: str) -> float:
    command = [*EVENFLOW, "hub", "serve", data, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        process.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_an_address_with_colons_stands_in_brackets(tmp_path: Path) -> None:
    assert connection_string(7, "homes", host="::1").startswith("Endpoint=sb://[::1]:7;")
    if not _has_ipv6():
        return
    with started("hub", "serve", "data", "--port", "0", "--host", "::1", folder=tmp_path) as process:
        assert process.stdout is not None
        found = re.match(r"ready: Endpoint=sb://(\[::1\]:\d+);", process.stdout.readline())
        assert found
        with urllib.request.urlopen(f"http://{found[1]}/health", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["status"] == "ready"
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_hubs_are_declared_by_flags_and_by_the_emulators_file(tmp_path: Path) -> None:
    """`tests/unit/emulators/eventhubs/test_folder.py` shows what both kinds of files may say."""
    entity = {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}
    config = {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "ns", "Entities": [entity]}]}}
    (tmp_path / "Config.json").write_text(json.dumps(config))
    with serving(tmp_path, "--config", "Config.json", "--hub", "homes:1:alerts,audit", "--hub", "eh1::more") as served:
        assert served.facts["hubs"] == [
            {"name": "eh1", "partitions": 2, "groups": ["$Default", "cg1", "more"]},
            {"name": "homes", "partitions": 1, "groups": ["$Default", "alerts", "audit"]},
        ]


def test_a_folder_has_one_server_until_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        done = evenflow("hub", "serve", "data", "--port", "0", folder=tmp_path)
        assert done.returncode == 1
        assert f"already served by process {served.process.pid}" in " ".join(done.stderr.split())
        served.process.kill()
        served.process.wait()
        with serving(tmp_path) as again:
            assert again.health()["status"] == "ready"
