"""Looks at a group one after the other, and how they are shown: once, again and again, on a terminal or in a pipe."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from evenflow.cli.output import print_json, say
from evenflow.cli.which import opened
from evenflow.operate.dead_letters.counter import DeadLetterCounter
from evenflow.operate.inspect.survey import find_group_to_look, survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher
from evenflow.runtime.clock import system_clock
from evenflow.urls import open_dead_letters

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from evenflow.cli.which import Chosen

MOVES = 10
ACTIONS = 10


class Shown(Protocol):
    """A look made readable."""

    def as_facts(self) -> dict[str, Any]: ...

    def as_lines(self) -> list[str]: ...


async def looks(
    chosen: Chosen, every_s: float, *, moves: int = MOVES, actions: int = ACTIONS, dead_letters: bool = False
) -> AsyncGenerator[GroupSnapshot, None]:
    """Look again and again, while the caller asks for the next look. With `dead_letters`, dead ones are counted."""
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


async def one_look(chosen: Chosen, *, moves: int = MOVES, actions: int = ACTIONS) -> GroupSnapshot:
    async with aclosing(looks(chosen, 0.0, moves=moves, actions=actions)) as all_looks:
        return await anext(all_looks)


def show_looks(
    all_looks: AsyncGenerator[GroupSnapshot, None],
    made: Callable[[GroupSnapshot], Shown],
    *,
    as_json: bool,
    watching: bool,
) -> None:
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_show(all_looks, made, as_json=as_json, watching=watching))


async def _show(
    all_looks: AsyncGenerator[GroupSnapshot, None],
    made: Callable[[GroupSnapshot], Shown],
    *,
    as_json: bool,
    watching: bool,
) -> None:
    async with aclosing(all_looks):
        if not watching:
            await _show_once(await anext(all_looks), made, as_json=as_json)
        elif as_json:
            async for look in all_looks:
                await _show_once(look, made, as_json=True)
        else:
            await _watch(all_looks, made)


async def _show_once(look: GroupSnapshot, made: Callable[[GroupSnapshot], Shown], *, as_json: bool) -> None:
    for problem in look.found.problems:
        say(f"warning: {problem}")
    shown = made(look)
    if as_json:
        print_json(shown.as_facts())
    else:
        print("\n".join(shown.as_lines()), flush=True)


async def _watch(all_looks: AsyncIterator[GroupSnapshot], made: Callable[[GroupSnapshot], Shown]) -> None:
    """In place on a terminal, one below the other elsewhere."""
    # One look needs nothing of this, and is what most people ask for.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        async for look in all_looks:
            print("\n".join([*lines_of(look, made), ""]), flush=True)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for look in all_looks:
            live.update(Text("\n".join(lines_of(look, made)), no_wrap=True, overflow="crop"), refresh=True)


def lines_of(look: GroupSnapshot, made: Callable[[GroupSnapshot], Shown]) -> list[str]:
    return [*made(look).as_lines(), *(f"warning: {problem}" for problem in look.found.problems)]
