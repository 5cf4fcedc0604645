"""Before something is changed: what will be done is shown, and somebody says yes."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import TYPE_CHECKING

import typer

from evenflow.cli.dead_letters.listing import table
from evenflow.cli.dead_letters.options import check_there
from evenflow.cli.output import say
from evenflow.errors import Misconfigured
from evenflow.letters.redrive import chosen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.core.filed import Filed
    from evenflow.letters.redrive import Choice

SHOWN = 20


def who() -> str:
    """user@host, for the record."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A user without a name, as in some containers.
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_said(wanted: Choice, *, everything: bool) -> None:
    """Nobody changes all letters by leaving something out."""
    said = wanted.ids or wanted.partitions or wanted.keys or wanted.error or wanted.states
    if not said and not everything:
        raise typer.BadParameter("say which: letters by name, a filter such as --partition, or --all.")


def open_ones(filed: Sequence[Filed], wanted: Choice) -> list[Filed]:
    """Those that are meant and can still be changed; what is settled already is told."""
    check_there(wanted.ids, filed)
    meant = chosen(filed, wanted)
    settled = [one for one in meant if not one.is_open]
    for one in settled if wanted.ids else []:
        say(f"{one.letter.id} is {one.state} already")
    return [one for one in meant if one.is_open]


def ask(question: str, meant: Sequence[Filed], *, yes: bool) -> None:
    """Go on only if somebody agrees."""
    for line in table(meant[:SHOWN]):
        say(line)
    if len(meant) > SHOWN:
        say(f"... and {len(meant) - SHOWN} more")
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is nobody to ask: add --yes, if that is what you want.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Misconfigured("nothing was done.")


def count(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
