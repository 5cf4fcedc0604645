"""`evenflow leases`: operations on leases, for operators who know lease containers; they work with every store."""

from __future__ import annotations

import typer

from evenflow.cli.group.delete import delete
from evenflow.cli.group.pausing import pause, resume
from evenflow.cli.group.seek import seek
from evenflow.cli.leases.listing import list_leases
from evenflow.cli.leases.transfer import export_leases, import_exported

leases = typer.Typer(
    help="List, rewind, reset, pause, resume, export and import the leases of a group.", no_args_is_help=True
)
leases.command(name="list")(list_leases)
leases.command(name="export")(export_leases)
leases.command(name="import")(import_exported)
leases.command(name="rewind")(seek)
leases.command(name="reset")(delete)
leases.command()(pause)
leases.command()(resume)
