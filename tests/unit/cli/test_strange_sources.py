"""A command reports a source that is not the group's: read in another mode, or another container of that name."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from typing import TYPE_CHECKING, Any, Literal

import pytest
from typer.testing import CliRunner

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.cli.app import assembled, requested_commands
from evenflow.embedded.container import Container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from evenflow.changefeed import ChangeContext

FLAGS = ("--store", "sqlite:leases", "--group", "totals")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    monkeypatch.chdir(tmp_path)
    with Container.create(tmp_path / "orders", partition_key="/customer", ranges=2) as container:
        container.upsert_many({"id": f"o{number}", "customer": f"c{number}"} for number in range(10))
        yield container


def evenflow(*arguments: str) -> Result:
    return CliRunner().invoke(assembled(requested_commands(arguments)), list(arguments))


def answer(*arguments: str) -> str:
    """The output of a command that must succeed."""
    done = evenflow(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def facts(*arguments: str) -> Any:
    return json.loads(answer(*arguments, "--json"))


def handled(folder: Path, mode: Literal["latest", "all"] = "latest") -> None:
    processor = ChangeFeedProcessor(
        f"container:{folder / 'orders'}", f"sqlite:{folder / 'leases'}", "totals", start="beginning", mode=mode
    )

    @processor.on_changes
    async def handle(changes: list[dict[str, Any]], context: ChangeContext) -> None:
        pass

    asyncio.run(processor.serve(until="caught_up"))


def lag_metric(source: str) -> list[str]:
    metrics = answer("metrics", *FLAGS, "--source", source)
    return re.findall(r"^evenflow_group_lag_events\{.*\} (\S+)$", metrics, re.MULTILINE)


def test_a_source_without_a_mode_is_read_as_the_group_does(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path, "all")
    for number in range(10):
        orders.delete(f"o{number}", f"c{number}")
    plain = ("--source", "container:orders")
    assert facts("lag", *FLAGS, *plain)["lag"] == 10
    assert "LAG        10 events" in answer("status", *FLAGS, *plain)
    assert lag_metric("container:orders") == ["10"]
    answer("leases", "rewind", "--to-latest", *FLAGS, *plain, "--yes")
    assert facts("lag", *FLAGS, *plain)["lag"] == 0


def test_a_source_in_another_mode_is_reported(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path, "all")
    wrong = ("--source", "container:orders?mode=latest")
    refused = evenflow("lag", *FLAGS, *wrong)
    assert refused.exit_code == 1
    assert "the group reads with mode=all" in str(refused.exception)
    assert "Name the source with ?mode=all." in str(refused.exception)
    found = facts("status", *FLAGS, *wrong)
    assert found["status"] == "another mode"
    assert found["lag"] is None
    assert lag_metric("container:orders?mode=latest") == []


def test_a_container_that_was_created_again_is_reported(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path)
    orders.close()
    shutil.rmtree(tmp_path / "orders")
    Container.create(tmp_path / "orders", partition_key="/customer", ranges=2).close()
    _is_reported_as_another("container:orders")


def test_another_container_of_the_same_name_is_reported(orders: Container, tmp_path: Path) -> None:
    handled(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    Container.create(tmp_path / "elsewhere" / "orders", partition_key="/customer", ranges=3).close()
    _is_reported_as_another("container:elsewhere/orders")


def _is_reported_as_another(source: str) -> None:
    named = ("--source", source)
    refused = evenflow("lag", *FLAGS, *named)
    assert refused.exit_code == 1
    assert "the checkpoints do not belong to" in str(refused.exception)
    found = facts("status", *FLAGS, *named)
    assert found["status"] == "another hub"
    assert [one["kind"] for one in found["findings"]] == ["another hub"], "an instance that is started would end"
    assert found["lag"] is None
    assert len(found["partitions"]) == 2
    assert (
        f"evenflow group delete --store sqlite:leases --source {source} --group totals"
        in found["findings"][0]["advice"]
    )
    metrics = answer("metrics", *FLAGS, *named)
    assert re.search(r'^evenflow_group_findings\{.*kind="another hub"\} 1$', metrics, re.MULTILINE)
    assert lag_metric(source) == []
