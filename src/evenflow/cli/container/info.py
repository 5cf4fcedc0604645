"""`evenflow container info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from evenflow.cli.output import columns, json_time, print_json, show_time
from evenflow.cli.quantities import show_duration
from evenflow.embedded.container import Container, PartitionKeyRange

if TYPE_CHECKING:
    from evenflow.embedded.container import ContainerInfo

HEADERS = ("RANGE", "FROM", "TO", "LSN", "PARENTS")

ContainerPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PATH", help="Folder of the container.", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def info(path: ContainerPath, as_json: AsJson = False) -> None:
    """Show a container and its ranges."""
    with Container(path) as container:
        found = container.info()
    if as_json:
        print_json(_facts(found))
        return
    for line in _lines(found):
        typer.echo(line)


def range_facts(one: PartitionKeyRange) -> dict[str, Any]:
    return {"range": one.id, "min": one.min, "max": one.max, "lsn": one.lsn, "parents": one.parents}


def table(ranges: tuple[PartitionKeyRange, ...]) -> list[str]:
    rows = [(one.id, repr(one.min), repr(one.max), one.lsn, ", ".join(one.parents) or None) for one in ranges]
    return columns(HEADERS, rows, right=("LSN",))


def _facts(container: ContainerInfo) -> dict[str, Any]:
    return {
        "name": container.name,
        "path": container.path,
        "rid": container.rid,
        "created_at": json_time(container.created_at),
        "partition_key": container.partition_key,
        "default_ttl_s": container.default_ttl_s,
        "retention_s": container.retention_s,
        "documents": container.documents,
        "ranges": [range_facts(one) for one in container.ranges],
    }


def _lines(container: ContainerInfo) -> list[str]:
    kept = (
        "all versions" if container.retention_s is None else f"all versions for {show_duration(container.retention_s)}"
    )
    return [
        f"CONTAINER  {container.name}",
        f"PATH       {container.path}",
        f"CREATED    {show_time(container.created_at)}",
        f"KEY        {', '.join(container.partition_key)}",
        f"LOG        {'none' if container.retention_s == 0 else kept}",
        f"DOCUMENTS  {container.documents}",
        "",
        *table(container.ranges),
    ]
