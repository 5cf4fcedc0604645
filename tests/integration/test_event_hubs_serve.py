"""`evenflow hub serve` as a program: its line, its options, its trouble on purpose."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from evenflow.amqp.performatives import ATTACH, DETACH, DISPOSITION, FLOW, TRANSFER
from evenflow.amqp.sections import data
from tests.integration.amqp_peer import Hung, Peer, condition_of
from tests.integration.event_hub_scene import serving
from tests.integration.programs import evenflow, started

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

BUSY = "com.microsoft:server-busy"


def test_one_line_says_that_it_is_ready_and_sigterm_ends_it(tmp_path: Path) -> None:
    with started("hub", "serve", "data", "--port", "0", folder=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        with open(f"/proc/{process.pid}/stat") as found:
            fields = found.read().rsplit(")", 1)[1].split()
        used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        process.terminate()
        rest, said = process.communicate(timeout=30)
    assert line.startswith("ready: Endpoint=sb://127.0.0.1:")
    assert line.endswith(";UseDevelopmentEmulator=true;EntityPath=hub\n")
    assert (rest, said, process.returncode) == ("", "", 0)
    # Its own time: the machine may be busy with other things.
    assert used_s < 1.0, f"it took {used_s} s of the processor to be ready"


def test_hubs_are_declared_by_flags_and_by_the_emulators_file(tmp_path: Path) -> None:
    entity = {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}
    config = {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "ns", "Entities": [entity]}]}}
    (tmp_path / "Config.json").write_text(json.dumps(config))
    with serving(tmp_path, "--config", "Config.json", "--hub", "homes:1:alerts,audit") as served:
        assert served.facts["hubs"] == [
            {"name": "eh1", "partitions": 2, "groups": ["$Default", "cg1"]},
            {"name": "homes", "partitions": 1, "groups": ["$Default", "alerts", "audit"]},
        ]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--hub", "a/b"], 1, "no name for a hub"),
        (["--config", "missing.json"], 1, "cannot be read"),
        (["--certificate", "missing.pem"], 1, "no certificate"),
        (["--key", "nameless"], 2, "NAME=KEY"),
        (["--fault", "flood=1"], 2, "no fault"),
        (["--fault", "busy=often"], 2, "no number"),
        (["--fault", "busy=2"], 2, "between 0 and 1"),
        (["--fault", "drop=soon"], 2, "no duration"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    done = evenflow("hub", "serve", "data", "--port", "0", *options, folder=tmp_path)
    assert (done.returncode, words in " ".join(done.stderr.split())) == (code, True), done.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        done = evenflow("hub", "serve", "other", "--port", str(served.port), folder=tmp_path)
    assert done.returncode == 1
    assert "Choose another port" in done.stderr


def sender(peer: Peer) -> None:
    peer.open()
    peer.begin()
    peer.attach_sender("hub/Partitions/0")
    peer.hear_of(FLOW)


def test_a_busy_server_refuses_every_fourth_link_and_send(tmp_path: Path) -> None:
    with serving(tmp_path, "--fault", "busy=0.25") as served, Peer(served.port) as peer:
        sender(peer)
        outcomes = []
        for number in range(7):
            peer.transfer(data(b"x"), number)
            state = peer.hear_of(DISPOSITION)[4]
            outcomes.append(condition_of(state.value[0]) if state.value else "")
        # The link was the first to be counted.
        assert outcomes == ["", "", BUSY, "", "", "", BUSY]
        for handle in range(1, 5):
            peer.attach_sender("hub/Partitions/0", handle)
        assert condition_of(peer.hear_of(DETACH)[2]) == BUSY


def test_a_throttled_server_takes_and_gives_so_much_a_second(tmp_path: Path) -> None:
    with serving(tmp_path, "--fault", "throttle=20") as served, Peer(served.port) as peer:
        sender(peer)
        refused = 0
        for number in range(60):
            peer.transfer(data(b"x"), number)
            refused += peer.hear_of(DISPOSITION)[4].descriptor == 0x25
        assert 0 < refused < 60
        kept = 60 - refused
        peer.attach_receiver("hub/ConsumerGroups/$Default/Partitions/0", 1)
        peer.hear_of(ATTACH)
        peer.credit(100, 1)
        began_s = time.monotonic()
        for _ in range(kept):
            peer.hear_of(TRANSFER)
        assert kept <= 20 or time.monotonic() - began_s > (kept - 20) / 20 * 0.5


def test_connections_are_dropped_and_everything_is_late(tmp_path: Path) -> None:
    with serving(tmp_path, "--fault", "drop=1s", "--fault", "delay=100ms") as served, Peer(served.port) as peer:
        began_s = time.monotonic()
        peer.open()
        assert time.monotonic() - began_s >= 0.3, "three words, each heard a tenth of a second late"
        with pytest.raises(Hung):
            peer.hear()
        assert time.monotonic() - began_s >= 0.9
