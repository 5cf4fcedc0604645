"""`evenflow container split` and `merge`: both work while other processes write to the container and read it."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.cli.container.info import AsJson, ContainerPath, range_facts, table
from evenflow.cli.output import print_json
from evenflow.embedded.container import Container, PartitionKeyRange


def split(
    path: ContainerPath,
    range_id: Annotated[str, typer.Argument(metavar="RANGE", help="Id of the range.", show_default=False)],
    at: Annotated[
        str | None,
        typer.Option(metavar="EPK", help="Effective partition key to split at.", show_default="middle of the range"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Split a range in two."""
    with Container(path) as container:
        _show(container.split(range_id, at), as_json=as_json)


def merge(
    path: ContainerPath,
    first: Annotated[str, typer.Argument(metavar="RANGE", help="Id of a range.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="RANGE", help="Id of an adjacent range.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Merge two adjacent ranges into one."""
    with Container(path) as container:
        _show((container.merge(first, second),), as_json=as_json)


def _show(made: tuple[PartitionKeyRange, ...], *, as_json: bool) -> None:
    if as_json:
        print_json([range_facts(one) for one in made])
        return
    for line in table(made):
        typer.echo(line)
