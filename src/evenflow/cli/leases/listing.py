"""`evenflow leases list`: one line per lease, including ended ones and those of third-party processors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.cli.output import columns, print_json
from evenflow.cli.selection import (
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    opened,
    require_group,
    select_group,
)
from evenflow.operate.steer.exporting import export
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.cli.profiles import Profile
    from evenflow.operate.steer.exporting import Export

HEADERS = ("LEASE", "OWNER", "EPOCH", "OFFSET", "SEQUENCE", "HANDLED", "ENDED")


def list_leases(
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Show the owner and the checkpoint of each lease."""
    found = asyncio.run(exported(require_group(select_group(store, source, group, profile))))
    if as_json:
        print_json(found)
        return
    rows = [
        (one.partition, one.owner, one.epoch, one.offset, one.sequence, one.handled, "yes" if one.ended else None)
        for one in found.leases
    ]
    print("\n".join(columns(HEADERS, rows, HEADERS[2:6])))


async def exported(chosen: Profile) -> Export:
    async with opened(chosen) as at:
        return await export(at.store, at.group, system_clock())
