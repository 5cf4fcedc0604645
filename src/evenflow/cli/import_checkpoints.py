"""`evenflow import-checkpoints`: go on where an EventProcessorHost stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.asking import Partitions, Why, Yes, be_sure, tell, who
from evenflow.cli.asking import carry_out as run
from evenflow.cli.output import columns, print_json, printable, say
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, which, with_group, with_source
from evenflow.errors import Misconfigured
from evenflow.model import Group
from evenflow.observe.survey import operable
from evenflow.observe.words import count_of
from evenflow.runtime.clock import system_clock
from evenflow.steer.importing import HostLease, Importing, carry_out, host_lease, plan_import
from evenflow.stores.memory import MemoryStore
from evenflow.urls import hide_secrets, open_source, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.cli.which import Chosen
    from evenflow.ports import Source, Store
    from evenflow.steer import Who

HEADERS = ("PARTITION", "OLD-OWNER", "FROM", "TO", "LAG-AFTER", "NOTE")
CONTAINER = "azblob:"
FILES = "sqlite:"


def import_checkpoints(
    leases: Annotated[
        str,
        typer.Argument(
            metavar="LEASES",
            help="Where the host kept its leases: azblob://ACCOUNT/CONTAINER, or a folder with copies of the blobs.",
            show_default=False,
        ),
    ],
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="What the names of the blobs begin with, before the group.")
    ] = "",
    from_group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The host's consumer group.", show_default="the same as --group"),
    ] = None,
    partition: Partitions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and end.")] = False,
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Take over the checkpoints of an EventProcessorHost, from its lease blobs. Stop all its hosts first."""
    chosen = with_source(with_group(which(store, source, group, profile)), "so that positions can be checked")
    place = f"{prefix}{from_group or chosen.group}/"
    run(_import(chosen, leases, place, partition, who(why), dry_run=dry_run, yes=yes, as_json=as_json))


async def _import(
    chosen: Chosen,
    where: str,
    place: str,
    partitions: Sequence[str] | None,
    by: Who,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    assert chosen.source is not None
    assert chosen.group is not None
    assert chosen.store is not None
    found = [lease for lease in await _leases(where, place) if partitions is None or lease.partition in partitions]
    if not found:
        raise Misconfigured(
            f"There is no lease of a host at {hide_secrets(where)} under {place!r}. Is the --prefix right?"
        )
    source = open_source(chosen.source)
    store = open_store(chosen.store) if not dry_run else await _looked_at(chosen.store)
    try:
        identity = await source.identity()
        group = Group(identity.namespace, identity.hub, chosen.group)
        importings = await plan_import(store, source, group, found)
        _show(importings, as_json=as_json)
        if dry_run:
            say(f"would write {_count(importings)} of {group}; nothing was changed")
            done: Sequence[Importing] = importings
        else:
            be_sure([f"writes {_count(importings)} of {group}"], yes=yes)
            done = await _carry_out(store, source, group, importings, by)
    finally:
        await store.aclose()
        await source.aclose()
    if as_json:
        print_json({"group": str(group), "dry_run": dry_run, "partitions": [_facts(one) for one in done]})


async def _looked_at(url: str) -> Store:
    """For a dry run, files that are not there yet are as good as an empty store."""
    store = open_store(url, create=False)
    try:
        await operable(store).groups()
        return store
    except Misconfigured:
        await store.aclose()
        if not url.startswith(FILES):
            raise
        return MemoryStore()


async def _carry_out(
    store: Store, source: Source, group: Group, importings: Sequence[Importing], by: Who
) -> Sequence[Importing]:
    done = await carry_out(store, source, group, importings, by, system_clock(), tell)
    say(f"wrote {count_of(len(done), 'checkpoint')} of {group}")
    return [one for one in importings if one.partition in done]


def _count(importings: Sequence[Importing]) -> str:
    return count_of(sum(one.after is not None for one in importings), "checkpoint")


# --- where the leases are
async def _leases(where: str, place: str) -> list[HostLease]:
    files = _in_container(where, place) if where.startswith(CONTAINER) else _in_folder(Path(where), place)
    return [_checked(name, host_lease(name, text)) async for name, text in files]


def _checked(name: str, lease: HostLease) -> HostLease:
    if name.rpartition("/")[2] != lease.partition:
        raise Misconfigured(f"{name} is the lease of partition {lease.partition!r}, by what is in it. Was it renamed?")
    return lease


async def _in_container(url: str, place: str) -> AsyncIterator[tuple[str, bytes]]:
    from evenflow.stores.azblob_address import address
    from evenflow.stores.azblob_link import Link

    link = Link(address(url))
    try:
        for blob in await link.list(place):
            if "/" not in blob.name.removeprefix(place) and (found := await link.fetch(blob.name)) is not None:
                yield blob.name, found[1]
    finally:
        await link.aclose()


async def _in_folder(folder: Path, place: str) -> AsyncIterator[tuple[str, bytes]]:
    """With the blobs' own names below it, or with the leases of one group right in it."""
    if not folder.is_dir():
        raise Misconfigured(f"There is no folder {folder}; a container is written azblob://ACCOUNT/CONTAINER.")
    below = folder / place
    for path in sorted((below if below.is_dir() else folder).iterdir()):
        if path.is_file() and not path.name.startswith("."):
            yield str(path), path.read_bytes()


# --- what is shown
def _show(importings: Sequence[Importing], *, as_json: bool) -> None:
    rows = [
        (one.partition, printable(one.owner) or None, _offset(one.before), _offset(one.after), one.lag_after, one.note)
        for one in importings
    ]
    text = "\n".join(columns(HEADERS, rows, HEADERS[2:5]))
    if as_json:
        say(text)
    else:
        print(text, flush=True)


def _offset(position: Any) -> str | None:
    return position.offset if position is not None else None


def _facts(one: Importing) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "old_owner": one.owner or None,
        "from": _offset(one.before),
        "to": _offset(one.after),
        "lag_after": one.lag_after,
        "note": one.note or None,
    }
