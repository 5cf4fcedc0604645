"""`evenflow status`, `evenflow lag` and `evenflow metrics`: the short forms of `evenflow group describe`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.group.listing import show_groups
from evenflow.cli.output import say
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
    Whole,
    require_group,
    require_source,
    select_group,
)
from evenflow.cli.views import LagView, StatusView
from evenflow.cli.watching import MOVES, show_snapshots, snapshots
from evenflow.errors import HubReplaced, Misconfigured
from evenflow.operate.inspect.metrics import exposition
from evenflow.operate.inspect.watcher import GroupSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def status(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    dead_letters: DeadLettersUrl = None,
    moves: Annotated[int, typer.Option(min=0, help="Number of recent moves to show.")] = MOVES,
    whole: Whole = False,
    watching: Watching = False,
    every: Every = EVERY_S,
    as_json: AsJson = False,
) -> None:
    """Show the owner, status and lag of each partition of a group. Without a group, list the groups of the store."""
    chosen = select_group(store, source, group, profile, dead_letters)
    if chosen.group is None:
        show_groups(chosen, as_json=as_json)
        return
    made = partial(StatusView, whole=whole)
    show_snapshots(snapshots(chosen, every, moves=moves, dead_letters=True), made, as_json=as_json, watching=watching)


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
    """Show the lag of each partition: in events, in time, and with --watch whether it grows."""
    chosen = require_source(require_group(select_group(store, source, group, profile)), "lag is measured against it")
    made = partial(LagView, whole=whole)
    checked = _with_matching_source(snapshots(chosen, every, moves=0, actions=0))
    show_snapshots(checked, made, as_json=as_json, watching=watching)


async def _with_matching_source(
    all_snapshots: AsyncGenerator[GroupSnapshot, None],
) -> AsyncGenerator[GroupSnapshot, None]:
    """The same snapshots. A source that is not the group's is an error: its lag would mean nothing."""
    async with aclosing(all_snapshots):
        async for look in all_snapshots:
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
        float,
        typer.Option(
            "--over", min=0.0, metavar="SECONDS", help="Measure rates over this time (0: print no rates, do not wait)."
        ),
    ] = 0.0,
) -> None:
    """Print lag, owners, instances and findings of a group once, in the text format of Prometheus.

    `evenflow console` serves the same metrics of all groups at /metrics.
    """
    chosen = require_group(select_group(store, source, group, profile, dead_letters))
    with suppress(KeyboardInterrupt, BrokenPipeError):
        look = asyncio.run(_last_of(snapshots(chosen, over, moves=0, actions=0, dead_letters=True), 2 if over else 1))
        for problem in look.found.problems:
            say(f"warning: {problem}")
        print(exposition([look]), end="", flush=True)


async def _last_of(all_snapshots: AsyncGenerator[GroupSnapshot, None], count: int) -> GroupSnapshot:
    async with aclosing(all_snapshots):
        for _ in range(count - 1):
            await anext(all_snapshots)
        return await anext(all_snapshots)
