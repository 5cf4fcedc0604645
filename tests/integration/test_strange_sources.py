"""What people are told who name a source that is not what the group reads: in another mode, or another of its name."""

from __future__ import annotations

import asyncio
import re
import shutil
from typing import TYPE_CHECKING, Any, Literal

import pytest

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.container import Container
from tests.integration.programs import answer, evenflow, facts

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.changefeed import ChangeContext

pytestmark = pytest.mark.process

FLAGS = ("--store", "sqlite:leases", "--group", "totals")


@pytest.fixture
def orders(tmp_path: Path) -> Container:
    container = Container.create(tmp_path / "orders", partition_key="/customer", ranges=2)
    container.upsert_many({"id": f"o{number}", "customer": f"c{number}"} for number in range(10))
    return container


def handled(folder: Path, mode: Literal["latest", "all"] = "latest") -> None:
    processor = ChangeFeedProcessor(
        f"container:{folder / 'orders'}", f"sqlite:{folder / 'leases'}", "totals", start="beginning", mode=mode
    )

    @processor.on_changes
    async def handle(changes: list[dict[str, Any]], context: ChangeContext) -> None:
        pass

    asyncio.run(processor.serve(until="caught_up"))


def lag_metric(source: str, folder: Path) -> list[str]:
    told = answer("metrics", *FLAGS, "--source", source, folder=folder)
    return re.findall(r"^evenflow_group_lag_events\{.*\} (\S+)$", told, re.MULTILINE)


def test_a_source_without_a_mode_is_read_as_the_group_does(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path, "all")
    for number in range(10):
        orders.delete(f"o{number}", f"c{number}")
    plain = ("--source", "container:orders")
    assert facts("lag", *FLAGS, *plain, folder=tmp_path)["lag"] == 10
    assert "LAG        10 events" in answer("status", *FLAGS, *plain, folder=tmp_path)
    assert lag_metric("container:orders", tmp_path) == ["10"]
    answer("leases", "rewind", "--to-latest", *FLAGS, *plain, "--yes", folder=tmp_path)
    assert facts("lag", *FLAGS, *plain, folder=tmp_path)["lag"] == 0


def test_another_mode_that_is_asked_for_is_told(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path, "all")
    wrong = ("--source", "container:orders?mode=latest")
    refused = evenflow("lag", *FLAGS, *wrong, folder=tmp_path)
    assert refused.returncode == 1
    assert "the group reads with mode=all" in refused.stderr
    assert "Name the source with ?mode=all." in refused.stderr
    found = facts("status", *FLAGS, *wrong, folder=tmp_path)
    assert found["status"] == "another mode"
    assert found["lag"] is None
    assert lag_metric("container:orders?mode=latest", tmp_path) == []


def test_a_container_that_was_made_again_is_told(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path)
    orders.close()
    shutil.rmtree(tmp_path / "orders")
    Container.create(tmp_path / "orders", partition_key="/customer", ranges=2).close()
    _is_told_as_another("container:orders", tmp_path)


def test_another_container_of_the_same_name_is_told(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    Container.create(tmp_path / "elsewhere" / "orders", partition_key="/customer", ranges=3).close()
    _is_told_as_another("container:elsewhere/orders", tmp_path)


def _is_told_as_another(source: str, folder: Path) -> None:
    named = ("--source", source)
    refused = evenflow("lag", *FLAGS, *named, folder=folder)
    assert refused.returncode == 1
    assert "the checkpoints belong to another hub" in refused.stderr
    found = facts("status", *FLAGS, *named, folder=folder)
    assert found["status"] == "another hub"
    assert [one["kind"] for one in found["findings"]] == ["another hub"], "an instance that is started would end"
    assert found["lag"] is None
    assert len(found["partitions"]) == 2
    assert (
        f"evenflow group delete --store sqlite:leases --source {source} --group totals"
        in found["findings"][0]["advice"]
    )
    told = answer("metrics", *FLAGS, *named, folder=folder)
    assert re.search(r'^evenflow_group_findings\{.*kind="another hub"\} 1$', told, re.MULTILINE)
    assert lag_metric(source, folder) == []
