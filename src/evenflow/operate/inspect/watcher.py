"""Snapshots of a group, one after the other; each uses what the earlier ones showed.

This is what the command line and the console show: the ownership table, the members with their fair shares, and what
is wrong. The watcher does not join the group.
"""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.model import EVERYTHING
from evenflow.operate.inspect.findings import Finding, different_source_finding, findings_of
from evenflow.operate.inspect.forecast import PlanForecast, forecast_plan
from evenflow.operate.inspect.hints import Hints
from evenflow.operate.inspect.lag import lag_of
from evenflow.operate.inspect.members import MemberContext, MemberRow, long_silent
from evenflow.operate.inspect.ownership import PartitionContext, PartitionRow
from evenflow.operate.inspect.rates import ProgressPoint, ProgressRate, RateTracker
from evenflow.operate.inspect.survey import HeartbeatTracker, Survey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Checkpoint, Group, Owner, PartitionId, Wish


class GroupSnapshot(Struct, frozen=True, kw_only=True):
    """A group at one moment."""

    found: Survey
    wall_s: float
    silences: Mapping[Owner, float | None]
    partitions: Sequence[PartitionRow]
    members: Sequence[MemberRow]
    findings: Sequence[Finding]
    forecast: PlanForecast
    total: ProgressRate
    """Of all partitions together."""

    @property
    def group(self) -> Group:
        return self.found.group

    @property
    def pause(self) -> Wish | None:
        """Of the whole group."""
        return self.found.ledger.state.pauses.get(EVERYTHING) if self.found.ledger is not None else None

    @property
    def open(self) -> Sequence[PartitionRow]:
        """The partitions that have not ended; all counts are of these."""
        return [row for row in self.partitions if row.status != "ended"]

    @property
    def ended(self) -> Sequence[PartitionRow]:
        return [row for row in self.partitions if row.status == "ended"]

    @property
    def _behind(self) -> Sequence[PartitionRow]:
        """Ended partitions have no lag, which says nothing about the others."""
        return self.open or self.partitions

    @property
    def lag(self) -> int | None:
        """Of all partitions whose lag is known; None when no lag is known."""
        known = [row.lag for row in self._behind if row.lag is not None]
        return sum(known) if known else None

    @property
    def unknown_lags(self) -> int:
        return sum(row.lag is None for row in self._behind)

    @property
    def lag_s(self) -> float | None:
        """Of the partition that is furthest behind; None when it is unknown for any partition with lag.

        Some sources know how long events have waited, but not how many wait.
        """
        ages = [row.lag_s for row in self._behind if row.lag is not None or row.lag_s is not None]
        known = [age for age in ages if age is not None]
        return max(known) if known and len(known) == len(ages) else None

    @property
    def owned(self) -> int:
        return sum(row.owner is not None for row in self.open)

    @property
    def running(self) -> int:
        """How many instances are live: not counting silent ones."""
        return sum(member.status != "silent" for member in self.members)

    @property
    def status(self) -> str:
        """The kind of the worst finding, or "ok"."""
        if self.found.has_different_source:
            return self.findings[0].kind
        if not self.running and not any(finding.kind == "between runs" for finding in self.findings):
            return "paused" if self.pause is not None else "no instances"
        return self.findings[0].kind if self.findings else "ok"


class GroupWatcher:
    """Remembers earlier snapshots: heartbeats, for silence, and checkpoints, for rates."""

    def __init__(self, hints: Hints | None = None) -> None:
        self._hints = hints
        self._heartbeats = HeartbeatTracker()
        self._rates = RateTracker()

    def observe(self, found: Survey, now_s: float, wall_s: float) -> GroupSnapshot:
        """`now_s` is on the watcher's own clock, `wall_s` for display."""
        seen = self._heartbeats.observe(found.ledger.members if found.ledger is not None else (), now_s)
        unwatched = long_silent(found.ledger, seen, wall_s)
        silences = seen | unwatched
        rates = self._rates.observe(_points(found), now_s)
        forecast = forecast_plan(found, silences)
        partitions = found.partition_rows(
            PartitionContext(silences=silences, rates=rates, loads=forecast.loads, wall_s=wall_s)
        )
        members = found.member_rows(
            MemberContext(
                silences=silences,
                unwatched=frozenset(unwatched),
                shares=forecast.plan.shares,
                rates=_rates(partitions),
                excess=Counter(move.before for move in forecast.plan.moves if move.before is not None),
                loads=forecast.loads,
                wall_s=wall_s,
            )
        )
        hints = self._hints or _hints_for(found.group)
        return GroupSnapshot(
            found=found,
            wall_s=wall_s,
            silences=silences,
            partitions=partitions,
            members=members,
            findings=findings_of(partitions, members, hints, found.dead_letters, _different_source(found, hints)),
            forecast=forecast,
            total=rates.get(EVERYTHING, ProgressRate()),
        )


def _different_source(found: Survey, hints: Hints) -> Finding | None:
    if found.ledger is None or found.identity is None or not found.has_different_source:
        return None
    return different_source_finding(found.ledger.state.source, found.identity, hints)


def _hints_for(group: Group) -> Hints:
    """Without flags from the caller, at least the group's name."""
    return Hints(flags=f"--group {quote(group.name)}")


def _points(found: Survey) -> dict[PartitionId, ProgressPoint]:
    """The progress of each partition, and of all under EVERYTHING, whose lag is known only if every lag is."""
    ended = {name for name, lease in found.leases.items() if lease.ended}
    points = {
        record.partition: ProgressPoint(
            record.ordinal,
            0 if record.partition in ended else _lag(found, record),
        )
        for record in found.checkpoints
    }
    if points:
        lags = [point.lag for point in points.values()]
        known = [lag for lag in lags if lag is not None]
        total = sum(known) if len(known) == len(lags) else None
        points[EVERYTHING] = ProgressPoint(sum(point.ordinal for point in points.values()), total)
    return points


def _lag(found: Survey, record: Checkpoint) -> int | None:
    return lag_of(record.position, found.bounds.get(record.partition), found.pieces.get(record.partition, ()))


def _rates(partitions: Sequence[PartitionRow]) -> dict[str, float | None]:
    """Events per second of each owner: the sum over its partitions."""
    rates: dict[str, float | None] = {}
    for row in partitions:
        if row.owner is not None and row.per_s is not None:
            rates[row.owner] = (rates.get(row.owner) or 0.0) + row.per_s
    return rates
