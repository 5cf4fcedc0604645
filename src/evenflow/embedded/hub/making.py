"""Making a hub's folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from evenflow.embedded.hub.facts import bell_path, check_partitions, create_facts, partition_path
from evenflow.embedded.hub.log import create_log
from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.local.bell import SLOT_BYTES
from evenflow.local.database import sync_folder, translated

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.embedded.hub.facts import HubFacts

_OUR_NAMES = frozenset(("hub.sqlite", "hub.sqlite-journal", "hub.sqlite-wal", "hub.sqlite-shm", "partitions", "bell"))
"""What the folder of a hub has in it, also while it is made."""


def make_hub(folder: Path, facts: HubFacts, busy_timeout_s: float) -> None:
    """Make the folder and all that is in it; durable when it returns."""
    _check(facts)
    with translated(folder, SourceUnavailable):
        if folder.exists() and (not folder.is_dir() or not _OUR_NAMES.issuperset(os.listdir(folder))):
            raise Misconfigured(f"{folder} exists and is not an empty folder. Choose another path for the hub.")
        (folder / "partitions").mkdir(parents=True, exist_ok=True)
        if not bell_path(folder).exists():
            bell_path(folder).write_bytes(bytes((facts.partitions + 1) * SLOT_BYTES))
        create_facts(
            folder,
            facts,
            busy_timeout_s,
            lambda number: create_log(partition_path(folder, number), facts.made, number, busy_timeout_s),
        )
        sync_folder(folder)
        sync_folder(folder.absolute().parent)


def _check(facts: HubFacts) -> None:
    check_partitions(facts.partitions)
    if facts.retention_s is not None and facts.retention_s <= 0:
        raise Misconfigured(f"retention_s is a number of seconds above zero, not {facts.retention_s}.")
    if facts.retention_bytes is not None and facts.retention_bytes <= 0:
        raise Misconfigured(f"retention_bytes is a number of bytes above zero, not {facts.retention_bytes}.")
