"""What the commands for dead letters have in common: their options, and opening what these name."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from evenflow.cli.which import chosen_by, with_group
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
    str | None, typer.Option("--source", metavar="URL", help="Which hub's group is meant: hub:data/homes")
]
Ids: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Dead letters by name: PARTITION@OFFSET.", show_default=False)
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


class Desk(NamedTuple):
    """What was opened for one command."""

    dead_letters: DeadLetters
    group: Group
    store: Store | None

    @property
    def operated(self) -> OperatedStore:
        store: object = self.store
        if not isinstance(store, OperatedStore):
            raise Misconfigured(f"{type(store).__name__} cannot be steered; this needs a store that is Steerable.")
        return store


def whose(
    dead_letters: str | None,
    store: str | None,
    source: str | None,
    group: str | None,
    profile: str | None,
    *,
    steers: bool = False,
) -> Profile:
    """Which dead letters are meant: by flags, or by a profile. Who only looks can do without a store."""
    chosen = chosen_by(profile, dead_letters=dead_letters, store=store, source=source, group=group)
    if chosen.dead_letters is None:
        raise typer.BadParameter(
            "say where the dead letters are: --dead-letters jsonl:data/dead.", param_hint="--dead-letters"
        )
    if chosen.store is None and (steers or chosen.source is None):
        both = "" if steers else ", or --source, to say which hub's group is meant"
        raise typer.BadParameter(f"say which store: --store sqlite:data/leases{both}.", param_hint="--store")
    for kind, url in (("dead letters", chosen.dead_letters), ("store", chosen.store), ("source", chosen.source)):
        if url is not None:
            check_url(kind, url)
    return with_group(chosen)


@asynccontextmanager
async def opened(chosen: Profile) -> AsyncIterator[Desk]:
    """Nothing is made: who only looks must not leave an empty target where a name was mistyped."""
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
        yield Desk(dead_letters, await _group(store, source, chosen.group), store)


async def _group(store: Store | None, source: Source | None, name: str) -> Group:
    if store is not None:
        return await find_group(store, name, source)
    assert source is not None
    identity = await source.identity()
    return Group(identity.namespace, identity.hub, name)


async def look(desk: Desk) -> tuple[list[Filed], Corrupt | None]:
    """All dead letters that can be read; and, where some cannot, the error that says so."""
    records = []
    try:
        async for record in desk.dead_letters.read(desk.group):
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
) -> DeadLetterFilter:
    wrong = [name for name in ids or () if "@" not in name]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}: a dead letter is named PARTITION@OFFSET.", param_hint="ID")
    unknown = [state for state in states or () if state not in STATES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}: a state is {', '.join(STATES)}.", param_hint="--state")
    return DeadLetterFilter(
        ids=frozenset(ids or ()),
        partitions=frozenset(partitions or ()),
        keys=frozenset(keys or ()),
        states=frozenset(states or ()),
        error=error,
    )


def check_there(ids: Iterable[str], filed: Iterable[Filed]) -> None:
    missing = sorted(set(ids) - {one.dead_letter.id for one in filed})
    if missing:
        raise Misconfigured(f"This group has no dead letter {', '.join(missing)}. See `dead-letters list --all`.")
