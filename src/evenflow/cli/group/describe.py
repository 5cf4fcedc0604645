"""`evenflow group describe`: everything about one group."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.cli.looking import ACTIONS, MOVES, looks, show_looks
from evenflow.cli.picture import Picture
from evenflow.cli.which import (
    EVERY_S,
    AsJson,
    DeadLettersUrl,
    Every,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    Watching,
    which,
    with_group,
)


def describe(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    dead_letters: DeadLettersUrl = None,
    moves: Annotated[int, typer.Option(min=0, help="How many of the last moves to show.")] = MOVES,
    actions: Annotated[int, typer.Option(min=0, help="How many of the last actions to show.")] = ACTIONS,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show everything about a group: findings, partitions, members, the last moves and the last actions."""
    chosen = with_group(which(store, source, group, profile, dead_letters))
    found = looks(chosen, every, moves=moves, actions=actions, dead_letters=True)
    show_looks(found, Picture, as_json=as_json, watching=watching)
