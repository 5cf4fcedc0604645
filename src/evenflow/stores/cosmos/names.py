"""Which document of a lease container holds what: .NET's own ids for leases, and ours beside them.

Processors of another make list ids that begin with `{prefix}..`, and ask for `{prefix}.info` and `{prefix}.lock`; ours
begin with neither. What a heartbeat needs is under `{prefix}.`, so that one query brings theirs and ours; the rest is
not."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from evenflow.model import Group, PartitionId

GROUP = ".evenflow.group"
"""How the id of a group's own document ends."""
PART_CHARS_MAX = 48
"""A longer part of an id is cut, and told apart by its hash: an id has 255 characters at most."""
PREFIX_CHARS_MAX = 180
FORBIDDEN = set('/\\?#"')
"""No id has them; and the quotation mark would end the text in a query of .NET's."""

_UNSAFE = re.compile(r"[^A-Za-z0-9$:_=.-]")


class Names:
    """The documents of one group."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.heartbeats = f"{prefix}."
        """What a heartbeat asks for."""
        self.leases = f"{prefix}.."
        self.marker = f"{prefix}.info"
        """Of .NET: leases were made for all ranges."""
        self.group = f"{prefix}{GROUP}"
        self.members = f"{prefix}.evenflow.member."
        self.past = f"{prefix}.evenflow.past."
        """Leases of partitions that have ended: others would take them for free ones."""
        self.moves = f"{prefix}~evenflow.moves."
        self.actions = f"{prefix}~evenflow.actions."

    def lease(self, partition: PartitionId) -> str:
        return self.leases + exact(partition)

    def past_lease(self, partition: PartitionId) -> str:
        return self.past + exact(partition)

    def is_of(self, name: str, token: str) -> bool:
        """Whether a lease, of today or of the past, has the id that its token makes."""
        return name in (self.leases + token, self.lease(token), self.past_lease(token))

    def member(self, instance: str) -> str:
        return self.members + exact(instance)


def prefix_of(group: Group) -> str:
    """For a group of any hub. Nobody else has such a prefix: there is no `@` in those of .NET."""
    hub = exact(group.hub).replace(".", "~2e")  # what follows begins with a dot
    return f"{exact(group.name)}@{exact(group.namespace)}@{hub}"


def is_prefix(prefix: str) -> bool:
    """Whether documents can have it."""
    return 0 < len(prefix) <= PREFIX_CHARS_MAX and prefix.isprintable() and not set(prefix) & FORBIDDEN


def checked_prefix(prefix: str) -> str:
    """One that somebody else has made, or was told; Misconfigured when no document can have it."""
    if not is_prefix(prefix):
        raise Misconfigured(
            f"The prefix {prefix!r:.80} is none of a lease: ids of documents have no slash, backslash, #, ? or"
            f" quotation mark, and prefixes {PREFIX_CHARS_MAX} characters at most. Give the processor another name."
        )
    return prefix


@lru_cache(maxsize=1 << 14)
def exact(name: str) -> str:
    """Any name as a part of an id. The ids of ranges, and plain names, stay as they are."""
    text = _UNSAFE.sub(lambda found: "".join(f"~{byte:02x}" for byte in found.group().encode()), name)
    if len(text) > PART_CHARS_MAX:
        return f"{text[:20]}~~{hashlib.sha256(name.encode()).hexdigest()[:24]}"
    return text or "~"
