"""Which group a command works on: `--source`, `--store` and `--group`, or a `--profile`. Flags override the profile."""

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
    str | None,
    typer.Option("--store", metavar="URL", help="Store of the leases and checkpoints, such as sqlite:data/leases."),
]
SourceUrl: TypeAlias = Annotated[
    str | None, typer.Option("--source", metavar="URL", help="Event source (needed for lag), such as hub:data/homes.")
]
GroupName: TypeAlias = Annotated[str | None, typer.Option("--group", metavar="NAME", help="Consumer group.")]
ProfileName: TypeAlias = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help=f"Profile in {FILE} that names these (or set {ENVIRONMENT})."),
]
DeadLettersUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--dead-letters", metavar="URL", help="Dead-letter target, such as hub:data/dead or jsonl:data/dead."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Whole: TypeAlias = Annotated[bool, typer.Option("--all", help="List ended partitions, too, one per row.")]
Watching: TypeAlias = Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")]
Every: TypeAlias = Annotated[
    float, typer.Option("--every", min=0.1, metavar="SECONDS", help="Refresh interval with --watch.")
]
EVERY_S = 2.0


class GroupSelection(Profile, frozen=True, kw_only=True):
    """The selected group, and the flags that select it again in the commands that findings suggest."""

    hints: Hints = Hints()


class OpenedGroup(Struct, frozen=True):
    """The open store, the selected group, and its event source if one was given."""

    store: Store
    source: Source | None
    group: Group


def selection_from(profile: str | None, **flags: str | None) -> GroupSelection:
    """Flags override the profile. With `--store`, the default profile is ignored unless it is named."""
    found, is_named = choose(profile, Path.cwd())
    if flags.get("store") is not None and not is_named:
        found = Profile()
    selected = merged(found, **flags)
    return GroupSelection(**asdict(selected), hints=_hints(selected, flags))


def _hints(selected: Profile, given: Mapping[str, str | None]) -> Hints:
    """Flags that select the same group on another terminal; they name the profile even if it is the default one."""
    named = {"profile": selected.name, **given}
    flags = {
        key: f"--{key.replace('_', '-')} {quote(hide_secrets(value))}"
        for key, value in named.items()
        if value is not None
    }
    dead_letters = flags.pop("dead_letters", "" if selected.dead_letters is not None else "--dead-letters URL")
    source = "" if selected.source is not None else "--source URL"
    scheme, _, path = (selected.source or "").partition(":")
    hub = path if scheme == "hub" else ""
    return Hints(flags=" ".join(flags.values()), hub=hub, dead_letters=dead_letters, source=source)


def select_group(
    store: str | None,
    source: str | None = None,
    group: str | None = None,
    profile: str | None = None,
    dead_letters: str | None = None,
) -> GroupSelection:
    """The group that the flags and the profile name; a store is required."""
    chosen = selection_from(profile, store=store, source=source, group=group, dead_letters=dead_letters)
    if chosen.store is None:
        raise typer.BadParameter(
            f"no store given; pass --store URL, or --profile NAME with a profile in {FILE}.", param_hint="--store"
        )
    check_url("store", chosen.store)
    if chosen.source is not None:
        check_url("source", chosen.source)
    if dead_letters is not None:
        check_url("dead letters", dead_letters)
    return chosen


def require_group(chosen: GroupSelection) -> GroupSelection:
    """For commands that work on one group."""
    if chosen.group is None:
        raise typer.BadParameter(
            "no group given; pass --group NAME (`evenflow group list` lists them).", param_hint="--group"
        )
    return chosen


def require_source(chosen: GroupSelection, why: str) -> GroupSelection:
    if chosen.source is None:
        raise typer.BadParameter(
            f"no source given; {why}. Pass --source URL, such as hub:data/homes.", param_hint="--source"
        )
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
) -> AsyncIterator[OpenedGroup]:
    assert chosen.group is not None
    async with opened_store(chosen) as (store, source):
        group = await find(store, chosen.group, source)
        async with in_its_mode(chosen, store, source, group) as source:
            yield OpenedGroup(store, source, group)


@asynccontextmanager
async def in_its_mode(
    chosen: Profile, store: Store, source: Source | None, group: Group | None
) -> AsyncIterator[Source | None]:
    """The source in the mode in which the group reads it, if the URL gives no mode: an operator need not know it."""
    other = await _other_mode(chosen.source, store, source, group)
    if other is None:
        yield source
        return
    reopened = open_source(other)
    try:
        yield reopened
    finally:
        await reopened.aclose()


async def _other_mode(url: str | None, store: Store, source: Source | None, group: Group | None) -> str | None:
    """The URL with the group's mode; None if the source has that mode already, or belongs to another hub."""
    if url is None or source is None or group is None or not is_of_no_mode(url):
        return None
    ledger = await operable(store).peek(group)
    made, mode = made_and_mode(ledger.state.source if ledger is not None else "")
    if mode == USUAL_MODE:
        return None
    identity = await identity_of(source)
    return feed_url(url, {"mode": mode}) if identity is not None and identity.made == made else None
