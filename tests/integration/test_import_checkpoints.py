"""`evenflow import-checkpoints`, from lease blobs in a real Azurite into a real store."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Event
from evenflow.testing import event_hub
from tests.integration.programs import evenflow, facts
from tests.servers.azurite_fixtures import azurite
from tests.servers.event_hubs import KEY, POLICY
from tests.unit.cli.command import seen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.testing import EventHub
    from tests.servers.azurite import Azurite

__all__ = ["azurite"]

pytestmark = pytest.mark.process

EVENTS = 10


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(2, name="homes", groups=["alerts"]) as found:
        for partition in "01":
            asyncio.run(found.hub.send([Event(b"x")] * EVENTS, partition=partition))
        yield found


def source_of(served: EventHub) -> str:
    return f"eventhubs://{POLICY}:{KEY}@localhost:{served.port}/homes?use_tls=false"


def lease(partition: str, sequence: int | None) -> str:
    offset = None if sequence is None else str(sequence)
    facts = {"PartitionId": partition, "Owner": "old-host", "Token": "t", "Epoch": 7}
    return json.dumps({**facts, "Offset": offset, "SequenceNumber": sequence or 0})


def flags(served: EventHub) -> list[str]:
    return ["--store", "sqlite:leases", "--source", source_of(served), "--group", "alerts"]


def positions(folder: Path, served: EventHub) -> dict[str, Any]:
    found = seen("group", "describe", *flags(served), folder=folder)
    return {one["partition"]: one["offset"] for one in found["partitions"] if one["offset"] is not None}


def test_from_a_container(tmp_path: Path, served: EventHub, azurite: Azurite) -> None:
    container = azurite.make_container()
    with azurite.container(container) as blobs:
        blobs.upload_blob("hosts/alerts/0", lease("0", 6))
        blobs.upload_blob("hosts/alerts/1", lease("1", None))
        blobs.upload_blob("hosts/others/0", lease("0", 1))
        blobs.upload_blob("hosts/alerts/0/deeper", b"somebody else's")
    where = ["import-checkpoints", azurite.url(container), "--prefix", "hosts/", *flags(served)]
    shown = evenflow(*where, "--dry-run", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert [line.split() for line in shown.stdout.splitlines()][1] == ["0", "old-host", "-", "6", "3", "-"]
    assert "would write 1 checkpoint" in shown.stderr
    assert not (tmp_path / "leases").exists()
    assert evenflow(*where, folder=tmp_path).returncode == 2, "it cannot ask without a terminal"
    done = facts(*where, "--yes", "--why", "moving", folder=tmp_path)
    assert [(one["partition"], one["from"], one["to"]) for one in done["partitions"]] == [("0", None, "6")]
    assert positions(tmp_path, served) == {"0": "6"}
    actions = seen("group", "actions", *flags(served)[:2], "--group", "alerts", folder=tmp_path)
    assert "import" in json.dumps(actions)
    assert KEY not in shown.stdout + shown.stderr
