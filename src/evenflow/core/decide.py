"""What an instance does after an answered heartbeat: what to adopt, to claim, to pass on, and when to look again.

Nothing else decides who handles a partition. The coordinator carries out what is decided here; the store's
compare-and-set has the last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.core.lineage import open_ones, unended
from evenflow.core.liveness import Sighting, silence_s
from evenflow.core.plan import free_since, plan
from evenflow.model import Change, Lease, Member, Owner, PartitionId, Plan, Seat, Wish

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from evenflow.core.view import View


TAKEN_OVER = "taken over"
"""How the reason of an unplanned move begins."""
APPEARED = "appeared"
"""The reason of a lease that was made for nobody, and that nobody has had since."""
STOLEN = "stolen"
"""How that of a move begins which its loser had no part in: a processor of another make does not hand over."""
CAUGHT_UP = "has caught up"
"""How that of a release ends whose owner has left because all was handled."""
LOST_LATELY = 2.0
"""So many of the longest time-to-lives after a loss, all leases have been made again."""
RECLAIMED = "taken again: the store has lost writes"
"""The reason of one who had it within its deadline, and does not wait."""


class Situation(Struct, frozen=True, kw_only=True):
    """All that a decision depends on."""

    me: Member
    view: View
    sightings: Mapping[Owner, Sighting]
    partitions: Collection[PartitionId]
    """Those that the source has; leases may name more."""
    held: Mapping[PartitionId, int]
    """What this instance holds now, with the epoch."""
    busy: Collection[PartitionId]
    """Not to be touched: a swap is under way, or a call of an earlier hold still runs."""
    last_epochs: Mapping[PartitionId, int]
    """The highest epoch held before; under it nothing is resumed."""
    heartbeat_sent_s: float
    """When the last answered heartbeat was sent."""
    history_since_s: float
    """Since when the store's history has been this one, as far as was watched without interruption."""
    longest_ttl_s: float
    loads: Mapping[PartitionId, float] | None = None
    """What is known of each partition's load; None when this instance balances by count."""
    parents: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Of the children of splits and merges: whom each of them follows."""
    reclaims: Collection[PartitionId] = ()
    """What this instance held, within its deadline, when the store proved to have lost writes: no other can have had
    it, so that it need not wait as the others do."""
    strangers: Collection[PartitionId] = ()
    """Leases name them, but the source has not been asked about them: they may follow somebody."""


class Decision(Struct, frozen=True, kw_only=True):
    plan: Plan
    adopt: tuple[Lease, ...] = ()
    """Leases that were passed to me: hold them."""
    swaps: tuple[Change, ...] = ()
    """To send: claims and takeovers, new leases, and what I stopped and must take again or pass on."""
    heirs: Mapping[PartitionId, Owner | None] = {}
    """Of what I hold: to be drained and passed on to this member; None: released."""
    wake_at_s: float | None = None
    """The next expiry that I wait for."""
    waiting: int = 0
    """Partitions planned for me that I cannot have yet."""
    paused: Mapping[PartitionId, Wish] = {}
    """Those that nobody is to have, by the wish of a person: they are in no plan."""
    unborn: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Those that nobody is to have because they follow others, which have not ended: they are in no plan either."""
    unplaced: tuple[Lease, ...] = ()
    """Nobody has ever had them, and nobody is to have them now: where they start is to be written down meanwhile."""


