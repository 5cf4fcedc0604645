"""`evenflow table`: the change feed of a PostgreSQL table."""

from __future__ import annotations

import typer

from evenflow.cli.table.fill import fill
from evenflow.cli.table.prune import prune
from evenflow.cli.table.show import show
from evenflow.cli.table.unwatch import unwatch
from evenflow.cli.table.watch import watch

table = typer.Typer(help="Manage the change feed of a PostgreSQL table.", no_args_is_help=True)
table.command()(watch)
table.command()(show)
table.command()(fill)
table.command()(prune)
table.command()(unwatch)
