"""`evenflow plan --members N`: what would move if there were N instances."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.output import columns, print_json, say
from evenflow.cli.selection import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, require_group, select_group
from evenflow.cli.views import part
from evenflow.cli.watching import one_snapshot
from evenflow.operate.inspect.forecast import PlanForecast, forecast_plan
from evenflow.text import count_of, listed, natural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Assignment, Group

MOVE_HEADERS = ("PARTITION", "FROM", "TO", "REASON")
MEMBERS_MOST = 10_000
SHARE_HEADERS = ("MEMBER", "NOW", "SHARE", "LOAD-NOW", "LOAD-THEN")


def plan(
    members: Annotated[
        int | None,
        typer.Option(
            "--members",
            min=0,
            max=MEMBERS_MOST,
            metavar="N",
            help="Number of instances to simulate.",
            show_default="current number",
        ),
    ] = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Show which partitions would move with N instances, and the share of each. Changes nothing."""
    chosen = require_group(select_group(store, source, group, profile))
    look = asyncio.run(one_snapshot(chosen, moves=0, actions=0))
    seen = forecast_plan(look.found, look.silences, members)
    for problem in look.found.problems:
        say(f"warning: {problem}")
    if as_json:
        print_json(_facts(look.group, seen))
    else:
        typer.echo("\n".join(_lines(seen)))


def _facts(group: Group, seen: PlanForecast) -> dict[str, Any]:
    rows = _shares(seen)
    return {
        "namespace": group.namespace,
        "hub": group.hub,
        "group": group.name,
        "added": seen.added,
        "removed": seen.removed,
        "paused": seen.paused,
        "waiting": seen.waiting,
        "moves": [move._asdict() for move in _moves(seen)],
        "shares": [dict(zip(("member", "now", "share", "load_now", "load_then"), row, strict=True)) for row in rows],
    }


def _lines(seen: PlanForecast) -> list[str]:
    moves = _moves(seen)
    changed = [f"added: {listed(seen.added)}"] if seen.added else []
    changed += [f"removed: {listed(seen.removed)} (the newest)"] if seen.removed else []
    changed += [f"not assigned because paused: {listed(seen.paused)}"] if seen.paused else []
    changed += [f"not assigned until their parents have ended: {listed(seen.waiting)}"] if seen.waiting else []
    head = f"{count_of(len(seen.seats), 'instance')}, {count_of(len(moves), 'move')} of"
    lines = [f"{head} {count_of(len(seen.plan.owners), 'partition')}", *changed]
    if not seen.seats:
        return [*lines, "no partition would have an owner: events would wait until an instance starts"]
    if moves:
        lines += ["", *columns(MOVE_HEADERS, moves)]
    by_load = seen.carried(seen.owners) is not None
    width = len(SHARE_HEADERS) if by_load else 3
    rows = [(*row[:3], part(row[3]), part(row[4]))[:width] for row in _shares(seen)]
    return [*lines, "", *columns(SHARE_HEADERS[:width], rows, SHARE_HEADERS[1:])]


def _moves(seen: PlanForecast) -> list[Assignment]:
    return sorted(seen.plan.moves, key=lambda move: natural(move.partition))


def _shares(seen: PlanForecast) -> Sequence[tuple[str, int, int, float | None, float | None]]:
    """A row for each instance, current ones first, with its part of the mean load if the group balances by load."""
    now, then = seen.carried(seen.owners) or {}, seen.carried(seen.plan.owners) or {}
    names = {*seen.plan.shares, *seen.removed, *(owner for owner in seen.owners.values() if owner)}
    names_in_order = sorted(names, key=lambda name: (name in seen.added, natural(name)))
    return [
        (name, seen.owned(name), seen.plan.shares.get(name, 0), now.get(name), then.get(name))
        for name in names_in_order
    ]
