"""`evenflow hub`: create, fill, follow and inspect embedded hubs, and serve them to clients of Azure Event Hubs."""

from __future__ import annotations

import typer

from evenflow.cli.hub.create import create
from evenflow.cli.hub.info import info
from evenflow.cli.hub.send import send
from evenflow.cli.hub.serve import serve
from evenflow.cli.hub.tail import tail

hub = typer.Typer(help="Work with embedded hubs: create, send, tail, inspect, serve.", no_args_is_help=True)
hub.command()(create)
hub.command()(send)
hub.command()(tail)
hub.command()(info)
hub.command()(serve)
