"""The member table: one row for each instance of a group. Pure; unknown is None, and is never shown as 0.

Wall-clock times are for display only: nothing is decided by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model import Ledger, Member, Owner, PartitionId

LONG_SILENT = 1.5
"""In times-to-live. Above 1, because wall clocks differ a little."""

FRESH_HEARTBEATS = 2
"""Before it has been observed, a member counts as alive if its last heartbeat is at most this many intervals old."""

FRESH_SLACK_S = 0.5

MemberStatus: TypeAlias = Literal["alive", "silent", "leaving", "unknown"]


class MemberRow(Struct, frozen=True, kw_only=True):
    id: str
    incarnation: int
    partitions: int
    share: int | None = None
    """How many it should have; None when it gets none, because it is leaving or silent."""
    per_s: float | None = None
    weight: float
    host: str
    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    """When the store received its last heartbeat, by the store's wall clock: for display only."""
    heartbeat_s: float
    ttl_s: float
    silent_s: float | None
    """How long ago its heartbeat counter last changed, as observed; None when not observed for long enough."""
    status: MemberStatus
    by_wall_clock: bool = False
    """The status follows from wall clocks alone, which differ: its heartbeat has not been observed for long enough."""
    excess: int = 0
    """How many of its partitions the next plan moves away."""
    load: float | None = None
    """Mean number of its handlers that run at the same time; None unless all instances publish it."""
    load_of_mean: float | None = None
    """The same, relative to the mean of instances of its weight."""
    charges: Mapping[str, float] | None = None
    """Units that services have charged it since it started, by kind of operation: request units, for example."""


class MemberContext(Struct, frozen=True, kw_only=True):
    """What is known of members beyond what the store keeps."""

    silences: Mapping[Owner, float | None] = {}
    """How long each has been silent, as observed, or where wall clocks leave no doubt."""
    unwatched: frozenset[Owner] = frozenset()
    """Those whose silence follows from wall clocks alone."""
    shares: Mapping[str, int] = {}
    rates: Mapping[str, float | None] = {}
    excess: Mapping[str, int] = {}
    loads: Mapping[PartitionId, float] | None = None
    """Of each partition, when all instances publish theirs."""
    wall_s: float | None = None


def member_rows(ledger: Ledger | None, standing: MemberContext | None = None) -> list[MemberRow]:
    """One row for each member, with how many partitions it owns and should own, and how much it handles."""
    if ledger is None:
        return []
    known = standing or MemberContext()
    mean = _mean_load(ledger, known.loads)
    return [
        _member_row(member, ledger, known, mean)
        for member in sorted(ledger.members, key=lambda member: natural(member.id))
    ]


def _mean_load(ledger: Ledger, loads: Mapping[PartitionId, float] | None) -> float | None:
    """Per weight of 1, over the members that get a share."""
    width = sum(member.weight for member in ledger.members if not is_retiring(member, ledger))
    owned = [loads.get(lease.partition, 0.0) for lease in ledger.leases if lease.owner is not None] if loads else []
    return sum(owned) / width if width and sum(owned) else None


def is_retiring(member: Member, ledger: Ledger) -> bool:
    """By itself, or because an operator requested it and it has not seen the request yet."""
    return member.retiring or str(member.owner) in ledger.state.retired


def is_fresh(member: Member, wall_s: float) -> bool:
    """Its last heartbeat is recent, by the wall clocks of the store and of this machine. The age may be negative."""
    return (
        bool(member.heartbeat_at)
        and abs(wall_s - member.heartbeat_at) <= FRESH_HEARTBEATS * member.heartbeat_s + FRESH_SLACK_S
    )


def long_silent(
    ledger: Ledger | None, silences: Mapping[Owner, float | None], wall_s: float
) -> dict[Owner, float | None]:
    """Members that have been silent for much longer than their time-to-live, by wall clocks.

    For display only: without this, a member that died long ago would show as alive until it has been observed for a
    whole time-to-live. A member without partitions gets no grace: others have already taken them over.
    """
    if ledger is None:
        return {}
    owners = {lease.owner for lease in ledger.leases}
    ages = [(member, wall_s - member.heartbeat_at) for member in ledger.members if member.heartbeat_at]
    return {
        member.owner: age_s
        for member, age_s in ages
        if silences.get(member.owner) is None
        and age_s >= (LONG_SILENT if member.owner in owners else 1.0) * member.ttl_s
    }


def _member_row(member: Member, ledger: Ledger, known: MemberContext, mean: float | None) -> MemberRow:
    owned = [lease.partition for lease in ledger.leases if lease.owner == member.owner and not lease.ended]
    silent_s = known.silences.get(member.owner)
    status, by_wall_clock = _member_status(member, ledger, known)
    load = sum(known.loads.get(name, 0.0) for name in owned) if known.loads is not None else None
    return MemberRow(
        id=member.id,
        incarnation=member.incarnation,
        partitions=len(owned),
        share=known.shares.get(member.id),
        per_s=known.rates.get(member.id),
        excess=known.excess.get(member.id, 0),
        weight=member.weight,
        host=member.host,
        pid=member.pid,
        version=member.version,
        started_at=member.started_at,
        heartbeat_at=member.heartbeat_at,
        heartbeat_s=member.heartbeat_s,
        ttl_s=member.ttl_s,
        silent_s=silent_s,
        status=status,
        by_wall_clock=by_wall_clock,
        load=load,
        load_of_mean=load / (mean * member.weight) if load is not None and mean and member.weight else None,
        charges=member.charges,
    )


def _member_status(member: Member, ledger: Ledger, known: MemberContext) -> tuple[MemberStatus, bool]:
    """The status, and whether it follows from wall clocks alone."""
    silent_s, unwatched = known.silences.get(member.owner), member.owner in known.unwatched
    if silent_s is not None and silent_s >= member.ttl_s:
        return "silent", unwatched
    if is_retiring(member, ledger):
        return "leaving", False
    if silent_s is not None:
        return "alive", unwatched
    fresh = known.wall_s is not None and is_fresh(member, known.wall_s)
    return ("alive", True) if fresh else ("unknown", False)
