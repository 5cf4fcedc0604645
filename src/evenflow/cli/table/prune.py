"""`evenflow table prune`: removes old changes from the change log."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.cli.confirm import carry_out
from evenflow.cli.output import print_json
from evenflow.cli.quantities import parse_duration_s
from evenflow.cli.table.options import AsJson, TableUrl, opened
from evenflow.text import count_of


def prune(
    url: TableUrl,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Remove changes older than this, such as 12h or 7d.")],
    as_json: AsJson = False,
) -> None:
    """Remove old changes from the change log. With latest versions only, the latest change of each row stays."""
    removed = carry_out(_prune(url, parse_duration_s(older_than)))
    if as_json:
        print_json({"removed": removed})
    else:
        typer.echo(f"removed {count_of(removed, 'change')}")


async def _prune(url: str, older_s: float) -> int:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        return await postgresql_watch.prune(link, older_s)
