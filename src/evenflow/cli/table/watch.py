"""`evenflow table watch`: starts to record the changes of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.confirm import carry_out
from evenflow.cli.output import print_json
from evenflow.cli.quantities import parse_duration_s
from evenflow.cli.table.options import AsJson, TableUrl, opened, report_copied
from evenflow.text import count_of

if TYPE_CHECKING:
    from evenflow.sources.postgresql.admin import WatchOptions
    from evenflow.sources.postgresql.client import TableFeed


def watch(
    url: TableUrl,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Number of partitions (cannot be changed later).", show_default="16"),
    ] = None,
    all_versions: Annotated[
        bool | None,
        typer.Option(
            "--all-versions/--latest-versions",
            help="Also keep the row as it was before each change (cannot be changed later).",
            show_default="latest",
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Keep changes for this time, such as 12h or 7d.", show_default="forever"),
    ] = None,
    fill: Annotated[bool, typer.Option(help="Copy the existing rows into the change log.")] = True,
    reader: Annotated[str | None, typer.Option(metavar="ROLE", help="Grant this role the right to read it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Record the changes of a table. Run it again to update an existing feed, or to continue an interrupted copy."""
    from evenflow.sources.postgresql.admin import WatchOptions

    keep_s = parse_duration_s(retention) if retention is not None else None
    feed = carry_out(_watch(url, WatchOptions(partitions, all_versions, keep_s, fill, reader)))
    if as_json:
        print_json({"table": feed.name, "partitions": feed.partitions, "all_versions": feed.previous})
    else:
        versions = "all versions" if feed.previous else "latest versions"
        typer.echo(f"watching {feed.name}: {count_of(feed.partitions, 'partition')}, {versions}")


async def _watch(url: str, terms: WatchOptions) -> TableFeed:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        return await postgresql_watch.watch(link, terms, report_copied)
