"""`evenflow import-checkpoints`: continues where an EventProcessorHost stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.confirm import Partitions, Why, Yes, carry_out, operator
from evenflow.cli.importing import import_leases
from evenflow.cli.selection import (
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    require_group,
    require_source,
    select_group,
)
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
            help="The host's leases: azblob://ACCOUNT/CONTAINER, or a folder with copies of the blobs.",
            show_default=False,
        ),
    ],
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Prefix of the blob names, before the name of the group.")
    ] = "",
    from_group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Consumer group of the host.", show_default="same as --group"),
    ] = None,
    partition: Partitions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Import the checkpoints of an EventProcessorHost from its lease blobs. Stop all its hosts first."""
    chosen = require_source(
        require_group(select_group(store, source, group, profile)), "positions are checked against it"
    )
    place = f"{prefix}{from_group or chosen.group}/"

    async def find(source: Source, group: Group) -> list[HostLease]:
        found = await _leases(leases, place)
        if not any(partition is None or one.partition in partition for one in found):
            raise Misconfigured(
                f"There are no leases of a host in {hide_secrets(leases)} under {place!r}. Check --prefix and"
                " --from-group."
            )
        return found

    carry_out(import_leases(chosen, find, partition, operator(why), dry_run=dry_run, yes=yes, as_json=as_json))


# --- reading the leases
async def _leases(where: str, place: str) -> list[HostLease]:
    files = _in_container(where, place) if where.startswith(CONTAINER) else _in_folder(Path(where), place)
    return [_checked(name, host_lease(name, text)) async for name, text in files]


def _checked(name: str, lease: HostLease) -> HostLease:
    if name.rpartition("/")[2] != lease.partition:
        raise Misconfigured(
            f"{name} contains the lease of partition {lease.partition!r}, which is not its name. Was it renamed?"
        )
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
    """The folder contains blobs under their full names, or just the leases of one group."""
    if not folder.is_dir():
        raise Misconfigured(f"There is no folder {folder}. Write a blob container as azblob://ACCOUNT/CONTAINER.")
    below = folder / place
    for path in sorted((below if below.is_dir() else folder).iterdir()):
        if path.is_file() and not path.name.startswith("."):
            yield str(path), path.read_bytes()
