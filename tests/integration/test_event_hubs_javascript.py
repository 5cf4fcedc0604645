"""The official JavaScript client, unmodified, against `evenflow hub serve` in another process."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData

from evenflow.embedded.hub import partition_of
from tests.integration.certificates import make_certificate
from tests.integration.event_hub_clients import SyncClient
from tests.integration.event_hub_scene import Served, heartbeats_every_second, serving
from tests.integration.programs import PATIENCE_S, wait_for
from tests.integration.test_event_hubs_security import token

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = Path(__file__).parent.parent / "node"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        shutil.which("node") is None or not (NODE / "node_modules" / "@azure" / "event-hubs").exists(),
        reason="needs Node and `npm ci` in tests/node",
    ),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A hub in which everything has been sent in all the ways there are."""
    with serving(tmp_path_factory.mktemp("javascript"), "--hub", "homes:4:alerts") as found:
        assert run("send", found) == []
        yield found


PROGRAM = ["node", "--experimental-websocket", "event_hubs.mjs"]


def run(scenario: str, served: Served, connection_string: str | None = None, *more: str, **environment: str) -> Any:
    """What one scenario found."""
    return run_all([scenario], served, connection_string, *more, **environment)[scenario]


def run_all(
    scenarios: list[str], served: Served, connection_string: str | None = None, *more: str, **environment: str
) -> dict[str, Any]:
    """One after the other, in one program: most of the time goes into its start."""
    done = subprocess.run(
        [*PROGRAM, ",".join(scenarios), connection_string or served.connection_string(), *more],
        cwd=NODE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_was_sent_in_every_way_is_received_from_every_position(served: Served) -> None:
    by_scenario = run_all(["receive", "keyed", "byTime"], served)
    found = by_scenario["receive"]
    everything = found["earliest"]
    assert [event["body"] for event in everything[:6]] == ["single", *(f"batch {n}" for n in range(5))]
    assert [(event["sequence"], event["offset"]) for event in everything] == [(n, str(n)) for n in range(7)]
    assert everything[1]["properties"] == {"i": 0, "text": "x", "right": True}
    assert found["properties"][0]["sequence"] == 2
    assert found["after"][0]["sequence"] == 3
    assert found["offset"][0]["sequence"] == 4
    assert found["atOffset"][0]["sequence"] == 3
    assert [event["body"] for event in found["buffered"]][:19] == [f"buffered {n}" for n in range(19)]
    assert found["tracked"][0]["last"] == 6
    assert found["group"][0]["body"] == "single"
    last = everything[6]
    assert (last["body"], last["messageId"], last["contentType"]) == ({"a": [1, 2]}, "id", "application/json")
    assert last["correlationId"] == "c"

    keyed = by_scenario["keyed"]
    home = str(partition_of("home-7", 4))
    assert {partition: [event["key"] for event in events] for partition, events in keyed.items() if events} == {
        home: ["home-7"]
    }
    assert keyed[home][0]["body"] == "keyed"
    by_time = by_scenario["byTime"]
    assert by_time["since"] == by_time["first"]
    assert by_time["latest"] == "news"


def test_facts_epochs_and_refusals(served: Served) -> None:
    found = run_all(["facts", "refusals", "epochs", "epochsHeld"], served)
    facts = found["facts"]
    assert (facts["hub"]["name"], facts["ids"]) == ("homes", ["0", "1", "2", "3"])
    assert facts["partition"]["lastEnqueuedSequenceNumber"] == 6
    assert facts["unknown"] == "ArgumentOutOfRangeError"
    assert found["refusals"] == {
        "group": "MessagingEntityNotFoundError",
        "partition": "ArgumentOutOfRangeError",
        "sendPartition": "ArgumentOutOfRangeError",
        "beyond": "ArgumentError",
        "tooLarge": "MessageTooLargeError",
    }
    refused = "ReceiverDisconnectedError"
    assert found["epochs"] == {"stolen": refused}
    assert found["epochsHeld"] == {"problem": None, "lower": refused, "none": refused}


def test_large_messages_and_a_slow_receiver(tmp_path: Path) -> None:
    """18 MB, sent at once and received a few events at a time, of which the server keeps little; and 1 MB at once."""
    with serving(tmp_path, "--hub", "homes:4") as served:
        before = served.memory_bytes()
        assert run("slow", served) == [[number, 300_000] for number in range(60)]
        assert served.memory_bytes() - before < 60 * 1024 * 1024
        assert run("large", served) == 1_000_000


@contextmanager
def following(connection_string: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*PROGRAM, "follow", connection_string], cwd=NODE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "nothing was received"
    return json.loads(process.stdout.readline())


def test_a_receiver_outlives_the_server(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(serving(tmp_path, "--hub", "homes:1"))
        SyncClient(first.connection_string()).send_one(EventData("before"), partition_id="0")
        with following(first.connection_string()) as process:
            assert next_of(process) == "before"
            first.stop()
            again = stack.enter_context(serving(tmp_path, port=first.port))
            SyncClient(again.connection_string()).send([EventData("after"), EventData("end")], partition_id="0")
            assert [next_of(process), next_of(process)] == ["after", "end"]


def test_a_receiver_stays_when_there_is_nothing_but_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends them when the server asks for them, over one and the same connection."""
    with heartbeats_every_second(monkeypatch) as (hub, heard), following(hub.connection_string) as process:
        send = SyncClient(hub.connection_string).send
        send([EventData("one")], partition_id="0")
        assert next_of(process) == "one"
        before, heartbeats = len(heard.connections), len(heard.heartbeats)
        wait_for(lambda: len(heard.heartbeats) >= heartbeats + 4, "heartbeats of the client")
        assert len(heard.connections) == before
        send([EventData("two"), EventData("end")], partition_id="0")
        assert [next_of(process), next_of(process), next_of(process)] == ["two", "end", {"follow": {"errors": 0}}]


def test_a_key_is_checked_also_through_tls_and_websockets(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ["--certificate", str(certificate), "--certificate-key", str(key), "--key", "sender=right"]
    with serving(tmp_path, "--hub", "homes:1", *options) as served:
        secure = f"Endpoint=sb://localhost:{served.tls_port};SharedAccessKeyName=sender;SharedAccessKey=right;EntityPath=homes"
        trust = {"NODE_EXTRA_CA_CERTS": str(certificate)}
        assert run("connect", served, served.connection_string(key="wrong", name="sender")) == "UnauthorizedError"
        signature = token(key="right", name="sender")
        by_token = f"SharedAccessSignature={signature};EntityPath=homes;UseDevelopmentEmulator=true"
        assert run("connect", served, f"Endpoint=sb://localhost:{served.port};{by_token}") is None
        assert run("roundTrip", served, secure, **trust) is True
        assert run("roundTrip", served, secure, "websockets", **trust) is True
        assert run("connect", served, secure.replace("right", "wrong"), "websockets", **trust) == "UnauthorizedError"
