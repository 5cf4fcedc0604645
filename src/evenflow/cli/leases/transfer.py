"""`evenflow leases export` and `import`: moves leases from one store to another through a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import json

from evenflow.cli.confirm import Partitions, Why, Yes, carry_out, operator
from evenflow.cli.importing import import_leases
from evenflow.cli.leases.listing import exported
from evenflow.cli.output import say
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
from evenflow.operate.steer.exporting import leases_for, read_export
from evenflow.text import count_of

if TYPE_CHECKING:
    from evenflow.model import Group
    from evenflow.operate.steer.importing import HostLease
    from evenflow.ports import Source


def export_leases(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="File to write.", show_default="stdout")] = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
) -> None:
    """Export the leases of a group, with their checkpoints, as JSON."""
    found = asyncio.run(exported(require_group(select_group(store, source, group, profile))))
    text = json.format(json.encode(found), indent=1)
    if file is None:
        typer.echo(text.decode())
        return
    try:
        file.write_bytes(text + b"\n")
    except OSError as error:
        raise Misconfigured(f"Cannot write {file}: {error.strerror}.") from error
    say(f"wrote {count_of(len(found.leases), 'lease')} of {found.group} to {file}")


def import_exported(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `evenflow leases export` wrote.")],
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
    """Import exported leases: write their checkpoints into a group, which is created if it does not exist."""
    chosen = require_source(
        require_group(select_group(store, source, group, profile)), "positions are checked against it"
    )
    try:
        found = read_export(str(file), file.read_bytes())
    except OSError as error:
        raise Misconfigured(f"Cannot read {file}: {error.strerror}.") from error

    async def find(source: Source, group: Group) -> list[HostLease]:
        return await leases_for(source, found)

    carry_out(import_leases(chosen, find, partition, operator(why), dry_run=dry_run, yes=yes, as_json=as_json))
