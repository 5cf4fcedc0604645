"""Which blob holds what: Azure's own names for ownership and checkpoints, and ours beside them.

Azure's processors list `.../ownership/` and `.../checkpoint/`, and nothing else. What a heartbeat needs of ours is
under `.../ownership.evenflow/`, so that one listing of `.../ownership` brings both; the rest is under `.../evenflow/`.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenflow.model import Group, PartitionId

SEGMENT_CHARS_MAX = 160
"""A longer part of a name is cut, and told apart by its hash: a blob's whole name has 1,024 characters at most."""
HASHED = "~~"

_UNSAFE = re.compile(r"[^a-z0-9$.:_-]")


class Names:
    """The blobs of one group."""

    def __init__(self, group: Group) -> None:
        self.root = "/".join(folded(part) for part in (group.namespace, group.hub, group.name))
        self.heartbeats = f"{self.root}/ownership"
        """What a heartbeat lists."""
        self.group = f"{self.root}/ownership.evenflow/group"
        self.members = f"{self.root}/ownership.evenflow/members/"
        self.leases = f"{self.root}/ownership/"
        self.records = f"{self.root}/checkpoint/"
        self.moves = f"{self.root}/evenflow/moves"
        self.actions = f"{self.root}/evenflow/actions"
        self.notes = f"{self.root}/evenflow/notes/"
        self.floors = f"{self.root}/evenflow/epochs/"

    def member(self, instance: str) -> str:
        return self.members + exact(instance)

    def lease(self, partition: PartitionId) -> str:
        return self.leases + exact(partition)

    def record(self, partition: PartitionId) -> str:
        return self.records + exact(partition)

    def floor(self, partition: PartitionId) -> str:
        return self.floors + exact(partition)

    def noted(self, partition: PartitionId, token: str) -> str:
        return f"{self.notes}{exact(partition)}/{token}"


def folded(name: str) -> str:
    """A namespace, hub or group as Azure's processors write it: these are the same whatever their case."""
    return exact(name.lower())


@lru_cache(maxsize=1 << 14)
def exact(name: str) -> str:
    """Any name as one part of a blob's name. Plain ones, which is all that Event Hubs has, stay as they are."""
    text = _UNSAFE.sub(lambda found: "".join(f"~{byte:02x}" for byte in found.group().encode()), name)
    if text.endswith("."):
        text = f"{text[:-1]}~2e"  # `.` and `..` mean something else in a path
    if len(text) > SEGMENT_CHARS_MAX:
        return f"{text[:80]}{HASHED}{hashlib.sha256(name.encode()).hexdigest()[:40]}"
    return text or "~"


def plain(segment: str) -> str:
    """Back from `exact`, unless it was cut."""
    if segment == "~":
        return ""
    if "~" not in segment:
        return segment
    return re.sub(rb"~([0-9a-f]{2})", lambda found: bytes([int(found.group(1), 16)]), segment.encode()).decode(
        errors="replace"
    )
