"""Who owned a partition when, for how long nobody did, and why each time ended: from moves and the lease alone.

Pure. Nothing is made up: where the store has forgotten a move, the time before is unknown. Times are the store's wall
clock's, for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from evenflow.core.decide import silence_told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.model import Lease, Move, PartitionId

BandKind: TypeAlias = Literal["owned", "silent", "nobody", "halted"]
"""owned: somebody had it; silent: somebody had it but sent no beats, until it was taken over; nobody: a gap; halted:
nobody had it because a person wanted it so (a pause, a seek)."""


class Band(Struct, frozen=True, kw_only=True):
    """One stretch of time."""

    since: float | None
    """None: it had begun before the first move that is still known."""
    until: float | None
    """None: it goes on."""
    owner: str | None
    kind: BandKind
    epoch: int | None
    reason: str
    """Why it began."""


def bands_of(moves: Iterable[Move], leases: Mapping[PartitionId, Lease]) -> dict[PartitionId, list[Band]]:
    """The bands of each partition that has a lease, the oldest first. Moves may come in any order."""
    stories: dict[PartitionId, list[Move]] = {name: [] for name in leases}
    for move in moves:
        if move.partition in stories:
            stories[move.partition].append(move)
    return {
        name: _story(sorted(story, key=lambda move: move.epoch), leases[name])
        for name, story in sorted(stories.items())
    }


def longest_gap_s(bands: Mapping[PartitionId, Sequence[Band]], since: float, now: float) -> float | None:
    """How long a partition went without anybody who handles it, at most, since then. None: there was no such time."""
    gaps = [
        (band.until if band.until is not None else now) - max(since, band.since)
        for story in bands.values()
        for band in story
        if band.kind in ("nobody", "silent") and band.since is not None and (band.until or now) > since
    ]
    return max(gaps, default=None)


def _story(moves: Sequence[Move], lease: Lease) -> list[Band]:
    known = [move for move in moves if move.epoch <= lease.epoch]
    if not known or known[-1].epoch != lease.epoch:
        # The store has forgotten how it came here; the lease itself still tells since when.
        return [*_bands(known, lease.changed_at), _last(lease)]
    return [*_bands(known, None)]


def _last(lease: Lease) -> Band:
    owner = lease.owner.id if lease.owner is not None else None
    kind = _kind(owner, lease.reason)
    since = lease.changed_at or None
    return Band(since=since, until=None, owner=owner, kind=kind, epoch=lease.epoch, reason=lease.reason)


def _bands(moves: Sequence[Move], end: float | None) -> list[Band]:
    found: list[Band] = []
    if moves and moves[0].before is not None:
        first = Band(since=None, until=moves[0].at, owner=moves[0].before, kind="owned", epoch=None, reason="")
        found += _with_silence(first, moves[0])
    for at, move in enumerate(moves):
        after = moves[at + 1] if at + 1 < len(moves) else None
        band = Band(
            since=move.at,
            until=after.at if after is not None else end,
            owner=move.after,
            kind=_kind(move.after, move.reason),
            epoch=move.epoch,
            reason=move.reason,
        )
        found += _with_silence(band, after) if after is not None else [band]
    return found


def _kind(owner: str | None, reason: str) -> BandKind:
    if owner is not None:
        return "owned"
    return "halted" if reason.startswith(("released: paused", "seek", "resume")) else "nobody"


def _with_silence(band: Band, move: Move) -> list[Band]:
    """A takeover tells how long nobody had heard of the owner: that part was not lived."""
    silent_s = silence_told(move.reason)
    if silent_s is None or band.owner is None or band.until is None:
        return [band]
    begins = band.until - silent_s
    if band.since is not None:
        begins = max(begins, band.since)
    lived = Band(since=band.since, until=begins, owner=band.owner, kind="owned", epoch=band.epoch, reason=band.reason)
    silent = Band(since=begins, until=band.until, owner=band.owner, kind="silent", epoch=band.epoch, reason=move.reason)
    return [lived, silent] if band.since is None or begins > band.since else [silent]
