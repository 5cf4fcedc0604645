"""Members of a group that are none of ours: what can be known of processors of another make.

They have no rows; they are what they own, and each renews what it owns again and again. It does not look in between:
after something was taken from it, it may go on handling until it wants to renew that. Where everything is renewed in
one round, such a round is seen in what it still has; where each lease is renewed on its own, only time tells.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from evenflow.model import Member, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "of another make"
"""In place of evenflow's own, for people."""
ROUND_STRETCH = 1.2
"""A round is stretched by chance."""
NEAR_FOR_EXPIRIES = 2
"""Whoever has been silent for longer writes no late checkpoint any more."""
ROUNDS_TO_STOP = 2
"""A renewal that is seen after a steal may belong to a round that looked before it; the next one looked after it."""


class Robbed(Struct, frozen=True):
    """Whom a lease was taken from, none of ours, which may still be handling the partition."""

    owner_id: str
    epoch: int
    """Of the lease that was taken from it: which robbery this was."""


class Manner(NamedTuple):
    """How processors of that make go about it."""

    expiry_s: float
    round_s: float
    """How often they renew."""
    in_rounds: bool
    """All that one owns is renewed in one go."""
    stops_after_s: float
    """So long after it was robbed, one handles nothing of it any more."""


class Sign(NamedTuple):
    """Of life: a lease that one of them owns."""

    owner_id: str
    etag: str
    at: float
    """When it was last written, by the service's clock."""


class _Stranger(NamedTuple):
    mark: int
    etags: Mapping[PartitionId, str]
    seen_at: float


class _Stolen(NamedTuple):
    """One partition that was taken from somebody who may still be handling it."""

    robbed: Robbed
    since_s: float
    renewed: Mapping[PartitionId, tuple[str, int]]
    """What it still has: the last ETag, and how often that has moved since."""
    stopped: bool = False


class Strangers:
    def __init__(self, manner: Manner) -> None:
        self.manner = manner
        self._known: dict[str, _Stranger] = {}
        self._stolen: dict[PartitionId, _Stolen] = {}
        self._near_until_s = 0.0

    @property
    def are_near(self) -> bool:
        """Whether there are some, or were lately."""
        return time.monotonic() < self._near_until_s  # noqa: TID251

    def look(self, signs: Mapping[PartitionId, Sign]) -> None:
        """After a listing: who is there, whose leases have moved, and who has noticed what was taken from it."""
        owned: dict[str, dict[PartitionId, str]] = {}
        renewed_at: dict[str, float] = {}
        for partition, sign in signs.items():
            owned.setdefault(sign.owner_id, {})[partition] = sign.etag
            renewed_at[sign.owner_id] = max(sign.at, renewed_at.get(sign.owner_id, 0.0))
        if owned:
            self._near_until_s = time.monotonic() + NEAR_FOR_EXPIRIES * self.manner.expiry_s  # noqa: TID251
        for name, etags in owned.items():
            before = self._known.get(name)
            known = before.etags if before is not None else {}
            has_moved = any(known.get(partition) != etag for partition, etag in etags.items())
            self._known[name] = _Stranger((before.mark if before else 0) + has_moved, etags, renewed_at[name])
        for name in self._known.keys() - owned.keys():
            del self._known[name]
        for partition, stolen in list(self._stolen.items()):
            self._look_at(partition, stolen, owned.get(stolen.robbed.owner_id, {}))

    def members(self) -> dict[str, Member]:
        round_s = self.manner.round_s * ROUND_STRETCH
        return {
            name: Member(
                id=name,
                nonce=name,
                mark=known.mark,
                ttl_s=self.manner.expiry_s,
                heartbeat_s=round_s,
                heartbeat_at=known.seen_at,
                version=VERSION,
                foreign=True,
            )
            for name, known in self._known.items()
        }

    def mark_of(self, owner_id: str, seen: tuple[PartitionId, str] | None) -> int | None:
        """Also by a lease of its own that was seen since the listing, with this ETag."""
        known = self._known.get(owner_id)
        if known is None:
            return None
        return known.mark + (seen is not None and known.etags.get(seen[0]) != seen[1])

    def is_at(self, partition: PartitionId, robbed: Robbed | None) -> bool:
        """Whether whoever this was taken from may still be handling it.

        It was alive when it was robbed. By whom does not matter: who hears of it counts its rounds from then on.
        """
        if robbed is None:
            self._stolen.pop(partition, None)
            return False
        stolen = self._stolen.get(partition)
        if stolen is None or stolen.robbed != robbed:
            known = self._known.get(robbed.owner_id)
            others = {name: (etag, 0) for name, etag in known.etags.items() if name != partition} if known else {}
            self._stolen[partition] = _Stolen(robbed, time.monotonic(), others)  # noqa: TID251
            return True
        is_over = time.monotonic() - stolen.since_s >= self.manner.stops_after_s  # noqa: TID251
        went_round = self.manner.in_rounds and any(n >= ROUNDS_TO_STOP for _, n in stolen.renewed.values())
        if is_over or went_round:
            stolen = self._stolen[partition] = stolen._replace(stopped=True)
        return not stolen.stopped

    def _look_at(self, partition: PartitionId, stolen: _Stolen, etags: Mapping[PartitionId, str]) -> None:
        renewed: dict[PartitionId, tuple[str, int]] = {}
        for name, etag in etags.items():
            before, count = stolen.renewed.get(name, (etag, 0))
            renewed[name] = etag, count + (etag != before)
        self._stolen[partition] = stolen._replace(renewed=renewed)
