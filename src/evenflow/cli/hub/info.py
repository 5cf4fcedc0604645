"""`evenflow hub info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from evenflow.cli.hub.options import AsJson, HubPath
from evenflow.cli.output import columns, json_time, print_json, say, show_time
from evenflow.cli.quantities import show_bytes, show_duration
from evenflow.embedded.hub import Hub

if TYPE_CHECKING:
    from evenflow.embedded.hub.hub import HubInfo, PartitionInfo

HEADERS = ("PARTITION", "OLDEST", "NEWEST", "EVENTS", "SIZE", "NEWEST-AT")


def info(path: HubPath, as_json: AsJson = False) -> None:
    """Show a hub and its partitions."""
    with Hub(path) as hub:
        found = hub.info()
    if as_json:
        print_json(as_facts(found))
        return
    for line in _lines(found):
        typer.echo(line)
    for partition in found.partitions:
        if partition.problem:
            say(f"partition {partition.id}: {partition.problem}")


def as_facts(hub: HubInfo) -> dict[str, Any]:
    return {
        "name": hub.name,
        "path": hub.path,
        "made": hub.made,
        "created_at": json_time(hub.created_at),
        "retention_s": hub.retention_s,
        "retention_bytes": hub.retention_bytes,
        "partitions": [_partition_facts(partition) for partition in hub.partitions],
    }


def _partition_facts(partition: PartitionInfo) -> dict[str, Any]:
    known = not partition.problem
    return {
        "partition": partition.id,
        "oldest": partition.oldest if partition.count else None,
        "newest": partition.newest if partition.count else None,
        "events": partition.count if known else None,
        "size_bytes": partition.size_bytes if known else None,
        "newest_at": json_time(partition.newest_at),
        "problem": partition.problem or None,
    }


def _lines(hub: HubInfo) -> list[str]:
    whole = [partition for partition in hub.partitions if not partition.problem]
    kept = [show_duration(hub.retention_s)] if hub.retention_s is not None else []
    kept += [show_bytes(hub.retention_bytes)] if hub.retention_bytes is not None else []
    return [
        f"HUB        {hub.name}",
        f"PATH       {hub.path}",
        f"CREATED    {show_time(hub.created_at)}",
        f"RETENTION  {' and '.join(kept) or 'everything'}",
        f"EVENTS     {sum(partition.count for partition in whole)}",
        f"SIZE       {show_bytes(sum(partition.size_bytes for partition in whole))}",
        "",
        *columns(HEADERS, [_cells(partition) for partition in hub.partitions], right=HEADERS[1:5]),
    ]


def _cells(partition: PartitionInfo) -> tuple[object, ...]:
    if partition.problem:
        return partition.id, None, None, None, None, None
    ends = (partition.oldest, partition.newest) if partition.count else (None, None)
    size = show_bytes(partition.size_bytes)
    return partition.id, *ends, partition.count, size, show_time(partition.newest_at)
