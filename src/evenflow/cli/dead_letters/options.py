"""What the commands for dead letters have in common: their options, and opening what these name."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from evenflow.core.filed import STATES, Filed, fold
from evenflow.errors import Corrupt, Misconfigured
from evenflow.letters.redrive import Choice, OperatedStore
from evenflow.model import Group
from evenflow.observe.survey import find_group
from evenflow.urls import open_letters, open_source, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from evenflow.ports import DeadLetters, Source, Store

LettersUrl: TypeAlias = Annotated[
    str, typer.Option("--letters", metavar="URL", help="Where the dead letters are: hub:data/dead, jsonl:data/dead")
]
GroupName: TypeAlias = Annotated[str, typer.Option("--group", metavar="NAME", help="Whose letters.")]
StoreUrl: TypeAlias = Annotated[
    str, typer.Option("--store", metavar="URL", help="Where the group's instances agree: sqlite:data/leases")
]
MaybeStoreUrl: TypeAlias = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Where the group's instances agree; or give --source.")
]
SourceUrl: TypeAlias = Annotated[
    str | None, typer.Option("--source", metavar="URL", help="Which hub's group is meant: hub:data/homes")
]
Ids: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Letters by name: PARTITION@OFFSET.", show_default=False)
]
Partitions: TypeAlias = Annotated[
    list[str] | None, typer.Option("--partition", metavar="ID", help="Of this partition.")
]
Keys: TypeAlias = Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Of events with this key.")]
ErrorText: TypeAlias = Annotated[str, typer.Option("--error", metavar="TEXT", help="Whose error has this in it.")]
States: TypeAlias = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help=f"In this state: {', '.join(STATES)}.")
]
Everything: TypeAlias = Annotated[bool, typer.Option("--all", help="All that are dead, or to be handled again.")]
Why: TypeAlias = Annotated[str, typer.Option("--why", metavar="TEXT", help="For the record.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Desk(NamedTuple):
    """What was opened for one command."""

    letters: DeadLetters
    group: Group
    store: Store | None

    @property
    def operated(self) -> OperatedStore:
        store: object = self.store
        if not isinstance(store, OperatedStore):
            raise Misconfigured(f"{type(store).__name__} cannot be steered; this needs a store that is Steerable.")
        return store


@asynccontextmanager
async def opened(letters_url: str, store_url: str | None, source_url: str | None, name: str) -> AsyncIterator[Desk]:
    """Nothing is made: who only looks must not leave an empty target where a name was mistyped."""
    async with AsyncExitStack() as stack:
        letters = open_letters(letters_url, create=False)
        stack.push_async_callback(letters.aclose)
        source = open_source(source_url) if source_url is not None else None
        if source is not None:
            stack.push_async_callback(source.aclose)
        store = open_store(store_url, create=False) if store_url is not None else None
        if store is not None:
            stack.push_async_callback(store.aclose)
        yield Desk(letters, await _group(store, source, name), store)


async def _group(store: Store | None, source: Source | None, name: str) -> Group:
    if store is not None:
        return await find_group(store, name, source)
    if source is None:
        raise typer.BadParameter("give --store or --source, to say which hub's group is meant.")
    identity = await source.identity()
    return Group(identity.namespace, identity.hub, name)


async def look(desk: Desk) -> tuple[list[Filed], Corrupt | None]:
    """All letters that can be read; and, where some cannot, the error that says so."""
    records = []
    try:
        async for record in desk.letters.read(desk.group):
            records.append(record)  # noqa: PERF401 - what came before the error is wanted
    except Corrupt as error:
        return fold(records), error
    return fold(records), None


def choice(
    ids: Iterable[str] | None,
    partitions: Iterable[str] | None,
    keys: Iterable[str] | None,
    error: str,
    states: Iterable[str] | None,
) -> Choice:
    wrong = [name for name in ids or () if "@" not in name]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}: a letter is named PARTITION@OFFSET.", param_hint="ID")
    unknown = [state for state in states or () if state not in STATES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}: a state is {', '.join(STATES)}.", param_hint="--state")
    return Choice(
        ids=frozenset(ids or ()),
        partitions=frozenset(partitions or ()),
        keys=frozenset(keys or ()),
        states=frozenset(states or ()),
        error=error,
    )


def check_there(ids: Iterable[str], filed: Iterable[Filed]) -> None:
    missing = sorted(set(ids) - {one.letter.id for one in filed})
    if missing:
        raise Misconfigured(f"This group has no dead letter {', '.join(missing)}. See `dead-letters list --all`.")
