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
"""Times its time-to-live: wall clocks differ a little."""

FRESH_HEARTBEATS = 2
"""Who has beaten within so many heartbeats, by the wall clocks, is taken for alive when nobody has watched."""

FRESH_SLACK_S = 0.5

MemberStatus: TypeAlias = Literal["alive", "silent", "leaving", "unknown"]


class MemberRow(Struct, frozen=True, kw_only=True):
    id: str
    incarnation: int
    partitions: int
    share: int | None = None
    """How many it should have; None when it gets none, because it leaves or is silent."""
    per_s: float | None = None
    weight: float
    host: str
    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    """When the store had its last heartbeat, by the store's wall clock: for people, who know how far to trust it."""
    heartbeat_s: float
    ttl_s: float
    silent_s: float | None
    """How long its heartbeat has stood still, as far as was watched; None when nobody has watched."""
    status: MemberStatus
    by_wall_clock: bool = False
    """The status is what wall clocks say, which differ; nobody has watched its heartbeat."""
    excess: int = 0
    """How many of its partitions the next plan gives to others."""
    load: float | None = None
    """How many of its partitions' handlers run at a time, on average; None when not all publish that."""
    load_of_mean: float | None = None
    """The same as a part of what an instance of its weight has on average."""
    charges: Mapping[str, float] | None = None
    """What services have counted for it since it started, of each kind of operation: request units, say."""


class MemberContext(Struct, frozen=True, kw_only=True):
    """What is known of members beside what the store tells."""

    silences: Mapping[Owner, float | None] = {}
    """How long whose heartbeat has stood still, as far as was watched or is plain from wall clocks."""
    unwatched: frozenset[Owner] = frozenset()
    """Those of whom wall clocks alone tell."""
    shares: Mapping[str, int] = {}
    rates: Mapping[str, float | None] = {}
    excess: Mapping[str, int] = {}
    loads: Mapping[PartitionId, float] | None = None
    """Of partitions, where all publish theirs."""
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
    """For a weight of 1, over those who get a share."""
    width = sum(member.weight for member in ledger.members if not is_retiring(member, ledger))
    owned = [loads.get(lease.partition, 0.0) for lease in ledger.leases if lease.owner is not None] if loads else []
    return sum(owned) / width if width and sum(owned) else None


def is_retiring(member: Member, ledger: Ledger) -> bool:
    """By itself, or because somebody asked it to and it has not heard yet."""
    return member.retiring or str(member.owner) in ledger.state.retired


def is_fresh(member: Member, wall_s: float) -> bool:
    """It has beaten just now, by the wall clocks of the store and of this machine; an age below 0 is one as well."""
    return (
        bool(member.heartbeat_at)
        and abs(wall_s - member.heartbeat_at) <= FRESH_HEARTBEATS * member.heartbeat_s + FRESH_SLACK_S
    )


def long_silent(
    ledger: Ledger | None, silences: Mapping[Owner, float | None], wall_s: float
) -> dict[Owner, float | None]:
    """Who has been silent for much longer than it may, by the wall clocks of the store and of this machine.

    That decides nothing, and is better than calling it fine because nobody has watched for long enough. Who owns
    nothing is given no grace: the others have taken it over.
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
    """In a word, and whether only wall clocks say so."""
    silent_s, unwatched = known.silences.get(member.owner), member.owner in known.unwatched
    if silent_s is not None and silent_s >= member.ttl_s:
        return "silent", unwatched
    if is_retiring(member, ledger):
        return "leaving", False
    if silent_s is not None:
        return "alive", unwatched
    fresh = known.wall_s is not None and is_fresh(member, known.wall_s)
    return ("alive", True) if fresh else ("unknown", False)
