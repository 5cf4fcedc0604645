"""`evenflow status` and `evenflow lag`: the short forms of `evenflow group describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.cli.group.listing import show_groups
from evenflow.cli.looking import MOVES, looks, show_looks
from evenflow.cli.picture import LagPicture, Short
from evenflow.cli.which import (
    EVERY_S,
    AsJson,
    Every,
    GroupName,
    LettersUrl,
    ProfileName,
    SourceUrl,
    StoreUrl,
    Watching,
    which,
    with_group,
    with_source,
)


def status(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    letters: LettersUrl = None,
    moves: Annotated[int, typer.Option(min=0, help="How many of the last moves to show.")] = MOVES,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show who owns what in a group, and how far it is. Without a group: the groups there are."""
    chosen = which(store, source, group, profile, letters)
    if chosen.group is None:
        show_groups(chosen, as_json=as_json)
        return
    show_looks(looks(chosen, every, moves=moves, letters=True), Short, as_json=as_json, watching=watching)


def lag(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show how far each partition is behind: in events, in seconds, and whether that grows (with --watch)."""
    chosen = with_source(with_group(which(store, source, group, profile)), "to know how much is behind")
    show_looks(looks(chosen, every, moves=0, actions=0), LagPicture, as_json=as_json, watching=watching)
