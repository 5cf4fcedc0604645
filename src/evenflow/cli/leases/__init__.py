"""`evenflow leases`: what a lease container's operators do, whichever store it is."""

from __future__ import annotations

import typer

from evenflow.cli.group.delete import delete
from evenflow.cli.group.pausing import pause, resume
from evenflow.cli.group.seek import seek
from evenflow.cli.leases.carrying import export_leases, import_exported
from evenflow.cli.leases.listing import list_leases

leases = typer.Typer(help="List, reset, rewind, pause, export and import leases.", no_args_is_help=True)
leases.command(name="list")(list_leases)
leases.command(name="export")(export_leases)
leases.command(name="import")(import_exported)
leases.command(name="rewind")(seek)
leases.command(name="reset")(delete)
leases.command()(pause)
leases.command()(resume)
