"""`evenflow top`: a live view of a group with rates; like `group describe --watch`, with problems first."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from evenflow.cli.output import print_json, say
from evenflow.cli.selection import (
    EVERY_S,
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    require_group,
    require_source,
    select_group,
)
from evenflow.cli.top_frame import frame
from evenflow.cli.views import DescribeView
from evenflow.cli.watching import snapshots
from evenflow.operate.inspect.watcher import GroupSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def top(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Refresh interval.")] = EVERY_S,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Exit after N refreshes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a live view of a group: problems, events per second, lag, time to catch up. Ctrl-C exits.

    Without a terminal it prints one frame per refresh. Rates are shown from the second refresh on.
    """
    chosen = require_source(
        require_group(select_group(store, source, group, profile)), "lag and rates are measured against it"
    )
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_show(snapshots(chosen, every, moves=0, actions=0), count, as_json=as_json))


async def _show(all_snapshots: Any, count: int | None, *, as_json: bool) -> None:
    async with aclosing(all_snapshots):
        bounded = _first(all_snapshots, count)
        console = Console()
        if as_json:
            async for look in bounded:
                print_json(DescribeView(look).as_facts())
        elif console.is_terminal and not console.is_dumb_terminal:
            await _live(bounded, console)
        else:
            async for look in bounded:
                for problem in look.found.problems:
                    say(f"warning: {problem}")
                print("\n".join([*(line.plain.rstrip() for line in frame(look)), ""]), flush=True)


async def _first(all_snapshots: AsyncIterator[GroupSnapshot], count: int | None) -> AsyncIterator[GroupSnapshot]:
    """The first `count` snapshots, without waiting for the next one."""
    number = 0
    async for look in all_snapshots:
        yield look
        number += 1
        if number == count:
            return


async def _live(all_snapshots: AsyncIterator[GroupSnapshot], console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for look in all_snapshots:
            width, height = console.size
            lines = frame(look, height)
            for line in lines:
                line.truncate(width, overflow="ellipsis")
            live.update(Text("\n", no_wrap=True, overflow="crop").join(lines), refresh=True)
