"""`evenflow container`: inspects, splits and merges embedded containers, and serves them to Cosmos DB clients."""

from __future__ import annotations

import typer

from evenflow.cli.container.info import info
from evenflow.cli.container.serve import serve
from evenflow.cli.container.shape import merge, split

container = typer.Typer(help="Work with embedded containers: inspect, split, merge, serve.", no_args_is_help=True)
container.command()(info)
container.command()(split)
container.command()(merge)
container.command()(serve)
