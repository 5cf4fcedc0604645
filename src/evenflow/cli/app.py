"""All commands put together, and their manners: 0 is fine, 1 is failed, 2 is usage; errors are one line on stderr."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from evenflow.cli.console import console
from evenflow.cli.dead_letters import dead_letters
from evenflow.cli.demo.command import demo
from evenflow.cli.explain import explain
from evenflow.cli.group import group
from evenflow.cli.hub import hub
from evenflow.cli.output import say
from evenflow.cli.plan import plan
from evenflow.cli.retire import retire
from evenflow.cli.run import run as run_workers
from evenflow.cli.sim import sim
from evenflow.cli.status import lag, status
from evenflow.cli.top import top
from evenflow.errors import EvenflowError

DEBUG = "EVENFLOW_DEBUG"

app = typer.Typer(
    name="evenflow",
    help="Fair shares of a partitioned stream: run processors, look at their groups, keep hubs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command(name="run")(run_workers)
app.add_typer(group, name="group")
app.command()(status)
app.command()(lag)
app.command()(top)
app.command()(console)
app.command()(explain)
app.command()(plan)
app.command()(retire)
app.command()(sim)
app.add_typer(hub, name="hub")
app.add_typer(dead_letters, name="dead-letters")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("evenflow"))
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", envvar=DEBUG)] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


def run() -> None:
    """The program `evenflow`."""
    try:
        app()
    except EvenflowError as error:
        if os.environ.get(DEBUG):
            raise
        say(f"error: {error}")
        sys.exit(1)
