"""All commands put together, and their manners: 0 is fine, 1 is failed, 2 is usage; errors are one line on stderr.

A command is loaded when it is the one that was asked for, so that none pays for what another needs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from evenflow.cli.output import say
from evenflow.errors import EvenflowError

DEBUG = "EVENFLOW_DEBUG"
COMMANDS = {
    "run": "run:run",
    "group": "group:group",
    "leases": "leases:leases",
    "status": "status:status",
    "lag": "status:lag",
    "metrics": "status:metrics",
    "top": "top:top",
    "console": "console:console",
    "explain": "explain:explain",
    "plan": "plan:plan",
    "retire": "retire:retire",
    "sim": "sim:sim",
    "hub": "hub:hub",
    "container": "container:container",
    "table": "table:table",
    "dead-letters": "dead_letters:dead_letters",
    "import-checkpoints": "import_checkpoints:import_checkpoints",
}
"""Where each is, in the order of the help."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("evenflow"))
        raise typer.Exit


def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", envvar=DEBUG)] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


def assembled(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """The program, with these commands."""
    app = typer.Typer(
        name="evenflow",
        help="Fair shares of a partitioned stream: run processors, look at their groups, keep hubs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for name in names:
        module, _, place = COMMANDS[name].partition(":")
        found = getattr(import_module(f"evenflow.cli.{module}"), place)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name=name)(found)
    return app


def asked_for(arguments: Sequence[str]) -> Iterable[str]:
    """The one command that these call for sure; else all, as for help and for a word that is none."""
    first = next((one for one in arguments if one != "--debug"), "")
    return (first,) if first in COMMANDS else COMMANDS


def run() -> None:
    """The program `evenflow`."""
    # What goes wrong there is told by an error of ours; without a handler it would be told twice, first in their words.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    try:
        assembled(asked_for(sys.argv[1:]))()
    except EvenflowError as error:
        if os.environ.get(DEBUG):
            raise
        say(f"error: {error}")
        sys.exit(1)
