"""Who is alive, judged by heartbeats that this instance saw move or stand still, on its own clock alone.

Silence counts from the answer that first showed a mark to the sending of the last heartbeat that still showed it, over
this instance's own uninterrupted answered heartbeats: after an outage of the store nobody is dead until watched for a
whole time-to-live. Wall clocks are never compared: the owner's may be wrong, and so may ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.core.view import View
    from evenflow.model import Ledger, Owner

UNSEEN = -1
"""A mark that is known to have moved, but not to what."""


class Sighting(NamedTuple):
    mark: int | None
    """None: the row of this incarnation is gone, so no heartbeat of it can come any more."""
    since_s: float
    """When the answer came that first showed this mark."""
    moved: bool
    """It was seen to move while we watched: somebody is there."""


def watch(before: Mapping[Owner, Sighting] | None, ledger: Ledger, view: View, now_s: float) -> dict[Owner, Sighting]:
    """What is known of every member and lease owner after a ledger (`view` is after it too) answered at `now_s`.

    `before` is None when this instance's own heartbeats were interrupted: then all watching starts anew.
    """
    rows = {member.owner: member.mark for member in ledger.members}
    watched = {member.owner for member in view.members.values()}
    watched.update(lease.owner for lease in view.leases.values() if lease.owner is not None)
    sightings: dict[Owner, Sighting] = {}
    for owner in watched:
        seen = before.get(owner) if before is not None else None
        mark = rows.get(owner) if ledger.roster or not view.has(owner) else rows.get(owner, UNSEEN)
        sightings[owner] = _look(seen, mark, now_s, uninterrupted=before is not None, whole=ledger.roster)
    return sightings


def _look(seen: Sighting | None, mark: int | None, now_s: float, *, uninterrupted: bool, whole: bool) -> Sighting:
    if seen is None:
        # A row that was not there at our last heartbeat and is there now was written in between.
        return Sighting(mark, now_s, uninterrupted and mark is not None)
    if mark == UNSEEN:
        return Sighting(UNSEEN, now_s, True)
    if seen.mark == mark:
        return seen
    if seen.mark == UNSEEN and mark is not None:
        # A partial ledger lists it because it has not moved since the answer before this one. (A whole roster cannot
        # tell: it counts from now, and what was never seen to move still was not.)
        return Sighting(mark, now_s if whole else seen.since_s, seen.moved)
    return Sighting(mark, now_s, mark is not None)


def silence_s(sighting: Sighting | None, heartbeat_sent_s: float) -> float:
    """How long the mark stood still, as far as the last answered heartbeat (sent then) can tell."""
    return heartbeat_sent_s - sighting.since_s if sighting is not None else 0.0
