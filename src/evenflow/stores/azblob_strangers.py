"""Members of a group that are none of ours: what can be known of processors of another make.

They have no rows; they are what they own. Each renews all it owns in rounds (30 s apart by default), and takes up what
a listing shows as its own in its next round. It does not look between rounds: after something was taken from it, it
may go on handling until the end of its next round, and that round is seen in the blobs which it still has.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from evenflow.model import Member, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.stores.azblob_room import Held

VERSION = "of another make"
"""In place of evenflow's own, for people."""
ROUNDS_IN_EXPIRY = 6
ROUND_STRETCH = 1.2
"""Their expiry is six rounds unless they are told otherwise, and a round is stretched by chance."""
ROUNDS_TO_STOP = 2
"""A renewal that is seen after a steal may belong to a round that looked before it; the next one looked after it."""


class _Stranger(NamedTuple):
    mark: int
    etags: Mapping[PartitionId, str]
    seen_at: float


class _Stolen(NamedTuple):
    """One partition that was taken from somebody who may still be handling it."""

    by_epoch: int
    owner_id: str
    since_s: float
    renewed: Mapping[PartitionId, tuple[str, int]]
    """What it still has: the last ETag, and how often that has moved since."""


class Strangers:
    def __init__(self, expiry_s: float) -> None:
        self.expiry_s = expiry_s
        self._known: dict[str, _Stranger] = {}
        self._stolen: dict[PartitionId, _Stolen] = {}

    def look(self, held: Mapping[PartitionId, Held]) -> None:
        """After a listing: who is there, whose blobs have moved, and who has noticed what was taken from it."""
        owned: dict[str, dict[PartitionId, str]] = {}
        renewed_at: dict[str, float] = {}
        for partition, found in held.items():
            owner = found.lease.owner
            if owner is not None and owner.incarnation == 0:
                owned.setdefault(owner.id, {})[partition] = found.etag
                renewed_at[owner.id] = max(found.modified_at, renewed_at.get(owner.id, 0.0))
        for name, etags in owned.items():
            before = self._known.get(name)
            known = before.etags if before is not None else {}
            has_moved = any(known.get(partition) != etag for partition, etag in etags.items())
            self._known[name] = _Stranger((before.mark if before else 0) + has_moved, etags, renewed_at[name])
        for name in self._known.keys() - owned.keys():
            del self._known[name]
        for partition, stolen in list(self._stolen.items()):
            self._look_at(partition, stolen, owned.get(stolen.owner_id, {}))

    def members(self) -> dict[str, Member]:
        round_s = self.expiry_s / ROUNDS_IN_EXPIRY * ROUND_STRETCH
        return {
            name: Member(
                id=name,
                nonce=name,
                mark=known.mark,
                ttl_s=self.expiry_s,
                beat_s=round_s,
                beat_at=known.seen_at,
                version=VERSION,
                foreign=True,
            )
            for name, known in self._known.items()
        }

    def mark_of(self, owner_id: str, seen: tuple[PartitionId, str] | None) -> int | None:
        """Also by a blob of its own that was seen since the listing, with this ETag."""
        known = self._known.get(owner_id)
        if known is None:
            return None
        return known.mark + (seen is not None and known.etags.get(seen[0]) != seen[1])

    def rob(self, partition: PartitionId, owner_id: str, epoch: int) -> None:
        """It was alive a moment ago, and this was its own."""
        known = self._known.get(owner_id)
        others = {name: (etag, 0) for name, etag in known.etags.items() if name != partition} if known else {}
        self._stolen[partition] = _Stolen(epoch, owner_id, time.monotonic(), others)  # noqa: TID251

    def is_at(self, partition: PartitionId, epoch: int) -> bool:
        """Whether whoever this was taken from may still be handling it."""
        stolen = self._stolen.get(partition)
        if stolen is None:
            return False
        is_over = time.monotonic() - stolen.since_s >= self.expiry_s  # noqa: TID251
        if epoch != stolen.by_epoch or is_over or any(n >= ROUNDS_TO_STOP for _, n in stolen.renewed.values()):
            del self._stolen[partition]
            return False
        return True

    def _look_at(self, partition: PartitionId, stolen: _Stolen, etags: Mapping[PartitionId, str]) -> None:
        renewed: dict[PartitionId, tuple[str, int]] = {}
        for name, etag in etags.items():
            before, count = stolen.renewed.get(name, (etag, 0))
            renewed[name] = etag, count + (etag != before)
        self._stolen[partition] = stolen._replace(renewed=renewed)
