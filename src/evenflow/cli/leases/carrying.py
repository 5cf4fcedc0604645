"""`evenflow leases export` and `import`: from one store to another, or into a file and back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import json

from evenflow.cli.asking import Partitions, Why, Yes, carry_out, who
from evenflow.cli.importing import import_leases
from evenflow.cli.leases.listing import exported
from evenflow.cli.output import say
from evenflow.cli.which import (
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    which,
    with_group,
    with_source,
)
from evenflow.errors import Misconfigured
from evenflow.operate.steer.exporting import leases_for, read_export
from evenflow.text import count_of

if TYPE_CHECKING:
    from evenflow.model import Group
    from evenflow.operate.steer.importing import HostLease
    from evenflow.ports import Source


def export_leases(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write it.", show_default="stdout")
    ] = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
) -> None:
    """Write the leases of a group, with their checkpoints, as JSON."""
    found = asyncio.run(exported(with_group(which(store, source, group, profile))))
    text = json.format(json.encode(found), indent=1)
    if file is None:
        typer.echo(text.decode())
        return
    try:
        file.write_bytes(text + b"\n")
    except OSError as error:
        raise Misconfigured(f"{file} cannot be written: {error.strerror}.") from error
    say(f"wrote {count_of(len(found.leases), 'lease')} of {found.group} to {file}")


def import_exported(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `evenflow leases export` has written.")],
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
    """Go on where exported leases are: their checkpoints are written into a group, which is made if it is not there."""
    chosen = with_source(with_group(which(store, source, group, profile)), "so that positions can be checked")
    try:
        found = read_export(str(file), file.read_bytes())
    except OSError as error:
        raise Misconfigured(f"{file} cannot be read: {error.strerror}.") from error

    async def find(source: Source, group: Group) -> list[HostLease]:
        return await leases_for(source, found)

    carry_out(import_leases(chosen, find, partition, who(why), dry_run=dry_run, yes=yes, as_json=as_json))
