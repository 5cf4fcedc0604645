"""Shared by the commands for dead letters: their options, and opening the target and the store that these name."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from evenflow.cli.selection import require_group, selection_from
from evenflow.core.filed import STATES, Filed, fold
from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import Group
from evenflow.operate.dead_letters.redrive import DeadLetterFilter, OperatedStore
from evenflow.operate.inspect.survey import find_group
from evenflow.urls import check_url, open_dead_letters, open_source, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from evenflow.cli.profiles import Profile
    from evenflow.ports import DeadLetters, Source, Store

SourceUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--source", metavar="URL", help="Event source whose group is meant, such as hub:data/homes."),
]
Ids: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of dead letters: PARTITION@OFFSET.", show_default=False),
]
Partitions: TypeAlias = Annotated[
    list[str] | None, typer.Option("--partition", metavar="ID", help="Only of this partition; repeat it for more.")
]
Keys: TypeAlias = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="Only of events with this key; repeat it for more.")
]
ErrorText: TypeAlias = Annotated[
    str, typer.Option("--error", metavar="TEXT", help="Only those whose error contains this text.")
]
States: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Only in this state ({', '.join(STATES)}); repeat it for more."),
]
Everything: TypeAlias = Annotated[
    bool, typer.Option("--all", help="Select all that are dead or waiting to be redriven.")
]


class OpenedDeadLetters(NamedTuple):
    """The dead-letter target, the group, and the store if the command needs one."""

    dead_letters: DeadLetters
    group: Group
    store: Store | None

    @property
    def operated(self) -> OperatedStore:
        store: object = self.store
        if not isinstance(store, OperatedStore):
            raise Misconfigured(
                f"{type(store).__name__} does not support operator requests; use a store that implements Steerable."
            )
        return store


def whose(
    dead_letters: str | None,
    store: str | None,
    source: str | None,
    group: str | None,
    profile: str | None,
    *,
    needs_store: bool = False,
) -> Profile:
    """The dead letters that the flags or the profile name. A command that only reads needs no store."""
    chosen = selection_from(profile, dead_letters=dead_letters, store=store, source=source, group=group)
    if chosen.dead_letters is None:
        raise typer.BadParameter(
            "no dead-letter target given; pass --dead-letters URL, such as jsonl:data/dead.",
            param_hint="--dead-letters",
        )
    if chosen.store is None and (needs_store or chosen.source is None):
        alternative = "" if needs_store else ", or --source URL to name the group's hub"
        raise typer.BadParameter(
            f"no store given; pass --store URL, such as sqlite:data/leases{alternative}.", param_hint="--store"
        )
    for kind, url in (("dead letters", chosen.dead_letters), ("store", chosen.store), ("source", chosen.source)):
        if url is not None:
            check_url(kind, url)
    return require_group(chosen)


@asynccontextmanager
async def opened(chosen: Profile) -> AsyncIterator[OpenedDeadLetters]:
    """Open the target and the store without creating them: a mistyped name must not leave an empty target."""
    assert chosen.dead_letters is not None
    assert chosen.group is not None
    async with AsyncExitStack() as stack:
        dead_letters = open_dead_letters(chosen.dead_letters, create=False)
        stack.push_async_callback(dead_letters.aclose)
        source = open_source(chosen.source) if chosen.source is not None else None
        if source is not None:
            stack.push_async_callback(source.aclose)
        store = open_store(chosen.store, create=False) if chosen.store is not None else None
        if store is not None:
            stack.push_async_callback(store.aclose)
        yield OpenedDeadLetters(dead_letters, await _group(store, source, chosen.group), store)


async def _group(store: Store | None, source: Source | None, name: str) -> Group:
    if store is not None:
        return await find_group(store, name, source)
    assert source is not None
    identity = await source.identity()
    return Group(identity.namespace, identity.hub, name)


async def read_dead_letters(at: OpenedDeadLetters) -> tuple[list[Filed], Corrupt | None]:
    """All dead letters that can be read, and the error if some cannot."""
    records = []
    try:
        async for record in at.dead_letters.read(at.group):
            records.append(record)  # noqa: PERF401 - the records before the error are kept
    except Corrupt as error:
        return fold(records), error
    return fold(records), None


def choice(
    ids: Iterable[str] | None,
    partitions: Iterable[str] | None,
    keys: Iterable[str] | None,
    error: str,
    states: Iterable[str] | None,
) -> DeadLetterFilter:
    wrong = [name for name in ids or () if "@" not in name]
    if wrong:
        raise typer.BadParameter(
            f"{wrong[0]!r} is not the id of a dead letter; write PARTITION@OFFSET.", param_hint="ID"
        )
    unknown = [state for state in states or () if state not in STATES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not a state; use {', '.join(STATES)}.", param_hint="--state")
    return DeadLetterFilter(
        ids=frozenset(ids or ()),
        partitions=frozenset(partitions or ()),
        keys=frozenset(keys or ()),
        states=frozenset(states or ()),
        error=error,
    )


def check_exist(ids: Iterable[str], filed: Iterable[Filed]) -> None:
    missing = sorted(set(ids) - {one.dead_letter.id for one in filed})
    if missing:
        raise Misconfigured(
            f"This group has no dead letter {', '.join(missing)}. `evenflow dead-letters list --all` lists them."
        )
