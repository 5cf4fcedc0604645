"""`evenflow group`: inspect and operate the consumer groups of a store."""

from __future__ import annotations

import typer

from evenflow.cli.group.actions import actions
from evenflow.cli.group.delete import delete
from evenflow.cli.group.describe import describe
from evenflow.cli.group.listing import list_groups
from evenflow.cli.group.pausing import pause, resume
from evenflow.cli.group.seek import seek

group = typer.Typer(help="Inspect and operate consumer groups.", no_args_is_help=True)
group.command(name="list")(list_groups)
group.command()(describe)
group.command()(actions)
group.command()(seek)
group.command()(pause)
group.command()(resume)
group.command()(delete)
