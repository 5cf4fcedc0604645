"""`evenflow status`, `evenflow lag` and `evenflow metrics`: the short forms of `evenflow group describe`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.group.listing import show_groups
from evenflow.cli.looking import MOVES, looks, show_looks
from evenflow.cli.output import say
from evenflow.cli.picture import LagPicture, Short
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
    Whole,
    which,
    with_group,
    with_source,
)
from evenflow.errors import HubReplaced, Misconfigured
from evenflow.operate.inspect.metrics import exposition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from evenflow.operate.inspect.watcher import GroupSnapshot


def status(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    dead_letters: DeadLettersUrl = None,
    moves: Annotated[int, typer.Option(min=0, help="How many of the last moves to show.")] = MOVES,
    whole: Whole = False,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show who owns what in a group, and how far it is. Without a group: the groups there are."""
    chosen = which(store, source, group, profile, dead_letters)
    if chosen.group is None:
        show_groups(chosen, as_json=as_json)
        return
    made = partial(Short, whole=whole)
    show_looks(looks(chosen, every, moves=moves, dead_letters=True), made, as_json=as_json, watching=watching)


def lag(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    whole: Whole = False,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show how far each partition is behind: in events, in seconds, and whether that grows (with --watch)."""
    chosen = with_source(with_group(which(store, source, group, profile)), "to know how much is behind")
    made = partial(LagPicture, whole=whole)
    looked = _of_its_own(looks(chosen, every, moves=0, actions=0))
    show_looks(looked, made, as_json=as_json, watching=watching)


async def _of_its_own(all_looks: AsyncGenerator[GroupSnapshot, None]) -> AsyncGenerator[GroupSnapshot, None]:
    """Lag is all that is asked for here: a source that is not the group's is an error."""
    async with aclosing(all_looks):
        async for look in all_looks:
            if look.found.has_different_source:
                finding = look.findings[0]
                error = HubReplaced if finding.kind == "another hub" else Misconfigured
                raise error(f"group {look.group}: {finding}")
            yield look


def metrics(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    dead_letters: DeadLettersUrl = None,
    over: Annotated[
        float, typer.Option("--over", min=0.0, metavar="SECONDS", help="Look twice, so far apart: rates need that.")
    ] = 0.0,
) -> None:
    """Print lag, owners, instances and findings of a group once, as Prometheus reads them.

    `evenflow console` serves the same at /metrics, for all groups, again and again.
    """
    chosen = with_group(which(store, source, group, profile, dead_letters))
    with suppress(KeyboardInterrupt, BrokenPipeError):
        look = asyncio.run(_last_of(looks(chosen, over, moves=0, actions=0, dead_letters=True), 2 if over else 1))
        for problem in look.found.problems:
            say(f"warning: {problem}")
        print(exposition([look]), end="", flush=True)


async def _last_of(all_looks: AsyncGenerator[GroupSnapshot, None], count: int) -> GroupSnapshot:
    async with aclosing(all_looks):
        for _ in range(count - 1):
            await anext(all_looks)
        return await anext(all_looks)