def decide(now: Situation) -> Decision:
    everything = _all_partitions(now)
    paused = {name: wish for name in everything if (wish := now.view.state.pause_of(name)) is not None}
    unborn = {name: parents for name, parents in _unborn(now, everything).items() if name not in paused}
    free = {name: f"released: {paused_by(wish)}" for name, wish in paused.items()} | {
        name: f"released: it follows {', '.join(parents)}, not ended yet" for name, parents in unborn.items()
    }
    owners = {partition: _owner_now(now, partition) for partition in everything if partition not in free}
    seats = _seats(now)
    planned = plan(owners, seats, _loads(now, seats), free_since(now.view.leases.values()))
    reasons = {move.partition: move.reason for move in planned.moves}
    has_begun = bool(now.view.leases)
    late = has_begun and not _is_lost_lately(now)
    adopt: list[Lease] = []
    swaps: list[Change] = []
    heirs: dict[PartitionId, Owner | None] = {}
    waiting = 0
    for partition, heir in planned.owners.items():
        lease = now.view.leases.get(partition) or Lease(partition=partition, late=late)
        if partition in now.held:
            if heir != now.me.id and _may_pass(now, heir):
                heirs[partition] = _taker(now, heir)
        elif partition in now.busy or partition in now.strangers or _is_hearsay(now, lease):
            waiting += heir == now.me.id
        elif lease.owner == now.me.owner and not lease.settled and not now.me.retiring:
            waiting += 1  # whoever had it may still be handling it, and does not look before its next round
        elif _is_passed_to_me(now, lease):
            adopt.append(lease)
        elif _may_reclaim(now, lease):
            swaps.append(_change(now, lease, now.me, RECLAIMED))
        elif lease.owner == now.me.owner and not _is_old(now, lease):
            swaps.append(_again(now, lease, heir))
        elif heir == now.me.id:
            if _wait_s(now, lease) > 0 and not _is_foreign(now, lease):
                waiting += 1
            else:
                swaps.append(_claim(now, lease, reasons.get(partition, "")))
        elif lease.revision == 0 and not has_begun and _wait_s(now, lease) <= 0:
            # Whoever comes first makes all leases, so that those made later are known to be late.
            swaps.append(_change(now, lease, None, APPEARED))
    for partition, why in free.items():
        lease = now.view.leases.get(partition) or Lease(partition=partition, late=late)
        if partition in now.held:
            heirs[partition] = None
        elif partition in now.busy or _is_hearsay(now, lease):
            continue
        elif lease.owner == now.me.owner and (not _is_old(now, lease) or _wait_s(now, lease) <= 0):
            swaps.append(_change(now, lease, None, why))
        elif lease.revision == 0 and not has_begun and _wait_s(now, lease) <= 0:
            swaps.append(_change(now, lease, None, APPEARED))
    nobodys = [name for name, heir in planned.owners.items() if heir is None]
    return Decision(
        plan=planned,
        adopt=tuple(adopt),
        swaps=tuple(swaps),
        heirs=heirs,
        wake_at_s=_next_expiry_s(now),
        waiting=waiting,
        paused=paused,
        unborn=unborn,
        unplaced=_unplaced(now, (*nobodys, *paused)),
    )


def _unplaced(now: Situation, nobodys: Iterable[PartitionId]) -> tuple[Lease, ...]:
    """Those of a late one begin at its beginning, whenever that is; and where leases may be missing, a record may be,
    too: the latest event is not where this group has begun."""
    if _may_miss_leases(now):
        return ()
    leases = [now.view.leases[name] for name in nobodys if name in now.view.leases]
    return tuple(
        lease
        for lease in leases
        if lease.owner is None and lease.reason == APPEARED and not lease.late and not _is_old(now, lease)
    )


def paused_by(wish: Wish) -> str:
    """For people: who paused it, and why."""
    return f"paused by {wish.by or 'somebody'}" + (f": {wish.why}" if wish.why else "")


def is_dead(now: Situation, owner: Owner, ttl_s: float) -> bool:
    """Its heartbeat stood still for its whole time-to-live, on our own clock."""
    return silence_s(now.sightings.get(owner), now.heartbeat_sent_s) >= ttl_s


def _all_partitions(now: Situation) -> list[PartitionId]:
    """In one order for everybody, without those that have ended."""
    return sorted(open_ones(now.partitions, now.view.leases))


def _unborn(now: Situation, everything: Collection[PartitionId]) -> dict[PartitionId, tuple[PartitionId, ...]]:
    """Children that have to wait. One that somebody has already stays there: it is too late to wait."""
    waiting = unended(now.parents, set(everything)) if now.parents else {}
    return {name: parents for name, parents in waiting.items() if not _is_owned(now, name)}


def _is_owned(now: Situation, partition: PartitionId) -> bool:
    lease = now.view.leases.get(partition)
    return lease is not None and not _is_old(now, lease) and _owner_now(now, partition) is not None


