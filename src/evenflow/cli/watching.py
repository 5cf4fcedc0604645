"""Reads a group repeatedly and shows it: once or until Ctrl-C, on a terminal or in a pipe."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from evenflow.cli.output import print_json, say
from evenflow.cli.selection import opened
from evenflow.operate.dead_letters.counter import DeadLetterCounter
from evenflow.operate.inspect.survey import find_group_to_look, survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher
from evenflow.runtime.clock import system_clock
from evenflow.urls import open_dead_letters

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from evenflow.cli.selection import GroupSelection

MOVES = 10
ACTIONS = 10


class GroupView(Protocol):
    """A snapshot of a group, rendered for a command."""

    def as_facts(self) -> dict[str, Any]: ...

    def as_lines(self) -> list[str]: ...


async def snapshots(
    chosen: GroupSelection, every_s: float, *, moves: int = MOVES, actions: int = ACTIONS, dead_letters: bool = False
) -> AsyncGenerator[GroupSnapshot, None]:
    """Read the group each time the caller asks for the next snapshot. With `dead_letters`, count its dead letters."""
    clock, watcher = system_clock(), GroupWatcher(chosen.hints)
    url = chosen.dead_letters if dead_letters else None
    desk = DeadLetterCounter(partial(open_dead_letters, url, create=False) if url is not None else None, clock)
    async with opened(chosen, find_group_to_look) as at, aclosing(desk):
        while True:
            found = await survey(at.store, at.group, at.source, moves, actions)
            counted = await desk.counted(at.group)
            found = replace(found, dead_letters=counted.open, problems=(*found.problems, *counted.problems))
            yield watcher.observe(found, clock.now(), clock.wall())
            await clock.sleep(every_s)


async def one_snapshot(chosen: GroupSelection, *, moves: int = MOVES, actions: int = ACTIONS) -> GroupSnapshot:
    async with aclosing(snapshots(chosen, 0.0, moves=moves, actions=actions)) as all_snapshots:
        return await anext(all_snapshots)


def show_snapshots(
    all_snapshots: AsyncGenerator[GroupSnapshot, None],
    made: Callable[[GroupSnapshot], GroupView],
    *,
    as_json: bool,
    watching: bool,
) -> None:
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_show(all_snapshots, made, as_json=as_json, watching=watching))


async def _show(
    all_snapshots: AsyncGenerator[GroupSnapshot, None],
    made: Callable[[GroupSnapshot], GroupView],
    *,
    as_json: bool,
    watching: bool,
) -> None:
    async with aclosing(all_snapshots):
        if not watching:
            await _show_once(await anext(all_snapshots), made, as_json=as_json)
        elif as_json:
            async for look in all_snapshots:
                await _show_once(look, made, as_json=True)
        else:
            await _watch(all_snapshots, made)


async def _show_once(look: GroupSnapshot, made: Callable[[GroupSnapshot], GroupView], *, as_json: bool) -> None:
    for problem in look.found.problems:
        say(f"warning: {problem}")
    shown = made(look)
    if as_json:
        print_json(shown.as_facts())
    else:
        print("\n".join(shown.as_lines()), flush=True)


async def _watch(all_snapshots: AsyncIterator[GroupSnapshot], made: Callable[[GroupSnapshot], GroupView]) -> None:
    """Refresh in place on a terminal; elsewhere print one snapshot below the other."""
    # Imported here because most calls show a single snapshot and need none of this.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        async for look in all_snapshots:
            print("\n".join([*lines_of(look, made), ""]), flush=True)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for look in all_snapshots:
            live.update(Text("\n".join(lines_of(look, made)), no_wrap=True, overflow="crop"), refresh=True)


def lines_of(look: GroupSnapshot, made: Callable[[GroupSnapshot], GroupView]) -> list[str]:
    return [*made(look).as_lines(), *(f"warning: {problem}" for problem in look.found.problems)]
