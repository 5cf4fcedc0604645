"""`evenflow table unwatch`: the end of a feed."""

from __future__ import annotations

import typer

from evenflow.cli.asking import Yes, be_sure, carry_out
from evenflow.cli.table.options import TableUrl, opened


def unwatch(url: TableUrl, yes: Yes = False) -> None:
    """Remove the trigger and the log of a table. The table itself stays as it is."""
    typer.echo(f"{carry_out(_unwatch(url, yes=yes))} is no longer watched")


async def _unwatch(url: str, *, yes: bool) -> str:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        feed = await link.feed()
        be_sure([f"removes the log of {feed.name} for ever, with what groups have not handled yet."], yes=yes)
        await postgresql_watch.unwatch(link)
        return feed.name