def _seats(now: Situation) -> list[Seat]:
    """Who gets a share: all who were seen to heartbeat, and owners of whom it is not yet known.

    A row alone is no sign of life: it may be of a process that was killed an hour ago. A lease is passed only to
    those seen alive lately, and who leaves cannot wait for more: it plans for those alone. Who is asked to retire may
    not have heard of it yet, or says so with its next heartbeat only.
    """
    owners = {lease.owner for lease in now.view.leases.values()}
    others = [
        member
        for member in now.view.members.values()
        if not member.retiring
        and str(member.owner) not in now.view.state.retired
        and member.id != now.me.id
        and not is_dead(now, member.owner, member.ttl_s)
        and (member.owner in owners or _was_seen_to_heartbeat(now, member.owner))
    ]
    if now.me.retiring:
        others = [member for member in others if _row(now, member.id) is not None]
    return [member.seat for member in (others if now.me.retiring else [*others, now.me])]


def _loads(now: Situation, seats: Collection[Seat]) -> Mapping[PartitionId, float] | None:
    """Loads, if all who get a share balance by load. Otherwise all go by count: two kinds of plans would fight."""
    rows = (now.me if seat.id == now.me.id else now.view.members[seat.id] for seat in seats)
    return now.loads if all(row.load is not None for row in rows) else None


def _was_seen_to_heartbeat(now: Situation, owner: Owner) -> bool:
    seen = now.sightings.get(owner)
    return seen is not None and seen.moved


def _owner_now(now: Situation, partition: PartitionId) -> str | None:
    """Who counts as the owner in the plan. A restarted instance counts as the owner of what it had before."""
    lease = now.view.leases.get(partition)
    if _may_reclaim(now, lease or Lease(partition=partition)):
        return now.me.id
    if lease is None or lease.owner is None:
        return None
    if partition in now.held or lease.owner.id == now.me.id:
        return lease.owner.id
    return None if is_dead(now, lease.owner, lease.ttl_s) else lease.owner.id


def _may_pass(now: Situation, heir: str | None) -> bool:
    """Only to somebody seen alive; who leaves does not wait for that, and releases instead."""
    return now.me.retiring or _row(now, heir) is not None


def _row(now: Situation, heir: str | None) -> Owner | None:
    """The heir, if its heartbeats were seen lately: a lease passed to a dead one would wait a whole time-to-live."""
    member = now.view.members.get(heir) if heir is not None else None
    seen = now.sightings.get(member.owner) if member is not None else None
    if member is None or seen is None or not seen.moved:
        return None
    return member.owner if silence_s(seen, now.heartbeat_sent_s) < 2 * member.heartbeat_s else None


def _taker(now: Situation, heir: str | None) -> Owner | None:
    """Whom to pass it to. Processors of another make take what is free, and not all of them what is given to them."""
    row = _row(now, heir)
    return row if row is not None and row.incarnation else None


def _is_foreign(now: Situation, lease: Lease) -> bool:
    """It belongs to a processor of another make, which gives nothing away: who should have it takes it."""
    return lease.owner is not None and lease.owner.incarnation == 0 and not _is_old(now, lease)


def _is_old(now: Situation, lease: Lease) -> bool:
    return lease.revision > 0 and lease.history != now.view.history


def _may_miss_leases(now: Situation) -> bool:
    """The store has lost writes since the group began: where a lease is missing, there may have been one."""
    return now.view.history > now.view.began


def _is_lost_lately(now: Situation) -> bool:
    """A lease that is missing now may have been there. Much later, it is that of a new partition."""
    return _may_miss_leases(now) and now.heartbeat_sent_s - now.history_since_s < LOST_LATELY * now.longest_ttl_s


def _may_reclaim(now: Situation, lease: Lease) -> bool:
    is_unsettled = lease.revision == 0 or _is_old(now, lease)
    return lease.partition in now.reclaims and is_unsettled and not now.me.retiring


def _is_hearsay(now: Situation, lease: Lease) -> bool:
    """Mine, says the answer to a swap that came after the last heartbeat: only a heartbeat can tell, and the next one
    will.
    """
    return lease.owner == now.me.owner and lease.revision > now.view.cursor.revision


