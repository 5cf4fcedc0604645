"""`evenflow dead-letters list`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.dead_letters.options import (
    ErrorText,
    Ids,
    Keys,
    Partitions,
    SourceUrl,
    States,
    check_exist,
    choice,
    opened,
    read_dead_letters,
    whose,
)
from evenflow.cli.output import columns, json_time, print_json, printable, say, show_time
from evenflow.cli.selection import AsJson, DeadLettersUrl, GroupName, ProfileName, StoreUrl
from evenflow.core.filed import OPEN
from evenflow.operate.dead_letters.redrive import DeadLetterFilter, matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.profiles import Profile
    from evenflow.core.filed import Filed
    from evenflow.model import Group

HEADERS = ("ID", "STATE", "TRIES", "KEY", "REASON", "ATTEMPTS", "FILED", "ERROR")
NUMBERS = ("TRIES", "ATTEMPTS")


def listing(
    ids: Ids = None,
    dead_letters: DeadLettersUrl = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    partition: Partitions = None,
    key: Keys = None,
    error: ErrorText = "",
    state: States = None,
    everything: Annotated[bool, typer.Option("--all", help="Include those that are redriven or dropped.")] = False,
    as_json: AsJson = False,
) -> None:
    """List dead letters: by default those that are dead or waiting to be redriven."""
    wanted = choice(ids, partition, key, error, state or (() if everything or ids else OPEN))
    asyncio.run(_list(whose(dead_letters, store, source, group, profile), wanted, as_json=as_json))


async def _list(selection: Profile, wanted: DeadLetterFilter, *, as_json: bool) -> None:
    async with opened(selection) as at:
        filed, damage = await read_dead_letters(at)
    if damage is None:
        check_exist(wanted.ids, filed)
    found = matching(filed, wanted)
    if as_json:
        print_json({**group_facts(at.group), "dead_letters": [dead_letter_facts(one) for one in found]})
    elif found:
        typer.echo("\n".join(table(found)))
    else:
        say(_why_empty(filed, wanted))
    if damage is not None:
        say(f"error: {damage}")
        raise typer.Exit(1)


def _why_empty(filed: Sequence[Filed], wanted: DeadLetterFilter) -> str:
    """There are no dead letters at all, none of them is open, or none matches the filter."""
    if not filed:
        return "no dead letters"
    if wanted == DeadLetterFilter(states=frozenset(OPEN)):
        return f"no open dead letters; {len(filed)} redriven or dropped (--all shows them)"
    return "no dead letters match"


def table(found: Sequence[Filed]) -> list[str]:
    return columns(HEADERS, [_cells(one) for one in found], NUMBERS)


def group_facts(group: Group) -> dict[str, Any]:
    return {"namespace": group.namespace, "hub": group.hub, "group": group.name}


def dead_letter_facts(filed: Filed) -> dict[str, Any]:
    dead_letter = filed.dead_letter
    return {
        "dead_letter": dead_letter.id,
        "state": filed.state,
        "tries": filed.number,
        "partition": dead_letter.partition,
        "offset": dead_letter.event.offset,
        "sequence": dead_letter.event.sequence,
        "enqueued_at": json_time(dead_letter.event.enqueued_at) if dead_letter.event.enqueued_us else None,
        "key": dead_letter.event.key,
        "reason": dead_letter.reason,
        "error": filed.error,
        "attempts": dead_letter.attempts,
        "instance": dead_letter.instance or None,
        "epoch": dead_letter.epoch or None,
        "filed_at": json_time(dead_letter.at or None),
    }


def _cells(filed: Filed) -> Sequence[object]:
    dead_letter = filed.dead_letter
    key = None if dead_letter.event.key is None else printable(dead_letter.event.key)
    error = printable(filed.error.strip().partition("\n")[0])
    return (
        printable(dead_letter.id), filed.state, filed.number, key, dead_letter.reason, dead_letter.attempts,
        show_time(dead_letter.at or None), error,
    )  # fmt: skip
