"""`evenflow hub`: make an embedded hub, send to it, follow it, look at it, serve it to clients of Event Hubs."""

from __future__ import annotations

import typer

from evenflow.cli.hub.create import create
from evenflow.cli.hub.info import info
from evenflow.cli.hub.send import send
from evenflow.cli.hub.serve import serve
from evenflow.cli.hub.tail import tail

hub = typer.Typer(help="Make an embedded hub, send to it, follow it, look at it, serve it.", no_args_is_help=True)
hub.command()(create)
hub.command()(send)
hub.command()(tail)
hub.command()(info)
hub.command()(serve)