def _is_passed_to_me(now: Situation, lease: Lease) -> bool:
    fresh = lease.epoch > now.last_epochs.get(lease.partition, 0) and not _is_old(now, lease)
    return lease.owner == now.me.owner and fresh and not now.me.retiring


def _wait_s(now: Situation, lease: Lease) -> float:
    """How long until the lease may be claimed; 0 or less: now.

    In a store that lost writes, somebody may still act on a lease that is old here, or is missing.
    """
    if _is_old(now, lease) or (lease.revision == 0 and _may_miss_leases(now)):
        return now.longest_ttl_s - (now.heartbeat_sent_s - now.history_since_s)
    if lease.owner is None:
        return 0.0
    return lease.ttl_s - silence_s(now.sightings.get(lease.owner), now.heartbeat_sent_s)


def _next_expiry_s(now: Situation) -> float | None:
    """When the next lease of somebody else runs out, should its owner stay as silent as it was."""
    others = (lease for lease in now.view.leases.values() if lease.owner != now.me.owner and not lease.ended)
    waits = (_wait_s(now, lease) for lease in others)
    left_s = min((wait_s for wait_s in waits if wait_s > 0), default=None)
    return None if left_s is None else now.heartbeat_sent_s + left_s


def _again(now: Situation, lease: Lease, heir: str | None) -> Change:
    """I own it but stopped: anew, under a new epoch, or on to the heir."""
    if not now.me.retiring:
        return _change(now, lease, now.me, "taken again: it had stopped")
    owner = _taker(now, heir)
    heir_row = now.view.members[owner.id] if owner else None
    return _change(now, lease, heir_row, f"{'handed over' if heir_row else 'released'}: {now.me.id} leaves")


def _claim(now: Situation, lease: Lease, why: str) -> Change:
    if lease.owner is None or _is_old(now, lease):
        return _change(now, lease, now.me, f"claimed: {why}" if why else "claimed")
    if _wait_s(now, lease) > 0:
        if lease.owner.id == now.me.id:
            # Of another make, with my own name: somebody has edited it, or a host of theirs is called as I am.
            return _change(now, lease, now.me, "taken again: somebody else had written the lease, in this name")
        return _change(now, lease, now.me, f"{STOLEN} from {lease.owner.id}: {why}")
    silent_s = silence_s(now.sightings.get(lease.owner), now.heartbeat_sent_s)
    reason = f"{TAKEN_OVER}: no heartbeat of {lease.owner.id} for {silent_s:.1f} s"
    return _change(now, lease, now.me, reason, (lease.owner, now.sightings[lease.owner].mark))


def released_done(who: str) -> str:
    """The reason of one who leaves because all was handled that it came for."""
    return f"released: {who} {CAUGHT_UP}"


def is_released_done(reason: str) -> bool:
    return reason.startswith("released:") and reason.endswith(CAUGHT_UP)


def silence_told(reason: str) -> float | None:
    """How long the owner had been silent when it was taken over, by the reason above; None for other reasons."""
    if not reason.startswith(f"{TAKEN_OVER}:"):
        return None
    told = reason.rpartition(" for ")[2].removesuffix(" s")
    return float(told) if told.replace(".", "", 1).isdecimal() else None


def _change(
    now: Situation,
    lease: Lease,
    owner: Member | None,
    reason: str,
    still: tuple[Owner, int | None] | None = None,
) -> Change:
    return Change(
        partition=lease.partition,
        revision=lease.revision,
        history=now.view.history,
        owner=owner.owner if owner is not None else None,
        epoch=now.view.epoch_after(lease),
        ttl_s=owner.ttl_s if owner is not None else 0.0,
        reason=reason,
        still=still,
        late=lease.late,
    )


def handoff(view: View, lease: Lease, heir: Owner | None, reason: str, *, ended: bool = False) -> Change:
    """The swap that passes a drained partition on, or says for good that it has ended."""
    member = view.members.get(heir.id) if heir is not None else None
    return Change(
        partition=lease.partition,
        revision=lease.revision,
        history=view.history,
        owner=heir,
        epoch=view.epoch_after(lease),
        ttl_s=member.ttl_s if member is not None else 0.0,
        reason=reason,
        late=lease.late,
        ended=ended,
    )
