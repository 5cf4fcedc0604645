"""The one way to say which group is meant: `--source`, `--store` and `--group`, or `--profile`. Flags win."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from msgspec import Struct
from msgspec.structs import asdict

from evenflow.cli.profiles import ENVIRONMENT, FILE, Profile, choose, merged
from evenflow.model import USUAL_MODE, made_and_mode
from evenflow.operate.inspect.hints import Hints
from evenflow.operate.inspect.survey import find_group, identity_of, operable
from evenflow.urls import check_url, feed_url, hide_secrets, is_of_no_mode, open_source, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from evenflow.model import Group
    from evenflow.ports import Source, Store

StoreUrl: TypeAlias = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Where the instances agree: sqlite:data/leases")
]
SourceUrl: TypeAlias = Annotated[
    str | None, typer.Option("--source", metavar="URL", help="Where events come from, for lag: hub:data/homes")
]
GroupName: TypeAlias = Annotated[str | None, typer.Option("--group", metavar="NAME", help="The consumer group.")]
ProfileName: TypeAlias = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help=f"Take these from {FILE} (or set {ENVIRONMENT})."),
]
DeadLettersUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--dead-letters", metavar="URL", help="Where the dead letters are: hub:data/dead, jsonl:data/dead"),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Whole: TypeAlias = Annotated[bool, typer.Option("--all", help="Also those partitions that have ended, one by one.")]
Watching: TypeAlias = Annotated[bool, typer.Option("--watch", help="Show it anew again and again, until Ctrl-C.")]
Every: TypeAlias = Annotated[
    float, typer.Option("--every", min=0.1, metavar="SECONDS", help="How often to look, with --watch.")
]
EVERY_S = 2.0


class Chosen(Profile, frozen=True, kw_only=True):
    """The group that is meant, and how it was said."""

    hints: Hints = Hints()


class Opened(Struct, frozen=True):
    """A store, the group that is meant, and where its events come from, if that was said."""

    store: Store
    source: Source | None
    group: Group


def chosen_by(profile: str | None, **flags: str | None) -> Chosen:
    """A default profile is left alone by those who name a store themselves."""
    found, asked = choose(profile, Path.cwd())
    if flags.get("store") is not None and not asked:
        found = Profile()
    meant = merged(found, **flags)
    return Chosen(**asdict(meant), hints=_hints(meant, flags))


def _hints(meant: Profile, given: Mapping[str, str | None]) -> Hints:
    """The same again, for whoever pastes a command elsewhere: a profile is named, also the default one."""
    named = {"profile": meant.name, **given}
    flags = {key: f"--{key} {quote(hide_secrets(value))}" for key, value in named.items() if value is not None}
    dead_letters = flags.pop("dead_letters", "" if meant.dead_letters is not None else "--dead-letters URL")
    source = "" if meant.source is not None else "--source URL"
    hub = meant.source.removeprefix("hub:") if meant.source is not None and meant.source.startswith("hub:") else ""
    return Hints(flags=" ".join(flags.values()), hub=hub, dead_letters=dead_letters, source=source)


def which(
    store: str | None,
    source: str | None = None,
    group: str | None = None,
    profile: str | None = None,
    dead_letters: str | None = None,
) -> Chosen:
    """From the command line and the profile; a store is needed."""
    chosen = chosen_by(profile, store=store, source=source, group=group, dead_letters=dead_letters)
    if chosen.store is None:
        raise typer.BadParameter(
            f"say which store: --store URL, or --profile NAME with a profile in {FILE}.", param_hint="--store"
        )
    check_url("store", chosen.store)
    if chosen.source is not None:
        check_url("source", chosen.source)
    if dead_letters is not None:
        check_url("dead letters", dead_letters)
    return chosen


def with_group(chosen: Chosen) -> Chosen:
    """For commands that mean one group."""
    if chosen.group is None:
        raise typer.BadParameter("say which group; evenflow group list shows those there are.", param_hint="--group")
    return chosen


def with_source(chosen: Chosen, why: str) -> Chosen:
    if chosen.source is None:
        raise typer.BadParameter(f"say where events come from, {why}: --source hub:data/homes.", param_hint="--source")
    return chosen


@asynccontextmanager
async def opened_store(chosen: Profile) -> AsyncIterator[tuple[Store, Source | None]]:
    assert chosen.store is not None
    store = open_store(chosen.store, create=False)
    try:
        source = open_source(chosen.source) if chosen.source is not None else None
        try:
            yield store, source
        finally:
            if source is not None:
                await source.aclose()
    finally:
        await store.aclose()


@asynccontextmanager
async def opened(
    chosen: Profile, find: Callable[[Store, str, Source | None], Awaitable[Group]] = find_group
) -> AsyncIterator[Opened]:
    assert chosen.group is not None
    async with opened_store(chosen) as (store, source):
        group = await find(store, chosen.group, source)
        async with in_its_mode(chosen, store, source, group) as source:
            yield Opened(store, source, group)


@asynccontextmanager
async def in_its_mode(
    chosen: Profile, store: Store, source: Source | None, group: Group | None
) -> AsyncIterator[Source | None]:
    """The source as the group reads it, where the URL says no mode: who looks need not know it."""
    other = await _other_mode(chosen.source, store, source, group)
    if other is None:
        yield source
        return
    opened_anew = open_source(other)
    try:
        yield opened_anew
    finally:
        await opened_anew.aclose()


async def _other_mode(url: str | None, store: Store, source: Source | None, group: Group | None) -> str | None:
    """The URL with the group's mode; None where that is the one which it has. Another hub's mode says nothing."""
    if url is None or source is None or group is None or not is_of_no_mode(url):
        return None
    ledger = await operable(store).peek(group)
    made, mode = made_and_mode(ledger.state.source if ledger is not None else "")
    if mode == USUAL_MODE:
        return None
    identity = await identity_of(source)
    return feed_url(url, {"mode": mode}) if identity is not None and identity.made == made else None
