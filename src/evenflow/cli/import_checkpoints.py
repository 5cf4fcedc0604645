"""`evenflow import-checkpoints`: go on where an EventProcessorHost stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.asking import Partitions, Why, Yes, carry_out, who
from evenflow.cli.importing import import_leases
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, which, with_group, with_source
from evenflow.errors import Misconfigured
from evenflow.operate.steer.importing import HostLease, host_lease
from evenflow.urls import hide_secrets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.model import Group
    from evenflow.ports import Source

CONTAINER = "azblob:"


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

    async def find(source: Source, group: Group) -> list[HostLease]:
        found = await _leases(leases, place)
        if not any(partition is None or one.partition in partition for one in found):
            raise Misconfigured(
                f"There is no lease of a host at {hide_secrets(leases)} under {place!r}. Is the --prefix right?"
            )
        return found

    carry_out(import_leases(chosen, find, partition, who(why), dry_run=dry_run, yes=yes, as_json=as_json))


# --- where the leases are
async def _leases(where: str, place: str) -> list[HostLease]:
    files = _in_container(where, place) if where.startswith(CONTAINER) else _in_folder(Path(where), place)
    return [_checked(name, host_lease(name, text)) async for name, text in files]


def _checked(name: str, lease: HostLease) -> HostLease:
    if name.rpartition("/")[2] != lease.partition:
        raise Misconfigured(f"{name} is the lease of partition {lease.partition!r}, by what is in it. Was it renamed?")
    return lease


async def _in_container(url: str, place: str) -> AsyncIterator[tuple[str, bytes]]:
    from evenflow.stores.azblob.client import Link
    from evenflow.stores.azblob.options import address

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
