"""Third-party members of a group: official Azure, .NET or Java processors that share its leases.

They write no member records. A third-party processor is known only by the leases that it owns and keeps renewing. It
does not check a lease between two renewals, so after a lease was taken from it, it may go on processing until its next
renewal. Where a processor renews all its leases in one round, its renewals of the others show that it has noticed.
Where each lease is renewed separately, we can only wait.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from evenflow.model import Member, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "third-party"
"""Shown to operators in place of an evenflow version."""
ROUND_STRETCH = 1.2
"""Rounds have a random jitter."""
PRESENT_FOR_EXPIRIES = 2
"""A processor that has been silent for longer writes no late checkpoint any more."""
ROUNDS_TO_STOP = 2
"""The first renewal after a steal may belong to a round that read the leases before it; the second cannot."""


class DisplacedOwner(Struct, frozen=True):
    """The third-party processor that a lease was taken from. It may still be processing the partition."""

    owner_id: str
    epoch: int
    """The epoch under which the lease was taken: identifies this takeover."""


class ThirdPartyTiming(NamedTuple):
    """How third-party processors of one kind renew their leases."""

    expiry_s: float
    round_s: float
    """The renewal interval."""
    in_rounds: bool
    """A processor renews all its leases in one round."""
    stops_after_s: float
    """This long after losing a lease, a processor has stopped processing its partition."""


class LeaseSighting(NamedTuple):
    """A lease of a third-party processor as a listing shows it. A new ETag is its sign of life."""

    owner_id: str
    etag: str
    at: float
    """Last write, by the service's clock."""


class _ThirdPartyMember(NamedTuple):
    mark: int
    etags: Mapping[PartitionId, str]
    seen_at: float


class _Takeover(NamedTuple):
    """One partition that was taken from a third-party processor that may still be processing it."""

    displaced: DisplacedOwner
    since_s: float
    renewed: Mapping[PartitionId, tuple[str, int]]
    """Leases it still owns: the last ETag, and how often that has changed since the takeover."""
    stopped: bool = False


class ThirdPartyMembers:
    def __init__(self, timing: ThirdPartyTiming) -> None:
        self.timing = timing
        self._known: dict[str, _ThirdPartyMember] = {}
        self._takeovers: dict[PartitionId, _Takeover] = {}
        self._present_until_s = 0.0

    @property
    def are_present(self) -> bool:
        """Whether any third-party processor is present, or was recently."""
        return time.monotonic() < self._present_until_s  # noqa: TID251

    def observe(self, sightings: Mapping[PartitionId, LeaseSighting]) -> None:
        """Call after each listing: updates which processors are present, which leases were renewed, and which
        processors have noticed that a lease was taken."""
        owned: dict[str, dict[PartitionId, str]] = {}
        renewed_at: dict[str, float] = {}
        for partition, sighting in sightings.items():
            owned.setdefault(sighting.owner_id, {})[partition] = sighting.etag
            renewed_at[sighting.owner_id] = max(sighting.at, renewed_at.get(sighting.owner_id, 0.0))
        if owned:
            self._present_until_s = time.monotonic() + PRESENT_FOR_EXPIRIES * self.timing.expiry_s  # noqa: TID251
        for name, etags in owned.items():
            before = self._known.get(name)
            known = before.etags if before is not None else {}
            has_moved = any(known.get(partition) != etag for partition, etag in etags.items())
            self._known[name] = _ThirdPartyMember((before.mark if before else 0) + has_moved, etags, renewed_at[name])
        for name in self._known.keys() - owned.keys():
            del self._known[name]
        for partition, takeover in list(self._takeovers.items()):
            self._count_renewals(partition, takeover, owned.get(takeover.displaced.owner_id, {}))

    def members(self) -> dict[str, Member]:
        round_s = self.timing.round_s * ROUND_STRETCH
        return {
            name: Member(
                id=name,
                nonce=name,
                mark=known.mark,
                ttl_s=self.timing.expiry_s,
                heartbeat_s=round_s,
                heartbeat_at=known.seen_at,
                version=VERSION,
                foreign=True,
            )
            for name, known in self._known.items()
        }

    def mark_of(self, owner_id: str, seen: tuple[PartitionId, str] | None) -> int | None:
        """`seen`: one of its leases that was read after the listing, with its ETag."""
        known = self._known.get(owner_id)
        if known is None:
            return None
        return known.mark + (seen is not None and known.etags.get(seen[0]) != seen[1])

    def may_still_process(self, partition: PartitionId, displaced: DisplacedOwner | None) -> bool:
        """Whether the previous third-party owner may still be processing this partition.

        It was alive when the lease was taken, whichever instance took it. Each client counts its renewals from the
        moment it first sees the takeover.
        """
        if displaced is None:
            self._takeovers.pop(partition, None)
            return False
        takeover = self._takeovers.get(partition)
        if takeover is None or takeover.displaced != displaced:
            known = self._known.get(displaced.owner_id)
            others = {name: (etag, 0) for name, etag in known.etags.items() if name != partition} if known else {}
            self._takeovers[partition] = _Takeover(displaced, time.monotonic(), others)  # noqa: TID251
            return True
        is_over = time.monotonic() - takeover.since_s >= self.timing.stops_after_s  # noqa: TID251
        has_noticed = self.timing.in_rounds and any(n >= ROUNDS_TO_STOP for _, n in takeover.renewed.values())
        if is_over or has_noticed:
            takeover = self._takeovers[partition] = takeover._replace(stopped=True)
        return not takeover.stopped

    def _count_renewals(self, partition: PartitionId, takeover: _Takeover, etags: Mapping[PartitionId, str]) -> None:
        renewed: dict[PartitionId, tuple[str, int]] = {}
        for name, etag in etags.items():
            before, count = takeover.renewed.get(name, (etag, 0))
            renewed[name] = etag, count + (etag != before)
        self._takeovers[partition] = takeover._replace(renewed=renewed)
