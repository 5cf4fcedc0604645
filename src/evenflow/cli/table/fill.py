"""`evenflow table fill`: copy all rows once more."""

from __future__ import annotations

import typer

from evenflow.cli.asking import Yes, be_sure, carry_out
from evenflow.cli.table.options import TableUrl, opened, tell_copied


def fill(url: TableUrl, yes: Yes = False) -> None:
    """Copy all rows of a watched table into its log once more, so that every group gets them again."""
    typer.echo(f"copied all rows of {carry_out(_fill(url, yes=yes))}")


async def _fill(url: str, *, yes: bool) -> str:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        feed = await link.feed()
        be_sure([f"copies all rows of {feed.name} into its log; every group handles them again."], yes=yes)
        await postgresql_watch.fill(link, tell_copied, again=True)
        return feed.name
