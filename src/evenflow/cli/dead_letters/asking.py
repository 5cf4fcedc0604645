"""Before something is changed: what will be done is shown, and somebody says yes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from evenflow.cli.asking import be_sure
from evenflow.cli.dead_letters.listing import table
from evenflow.cli.dead_letters.options import check_there
from evenflow.cli.output import say
from evenflow.operate.dead_letters.redrive import matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.core.filed import Filed
    from evenflow.operate.dead_letters.redrive import DeadLetterFilter

SHOWN = 20


def check_said(wanted: DeadLetterFilter, *, everything: bool) -> None:
    """Nobody changes all dead letters by leaving something out."""
    said = wanted.ids or wanted.partitions or wanted.keys or wanted.error or wanted.states
    if not said and not everything:
        raise typer.BadParameter("say which: dead letters by name, a filter such as --partition, or --all.")


def open_ones(filed: Sequence[Filed], wanted: DeadLetterFilter) -> list[Filed]:
    """Those that are meant and can still be changed; what is settled already is told."""
    check_there(wanted.ids, filed)
    meant = matching(filed, wanted)
    settled = [one for one in meant if not one.is_open]
    for one in settled if wanted.ids else []:
        say(f"{one.dead_letter.id} is {one.state} already")
    return [one for one in meant if one.is_open]


def ask(question: str, meant: Sequence[Filed], *, yes: bool) -> None:
    """Go on only if somebody agrees."""
    more = [f"... and {len(meant) - SHOWN} more"] if len(meant) > SHOWN else []
    be_sure([*table(meant[:SHOWN]), *more], yes=yes, question=question)


def count(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
