"""Shared by the commands for tables: their options, and the connection."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from evenflow.cli.output import say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.sources.postgresql.client import TableClient

TableUrl: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="URL of the source: postgresql-table://USER@HOST/DATABASE?table=SCHEMA.TABLE.",
        show_default=False,
        envvar="EVENFLOW_TABLE",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[TableClient]:
    from evenflow.sources.postgresql import admin as postgresql_watch

    link = postgresql_watch.opened(url)
    try:
        yield link
    finally:
        link.close()


def report_copied(rows: int) -> None:
    if rows % 100_000 == 0:
        say(f"copied {rows:,} rows")
