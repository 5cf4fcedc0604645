"""The ownership history of each partition as bands of time: who owned it, when it had no owner, and why that changed.

Pure, from moves, leases and last heartbeats. Nothing is guessed: where the store has forgotten a move, the time before
it is unknown. Times are the store's wall-clock times, for display.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evenflow.core.decide import is_released_done, silence_told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.model import Lease, Move, PartitionId
    from evenflow.operate.inspect.silences import MoveKey

IDLE = ("unowned", "silent")
BandKind: TypeAlias = Literal["owned", "silent", "unowned", "halted", "ended"]
"""owned: it had a live owner; silent: its owner sent no heartbeats until it was taken over; unowned: a gap; halted: an
operator took it out of service (a pause, a seek), or it was between runs; ended: it was split or merged.
"""


class Band(Struct, frozen=True, kw_only=True):
    """One stretch of time in the history of a partition."""

    since: float | None
    """None: before the first move that the store remembers."""
    until: float | None
    """None: until now."""
    owner: str | None
    kind: BandKind
    epoch: int | None
    reason: str
    """Why it began."""


def bands_of(
    moves: Iterable[Move], leases: Mapping[PartitionId, Lease], silences: Mapping[MoveKey, float] | None = None
) -> dict[PartitionId, list[Band]]:
    """The bands of each partition that has a lease, the oldest first. Moves may come in any order.

    `silences` says since when an owner had been silent when a move took a partition from it. Without an entry, the
    duration in the move's own reason counts.
    """
    stories: dict[PartitionId, list[Move]] = {name: [] for name in leases}
    for move in moves:
        if move.partition in stories:
            stories[move.partition].append(move)
    return {
        name: _story(sorted(story, key=lambda move: move.epoch), leases[name], silences or {})
        for name, story in sorted(stories.items())
    }


def longest_gap_s(
    bands: Mapping[PartitionId, Sequence[Band]],
    since: float,
    now: float,
    silent_since: Mapping[str, float] | None = None,
) -> float | None:
    """The longest time since then for which any partition had no live owner. None: there was no such time.

    A gap that has not ended counts, too: no owner now, or one that has been silent since `silent_since`.
    """
    gaps = [
        min(until, now) - max(since, begin)
        for story in bands.values()
        for begin, until in _gaps(story, now, silent_since or {})
        if until > since
    ]
    return max((gap for gap in gaps if gap > 0), default=None)


def _gaps(story: Sequence[Band], now: float, silent_since: Mapping[str, float]) -> list[tuple[float, float]]:
    """Begin and end of each. Adjacent bands, such as a silence and then no owner, are one gap."""
    found: list[tuple[float, float]] = []
    for band in story:
        begin, until = band.since, band.until if band.until is not None else now
        silent = silent_since.get(band.owner or "") if band.until is None else None
        if band.kind == "owned" and silent is not None:
            begin = max(silent, band.since or 0.0)
        elif band.kind not in IDLE:
            continue
        if begin is None:
            continue
        if found and found[-1][1] >= begin:
            begin = found.pop()[0]
        found.append((begin, until))
    return found


def _story(moves: Sequence[Move], lease: Lease, silences: Mapping[MoveKey, float]) -> list[Band]:
    known = [move for move in moves if move.epoch <= lease.epoch]
    if not known or known[-1].epoch != lease.epoch:
        # The store has forgotten the last move; the lease itself still says since when it has its owner.
        bands = [*_bands(known, lease.changed_at, silences), _last(lease)]
    else:
        bands = _bands(known, None, silences)
    return [*bands[:-1], replace(bands[-1], kind="ended")] if lease.ended else bands


def _last(lease: Lease) -> Band:
    owner = lease.owner.id if lease.owner is not None else None
    kind = _kind(owner, lease.reason)
    since = lease.changed_at or None
    return Band(since=since, until=None, owner=owner, kind=kind, epoch=lease.epoch, reason=lease.reason)


def _bands(moves: Sequence[Move], end: float | None, silences: Mapping[MoveKey, float]) -> list[Band]:
    found: list[Band] = []
    if moves and moves[0].before is not None:
        first = Band(since=None, until=moves[0].at, owner=moves[0].before, kind="owned", epoch=None, reason="")
        found += _with_silence(first, moves[0], silences)
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
        found += _with_silence(band, after, silences) if after is not None else [band]
    return found


def _kind(owner: str | None, reason: str) -> BandKind:
    if owner is not None:
        return "owned"
    is_wanted = reason.startswith(("released: paused", "seek", "resume")) or is_released_done(reason)
    return "halted" if is_wanted else "unowned"


def _with_silence(band: Band, move: Move, silences: Mapping[MoveKey, float]) -> list[Band]:
    """Split a band at its owner's last heartbeat: from then on the owner was silent."""
    stated_s = silence_told(move.reason)
    begins = silences.get((move.partition, move.epoch))
    if begins is None and stated_s is not None:
        begins = move.at - stated_s
    if begins is None or band.owner is None or band.until is None:
        return [band]
    if band.since is not None:
        begins = max(begins, band.since)
    live = Band(since=band.since, until=begins, owner=band.owner, kind="owned", epoch=band.epoch, reason=band.reason)
    silent = Band(since=begins, until=band.until, owner=band.owner, kind="silent", epoch=band.epoch, reason=move.reason)
    return [live, silent] if band.since is None or begins > band.since else [silent]
