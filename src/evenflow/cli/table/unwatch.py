"""`evenflow table unwatch`: removes a change feed."""

from __future__ import annotations

import typer

from evenflow.cli.confirm import Yes, carry_out, confirm
from evenflow.cli.table.options import TableUrl, opened


def unwatch(url: TableUrl, yes: Yes = False) -> None:
    """Remove the trigger and the change log of a table. The table itself stays as it is."""
    typer.echo(f"{carry_out(_unwatch(url, yes=yes))} is no longer watched")


async def _unwatch(url: str, *, yes: bool) -> str:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        feed = await link.feed()
        confirm(
            [f"This permanently removes the change log of {feed.name}, including changes not handled yet."], yes=yes
        )
        await postgresql_watch.unwatch(link)
        return feed.name
