"""How busy each partition keeps its handler in this instance, and when that is news for the others.

What is published changes the member's row, and then everybody gets the whole roster with its next heartbeat: so values
are rounded, and told only when they changed noticeably. Plans are made from what is published, one's own values
included, so that all plan from the same."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from evenflow.core.load import IDLE, known_loads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.core.view import View
    from evenflow.model import Lease, Member, PartitionId
    from evenflow.runtime.hold import Hold

KNOWN = 0.4
"""So much of a whole average must have been seen before it counts: half of the time constant."""
NEWS, NEWS_LATER = 0.05, 0.02
"""Of the mean load of a member: changes above the first are told at once, above the second after some heartbeats."""
LATER_HEARTBEATS = 15


class Average:
    """One partition's busy seconds a second, exponentially smoothed; what came long ago counts less and less.

    A call counts when it has returned. One that ran for longer than the time between two looks is spread over the
    time after it, for no partition is ever busier than all the time.

    A move makes a partition busy: what waited meanwhile, or is repeated, is worked off without a pause. Were that its
    load, it would be moved on for having been moved. So where a load was known before, it stays as it was until the
    new hold has caught up, or the time constant has passed.
    """

    def __init__(self, hold: Hold, now_s: float, before: float | None) -> None:
        self._sum, self._weight = (before, 1.0) if before is not None else (0.0, 0.0)
        self._owed_s = 0.0
        self.take_up(hold, now_s)

    def take_up(self, hold: Hold, now_s: float) -> None:
        self.hold, self._busy_s, self._at_s, self._since_s = hold, hold.busy_s, now_s, now_s
        self._is_behind = self.value is not None

    def look(self, now_s: float, over_s: float) -> None:
        if self._is_behind:
            self._is_behind = not self.hold.caught_up and now_s - self._since_s < over_s
            self._busy_s, self._at_s, self._owed_s = self.hold.busy_s, now_s, 0.0
            return
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if elapsed_s <= 0:
            return
        self._owed_s += self.hold.busy_s - self._busy_s
        self._busy_s = self.hold.busy_s
        counted_s = min(self._owed_s, elapsed_s)
        self._owed_s -= counted_s
        keep = exp(-elapsed_s / over_s)
        self._sum = self._sum * keep + counted_s / elapsed_s * (1 - keep)
        self._weight = self._weight * keep + (1 - keep)

    @property
    def value(self) -> float | None:
        """None until enough was seen."""
        return self._sum / self._weight if self._weight >= KNOWN else None


class LoadMeter:
    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self._averages: dict[PartitionId, Average] = {}
        self._heartbeats = 0
        self._members: Mapping[str, Member] = {}
        self._leases: Mapping[PartitionId, Lease] = {}
        self.known: dict[PartitionId, float] = {}
        """What is published of every partition, or was last."""

    def take_in(self, me: Member, view: View) -> None:
        """After an answered heartbeat. What was known stays known when whoever published it has left."""
        if view.members is self._members and view.leases is self._leases:
            return
        self._members, self._leases = view.members, view.leases
        others = (member for member in view.members.values() if member.id != me.id)
        self.known = known_loads([*others, me], view.leases, self.known)

    def measure(self, holds: Mapping[PartitionId, Hold], now_s: float) -> None:
        """Before a heartbeat. A partition that came from somebody else goes on from what was published of it."""
        averages = {}
        for partition, hold in holds.items():
            average = self._averages.get(partition)
            if average is None:
                average = Average(hold, now_s, self.known.get(partition))
            elif average.hold is not hold:
                average.take_up(hold, now_s)
            average.look(now_s, self._over_s)
            averages[partition] = average
        self._averages = averages

    def news(self, me: Member) -> dict[PartitionId, float] | None:
        """What is to be published from now on; None: what is published will do."""
        published = me.load or {}
        mine = {name: _rounded(value) for name, one in self._averages.items() if (value := one.value) is not None}
        passed = {name for name in published.keys() - mine.keys() if self._is_mine_to_tell(me, name)}
        self._heartbeats += 1
        if published.keys() == mine.keys() | passed and not self._has_changed(mine, published):
            return None
        self._heartbeats = 0
        return {name: published[name] for name in passed} | mine

    def _has_changed(self, mine: Mapping[PartitionId, float], published: Mapping[PartitionId, float]) -> bool:
        changes = [load - published[partition] for partition, load in mine.items()]
        most = max(abs(sum(changes)), max(map(abs, changes), default=0.0))
        publishing = sum(member.load is not None for member in self._members.values())
        mean = max(10 * IDLE, sum(self.known.values()) / max(1, publishing))
        return most > mean * (NEWS if self._heartbeats < LATER_HEARTBEATS else NEWS_LATER)

    def _is_mine_to_tell(self, me: Member, partition: PartitionId) -> bool:
        """Passed on, but its new owner has not published it yet."""
        lease = self._leases.get(partition)
        if lease is None or lease.ended:
            return False
        row = self._members.get(lease.owner.id) if lease.owner is not None else None
        return row is None or row.id == me.id or partition not in (row.load or {})


def _rounded(load: float) -> float:
    return float(f"{load:.3g}")
