"""`evenflow dead-letters`: inspect, redrive or drop events that could not be handled."""

from __future__ import annotations

import typer

from evenflow.cli.dead_letters.drop import drop
from evenflow.cli.dead_letters.listing import listing
from evenflow.cli.dead_letters.redrive import redrive
from evenflow.cli.dead_letters.show import show_dead_letter

dead_letters = typer.Typer(help="Inspect dead letters, redrive (retry) them, or drop them.", no_args_is_help=True)
dead_letters.command(name="list")(listing)
dead_letters.command(name="show")(show_dead_letter)
dead_letters.command()(redrive)
dead_letters.command()(drop)
