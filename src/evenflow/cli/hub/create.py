"""`evenflow hub create`."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.cli.hub.info import as_facts
from evenflow.cli.hub.options import AsJson, HubPath
from evenflow.cli.output import print_json
from evenflow.cli.quantities import parse_bytes, parse_duration_s
from evenflow.embedded.hub import Hub
from evenflow.text import count_of


def create(
    path: HubPath,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions; more can be added later.")] = 16,
    name: Annotated[str | None, typer.Option(help="Name of the hub.", show_default="the folder's name")] = None,
    retention: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Keep events for this time, such as 12h or 7d.", show_default="forever"),
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep about this much, such as 500MB or 2GiB.", show_default="everything"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a hub."""
    made = Hub.create(
        path,
        partitions,
        name=name,
        retention_s=parse_duration_s(retention) if retention is not None else None,
        retention_bytes=parse_bytes(retention_bytes) if retention_bytes is not None else None,
    )
    with made:
        info = made.info()
    if as_json:
        print_json(as_facts(info))
    else:
        typer.echo(f"created hub {info.name} with {count_of(len(info.partitions), 'partition')} in {path}")
