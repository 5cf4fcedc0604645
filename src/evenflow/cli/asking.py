"""Who acts, and whether they are sure: what changes a group is shown first, and asked for."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from evenflow.cli.output import say
from evenflow.steer import Who

if TYPE_CHECKING:
    from collections.abc import Sequence

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
Why: TypeAlias = Annotated[str, typer.Option("--why", metavar="TEXT", help="For the record: why.")]
Partitions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--partition", metavar="ID", help="This one only; may be given several times.", show_default="all"),
]


def who(why: str) -> Who:
    """For the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return Who(f"{user}@{socket.gethostname()}", why)


def be_sure(what: Sequence[str], *, yes: bool, question: str = "Do it?") -> None:
    """Tell what will be done, and ask. Without anybody to ask it is wrong usage; a no is no success."""
    for line in what:
        say(line)
    if yes:
        return
    if not sys.stdin.isatty():
        say("error: there is no terminal to ask on: add --yes to do it")
        raise typer.Exit(2)
    # Not by typer.confirm, which writes to stdout too: that belongs to --json.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say("nothing was changed")
        raise typer.Exit(1)
