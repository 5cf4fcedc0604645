"""`evenflow top`: a group live, with rates; like `group describe --watch`, and with what is wrong first."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from evenflow.cli.frame import frame
from evenflow.cli.looking import looks
from evenflow.cli.output import print_json, say
from evenflow.cli.picture import Picture
from evenflow.cli.which import (
    EVERY_S,
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    which,
    with_group,
    with_source,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.operate.inspect.watcher import GroupSnapshot


def top(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = EVERY_S,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after so many looks.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a group live: what is wrong, events per second, lag and when it is caught up. Ctrl-C ends it.

    Without a terminal it prints one frame a look. Rates need two looks.
    """
    chosen = with_source(with_group(which(store, source, group, profile)), "to know lag and rates")
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_show(looks(chosen, every, moves=0, actions=0), count, as_json=as_json))


async def _show(all_looks: Any, count: int | None, *, as_json: bool) -> None:
    async with aclosing(all_looks):
        bounded = _first(all_looks, count)
        console = Console()
        if as_json:
            async for look in bounded:
                print_json(Picture(look).as_facts())
        elif console.is_terminal and not console.is_dumb_terminal:
            await _live(bounded, console)
        else:
            async for look in bounded:
                for problem in look.found.problems:
                    say(f"warning: {problem}")
                print("\n".join([*(line.plain.rstrip() for line in frame(look)), ""]), flush=True)


async def _first(all_looks: AsyncIterator[GroupSnapshot], count: int | None) -> AsyncIterator[GroupSnapshot]:
    """Without waiting for the look after the last."""
    number = 0
    async for look in all_looks:
        yield look
        number += 1
        if number == count:
            return


async def _live(all_looks: AsyncIterator[GroupSnapshot], console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for look in all_looks:
            width, height = console.size
            lines = frame(look, height)
            for line in lines:
                line.truncate(width, overflow="ellipsis")
            live.update(Text("\n", no_wrap=True, overflow="crop").join(lines), refresh=True)
