"""`evenflow dead-letters`: look at events that could not be handled, have them handled again, or drop them."""

from __future__ import annotations

import typer

from evenflow.cli.dead_letters.drop import drop
from evenflow.cli.dead_letters.listing import listing
from evenflow.cli.dead_letters.redrive import redrive
from evenflow.cli.dead_letters.show import show_dead_letter

dead_letters = typer.Typer(help="Look at dead letters, have them handled again, or drop them.", no_args_is_help=True)
dead_letters.command(name="list")(listing)
dead_letters.command(name="show")(show_dead_letter)
dead_letters.command()(redrive)
dead_letters.command()(drop)
