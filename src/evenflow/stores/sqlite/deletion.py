"""Deletes a group from both files of a SQLite store, so that its epochs are never assigned again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.local.database import immediate
from evenflow.stores import rules
from evenflow.stores.sqlite import checkpoints as sqlite_progress
from evenflow.stores.sqlite import leases as sqlite_leases
from evenflow.stores.sqlite.folder import guarded
from evenflow.stores.sqlite.schema import LEASES, PROGRESS

if TYPE_CHECKING:
    import apsw

    from evenflow.model import Group
    from evenflow.stores.sqlite.folder import StoreFolder


def delete(folder: StoreFolder, group: Group) -> None:
    """Holds the write locks of both files. Leases are committed first: a process that is killed in between leaves
    checkpoints behind, but never leases whose epochs are rejected."""
    with (
        folder.pair() as (leases, progress),
        guarded(folder.path / PROGRESS),
        immediate(progress),
        guarded(folder.path / LEASES),
        immediate(leases),
    ):
        _delete(leases, progress, group)


def _delete(leases: apsw.Connection, progress: apsw.Connection, group: Group) -> None:
    history, recorded = sqlite_progress.highest_epoch(progress, group)
    given = sqlite_leases.highest_epoch(leases, group)
    if given is None and not recorded:
        return
    floor = rules.floor_after(recorded, (given or 0,), history)
    sqlite_leases.delete(leases, group, floor)
    sqlite_progress.delete(progress, group, floor)
