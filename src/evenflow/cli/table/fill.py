"""`evenflow table fill`: copies all rows into the change log again."""

from __future__ import annotations

import typer

from evenflow.cli.confirm import Yes, carry_out, confirm
from evenflow.cli.table.options import TableUrl, opened, report_copied


def fill(url: TableUrl, yes: Yes = False) -> None:
    """Copy all rows of a watched table into its change log again, so that every group gets them again."""
    typer.echo(f"copied all rows of {carry_out(_fill(url, yes=yes))}")


async def _fill(url: str, *, yes: bool) -> str:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        feed = await link.feed()
        confirm([f"This copies all rows of {feed.name} into its change log; every group gets them again."], yes=yes)
        await postgresql_watch.fill(link, report_copied, again=True)
        return feed.name
