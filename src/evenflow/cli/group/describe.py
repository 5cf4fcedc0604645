"""`evenflow group describe`: shows everything about one group."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.cli.selection import (
    EVERY_S,
    AsJson,
    DeadLettersUrl,
    Every,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    Watching,
    require_group,
    select_group,
)
from evenflow.cli.views import DescribeView
from evenflow.cli.watching import ACTIONS, MOVES, show_snapshots, snapshots


def describe(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    dead_letters: DeadLettersUrl = None,
    moves: Annotated[int, typer.Option(min=0, help="Number of recent moves to show.")] = MOVES,
    actions: Annotated[int, typer.Option(min=0, help="Number of recent actions to show.")] = ACTIONS,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show everything about a group: findings, partitions, members, recent moves and recent actions."""
    chosen = require_group(select_group(store, source, group, profile, dead_letters))
    found = snapshots(chosen, every, moves=moves, actions=actions, dead_letters=True)
    show_snapshots(found, DescribeView, as_json=as_json, watching=watching)
