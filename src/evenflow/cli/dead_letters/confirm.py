"""Before dead letters are changed: checks that some are selected, shows them, asks for confirmation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from evenflow.cli.confirm import confirm
from evenflow.cli.dead_letters.listing import table
from evenflow.cli.dead_letters.options import check_exist
from evenflow.cli.output import say
from evenflow.operate.dead_letters.redrive import matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.core.filed import Filed
    from evenflow.operate.dead_letters.redrive import DeadLetterFilter

SHOWN = 20


def require_filter(wanted: DeadLetterFilter, *, everything: bool) -> None:
    """An operator must not change all dead letters by forgetting a filter."""
    is_filtered = wanted.ids or wanted.partitions or wanted.keys or wanted.error or wanted.states
    if not is_filtered and not everything:
        raise typer.BadParameter("no dead letters selected; pass their IDs, a filter such as --partition, or --all.")


def select_open(filed: Sequence[Filed], wanted: DeadLetterFilter) -> list[Filed]:
    """The selected dead letters that can still be changed. Settled ones are reported if the command named them."""
    check_exist(wanted.ids, filed)
    selected = matching(filed, wanted)
    settled = [one for one in selected if not one.is_open]
    for one in settled if wanted.ids else []:
        say(f"{one.dead_letter.id} is already {one.state}")
    return [one for one in selected if one.is_open]


def confirm_change(question: str, selected: Sequence[Filed], *, yes: bool) -> None:
    """Show the selected dead letters, and continue only if the operator agrees."""
    more = [f"... and {len(selected) - SHOWN} more"] if len(selected) > SHOWN else []
    confirm([*table(selected[:SHOWN]), *more], yes=yes, question=question)


def count(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
