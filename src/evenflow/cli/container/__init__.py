"""`evenflow container`: look at an embedded container, split and merge it, serve containers as a local Cosmos DB."""

from __future__ import annotations

import typer

from evenflow.cli.container.info import info
from evenflow.cli.container.serve import serve
from evenflow.cli.container.shape import merge, split

container = typer.Typer(help="Look at an embedded container, split and merge it, serve it.", no_args_is_help=True)
container.command()(info)
container.command()(split)
container.command()(merge)
container.command()(serve)
