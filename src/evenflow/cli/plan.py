"""`evenflow plan --members N`: what would move if there were N instances."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.looking import one_look
from evenflow.cli.output import columns, print_json, say
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, which, with_group
from evenflow.observe.foresight import Foresight, foresee
from evenflow.observe.ownership import natural
from evenflow.observe.words import count_of, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Assignment, Group

MOVE_HEADERS = ("PARTITION", "FROM", "TO", "REASON")
MEMBERS_MOST = 10_000
SHARE_HEADERS = ("MEMBER", "NOW", "SHARE")


def plan(
    members: Annotated[
        int | None,
        typer.Option(
            "--members", min=0, max=MEMBERS_MOST, metavar="N", help="With so many; by default with those there are."
        ),
    ] = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Show what would move with N instances, and each one's share. It changes nothing."""
    chosen = with_group(which(store, source, group, profile))
    look = asyncio.run(one_look(chosen, moves=0, actions=0))
    seen = foresee(look.found, look.silences, members)
    for problem in look.found.problems:
        say(f"warning: {problem}")
    if as_json:
        print_json(_facts(look.group, seen))
    else:
        typer.echo("\n".join(_lines(seen)))


def _facts(group: Group, seen: Foresight) -> dict[str, Any]:
    return {
        "namespace": group.namespace,
        "hub": group.hub,
        "group": group.name,
        "added": seen.added,
        "removed": seen.removed,
        "paused": seen.paused,
        "moves": [move._asdict() for move in _moves(seen)],
        "shares": [{"member": name, "now": now, "share": share} for name, now, share in _shares(seen)],
    }


def _lines(seen: Foresight) -> list[str]:
    moves = _moves(seen)
    changed = [f"added: {listed(seen.added)}"] if seen.added else []
    changed += [f"removed: {listed(seen.removed)} (the youngest)"] if seen.removed else []
    changed += [f"paused, so nobody gets them: {listed(seen.paused)}"] if seen.paused else []
    head = f"{count_of(len(seen.seats), 'instance')}, {count_of(len(moves), 'move')} of"
    lines = [f"{head} {count_of(len(seen.plan.owners), 'partition')}", *changed]
    if moves:
        lines += ["", *columns(MOVE_HEADERS, moves)]
    return [*lines, "", *columns(SHARE_HEADERS, _shares(seen), SHARE_HEADERS[1:])]


def _moves(seen: Foresight) -> list[Assignment]:
    return sorted(seen.plan.moves, key=lambda move: natural(move.partition))


def _shares(seen: Foresight) -> Sequence[tuple[str, int, int]]:
    """Those that are there first."""
    names = {*seen.plan.shares, *seen.removed, *(owner for owner in seen.owners.values() if owner)}
    names_in_order = sorted(names, key=lambda name: (name in seen.added, natural(name)))
    return [(name, seen.owned(name), seen.plan.shares.get(name, 0)) for name in names_in_order]
