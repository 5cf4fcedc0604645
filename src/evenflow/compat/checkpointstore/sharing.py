"""What an owner of azure-eventhub's gives to instances of evenflow's Processor that share its group: pure.

Those take nothing from the living and wait until they are given it, while azure-eventhub never gives anything away. So
its checkpoint store does, by the plan that all instances make, when the owner renews what it has: to the owner it looks
as if it had lost the partition, which is how it gives way to its own kind.
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


def gifts(view: View, me: Member, sightings: Mapping[Owner, Sighting], now_s: float) -> dict[PartitionId, Member]:
    """Each partition that this owner is to give away, and to whom; mostly none, since there is no such instance."""
    heirs = {name: member for name, member in view.members.items() if _is_heir(view, member, sightings, now_s)}
    if not heirs:
        return {}
    members = {member.id: member for member in view.members.values() if _has_a_share(view, member, sightings, now_s)}
    members |= heirs | {me.id: me}
    owners = {
        name: lease.owner.id if lease.owner is not None and lease.owner.id in members else None
        for name, lease in sorted(view.leases.items())
        if not lease.ended and view.state.pause_of(name) is None
    }
    seats = [member.seat for _, member in sorted(members.items())]
    planned = plan(owners, seats).owners
    return {name: heirs[heir] for name, heir in planned.items() if owners[name] == me.id and heir in heirs}


def _is_heir(view: View, member: Member, sightings: Mapping[Owner, Sighting], now_s: float) -> bool:
    """An instance of ours that was seen to heartbeat, and lately: what is given to a dead one waits for its
    time-to-live.
    """
    seen = sightings.get(member.owner)
    is_alive = seen is not None and seen.moved and silence_s(seen, now_s) < 2 * member.heartbeat_s
    return not is_official(member) and is_alive and not _leaves(view, member)


def _has_a_share(view: View, member: Member, sightings: Mapping[Owner, Sighting], now_s: float) -> bool:
    return silence_s(sightings.get(member.owner), now_s) < member.ttl_s and not _leaves(view, member)


def _leaves(view: View, member: Member) -> bool:
    return member.retiring or str(member.owner) in view.state.retired
