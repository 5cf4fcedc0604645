"""Which partitions an owner of azure-eventhub hands over to instances of evenflow's Processor in its group. Pure.

Instances of evenflow never take a partition from a live owner; they wait for a handover. azure-eventhub never hands
over. So its checkpoint store does, when the owner renews its partitions, following the plan that all instances compute.
The owner sees a lost partition, as if another client of azure-eventhub had claimed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.compat.checkpointstore.owners import is_official
from evenflow.core.liveness import Sighting, silence_s
from evenflow.core.plan import plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.core.view import View
    from evenflow.model import Member, Owner, PartitionId


def handovers(view: View, me: Member, sightings: Mapping[Owner, Sighting], now_s: float) -> dict[PartitionId, Member]:
    """Each partition that this owner must hand over, and its new owner; none if no instance shares the group."""
    receivers = {name: member for name, member in view.members.items() if _can_receive(view, member, sightings, now_s)}
    if not receivers:
        return {}
    members = {member.id: member for member in view.members.values() if _has_a_share(view, member, sightings, now_s)}
    members |= receivers | {me.id: me}
    owners = {
        name: lease.owner.id if lease.owner is not None and lease.owner.id in members else None
        for name, lease in sorted(view.leases.items())
        if not lease.ended and view.state.pause_of(name) is None
    }
    seats = [member.seat for _, member in sorted(members.items())]
    planned = plan(owners, seats).owners
    return {name: receivers[owner] for name, owner in planned.items() if owners[name] == me.id and owner in receivers}


def _can_receive(view: View, member: Member, sightings: Mapping[Owner, Sighting], now_s: float) -> bool:
    """An instance of evenflow with a recent heartbeat. A partition of a dead one would wait for its time-to-live."""
    seen = sightings.get(member.owner)
    is_alive = seen is not None and seen.moved and silence_s(seen, now_s) < 2 * member.heartbeat_s
    return not is_official(member) and is_alive and not _leaves(view, member)


def _has_a_share(view: View, member: Member, sightings: Mapping[Owner, Sighting], now_s: float) -> bool:
    return silence_s(sightings.get(member.owner), now_s) < member.ttl_s and not _leaves(view, member)


def _leaves(view: View, member: Member) -> bool:
    return member.retiring or str(member.owner) in view.state.retired
