"""Creates a hub's folder and its files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from evenflow.embedded.hub.log import create_log
from evenflow.embedded.hub.metadata import bell_path, check_partitions, create_metadata, partition_path
from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.local.bell import SLOT_BYTES
from evenflow.local.database import sync_folder, translated

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.embedded.hub.metadata import HubMetadata

_OUR_NAMES = frozenset(("hub.sqlite", "hub.sqlite-journal", "hub.sqlite-wal", "hub.sqlite-shm", "partitions", "bell"))
"""Everything that a hub's folder may contain, also while the hub is being created."""


def create_hub(folder: Path, metadata: HubMetadata, busy_timeout_s: float) -> None:
    """Create the folder and its files; durable on return."""
    _check(metadata)
    with translated(folder, SourceUnavailable):
        if folder.exists() and (not folder.is_dir() or not _OUR_NAMES.issuperset(os.listdir(folder))):
            raise Misconfigured(f"{folder} exists and is not an empty folder. Choose another path for the hub.")
        (folder / "partitions").mkdir(parents=True, exist_ok=True)
        if not bell_path(folder).exists():
            bell_path(folder).write_bytes(bytes((metadata.partitions + 1) * SLOT_BYTES))
        create_metadata(
            folder,
            metadata,
            busy_timeout_s,
            lambda number: create_log(partition_path(folder, number), metadata.made, number, busy_timeout_s),
        )
        sync_folder(folder)
        sync_folder(folder.absolute().parent)


def _check(metadata: HubMetadata) -> None:
    check_partitions(metadata.partitions)
    if metadata.retention_s is not None and metadata.retention_s <= 0:
        raise Misconfigured(f"retention_s must be above zero, not {metadata.retention_s}.")
    if metadata.retention_bytes is not None and metadata.retention_bytes <= 0:
        raise Misconfigured(f"retention_bytes must be above zero, not {metadata.retention_bytes}.")
