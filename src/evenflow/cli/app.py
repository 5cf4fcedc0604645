"""Assembles all commands. Exit code 0 is success, 1 is failure, 2 is wrong usage; an error is one line on stderr.

Only the module of the requested command is imported, so that a command does not pay for the imports of another.
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
"""Module and function of each command, in the order of the help."""


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(version("evenflow"))
        raise typer.Exit


def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback when a command fails.", envvar=DEBUG)
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


def assembled(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """The `evenflow` program with the named commands."""
    app = typer.Typer(
        name="evenflow",
        help="Share the partitions of an event stream between instances: run processors, inspect and operate their"
        " consumer groups, run local hubs and containers.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(f"evenflow.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name=name)(command)
    return app


def requested_commands(arguments: Sequence[str]) -> Iterable[str]:
    """The command that the arguments name; all commands if they name none, as for `--help` or a misspelt command."""
    first = next((one for one in arguments if one != "--debug"), "")
    return (first,) if first in COMMANDS else COMMANDS


def run() -> None:
    """The program `evenflow`."""
    # An error of the Azure SDK is reported as an error of ours. Without a handler the SDK's logger would print it, too.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    try:
        assembled(requested_commands(sys.argv[1:]))()
    except EvenflowError as error:
        if os.environ.get(DEBUG):
            raise
        say(f"error: {error}")
        sys.exit(1)
