"""`evenflow status`: who owns what in a group, how far it is, who takes part, and what moved last and why."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.output import columns, print_json, say
from evenflow.cli.picture import Picture
from evenflow.cli.watching import watch
from evenflow.observe.survey import Beats, find_group, operable, survey
from evenflow.runtime.clock import system_clock
from evenflow.urls import open_source, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from evenflow.ports import Clock

EVERY_S = 2.0


def status(
    store: Annotated[str, typer.Option(metavar="URL", help="Where the instances agree: sqlite:data/leases")],
    source: Annotated[str | None, typer.Option(metavar="URL", help="For lag: hub:data/homes")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Without it: list the groups there are.")] = None,
    moves: Annotated[int, typer.Option(min=0, help="How many of the last moves to show.")] = 10,
    watching: Annotated[bool, typer.Option("--watch", help="Show it anew every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show who owns what in a group, and how far it is."""
    if group is None:
        asyncio.run(_list_groups(store, as_json=as_json))
        return
    looks = _looks(source, store, group, moves, system_clock())
    try:
        asyncio.run(_show(looks, as_json=as_json, watching=watching))
    except KeyboardInterrupt:
        pass


async def _list_groups(url: str, *, as_json: bool) -> None:
    store = open_store(url, create=False)
    try:
        groups = await operable(store).groups()
    finally:
        await store.aclose()
    if as_json:
        print_json({"groups": [{"namespace": one.namespace, "hub": one.hub, "group": one.name} for one in groups]})
    else:
        rows = [(one.namespace, one.hub, one.name) for one in groups]
        typer.echo("\n".join(columns(("NAMESPACE", "HUB", "GROUP"), rows)))


async def _show(looks: AsyncGenerator[Picture, None], *, as_json: bool, watching: bool) -> None:
    async with aclosing(looks):
        if watching and not as_json:
            await watch(looks)
            return
        async for picture in looks:
            for problem in picture.problems:
                say(f"warning: {problem}")
            if as_json:
                print_json(picture.as_facts())
            else:
                typer.echo("\n".join(picture.as_lines()))
            if not watching:
                return


async def _looks(
    source_url: str | None, store_url: str, name: str, moves: int, clock: Clock
) -> AsyncGenerator[Picture, None]:
    """One look after the other, for as long as somebody asks for the next."""
    store = open_store(store_url, create=False)
    source = open_source(source_url) if source_url is not None else None
    beats = Beats()
    try:
        group = await find_group(store, name, source)
        while True:
            found = await survey(store, group, source, moves)
            silences = beats.look(found.ledger.members if found.ledger else (), clock.now())
            yield Picture(found, silences, clock.wall())
            await clock.sleep(EVERY_S)
    finally:
        await store.aclose()
        if source is not None:
            await source.aclose()
