"""What becomes of claims: azure-eventhub's ownership, which an etag guards, on leases and members' heartbeats.

An owner's renewal is its heartbeat: one write, whatever it has, and all etags of its partitions are old from then on. A
claim of what another one has is conditional on the lease's revision and on that one's mark, both in the etag, checked
by the store in one step: so of a renewal and a claim, and of two claims, exactly one wins. Whether somebody is dead is
azure-eventhub's to judge, and it claims from the living too, to even out. An instance of evenflow's Processor is
another matter: it hands over by itself, so that nothing is taken from it before its mark stood still for its whole
time-to-live.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.compat.checkpointstore.entries import claimed, ownership_of, row_of
from evenflow.compat.checkpointstore.owners import Owners, is_official
from evenflow.compat.checkpointstore.progress import Progress
from evenflow.compat.checkpointstore.sharing import gifts
from evenflow.core.decide import TAKEN_OVER, paused_by
from evenflow.core.liveness import Sighting, silence_s
from evenflow.core.view import View, merge, with_lease
from evenflow.errors import Superseded, Transient
from evenflow.model import Change, Lease

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.compat.checkpointstore.entries import Claim, Etag
    from evenflow.compat.checkpointstore.owners import OpenStore, Pace
    from evenflow.model import Group, Ledger, Member, Owner, PartitionId
    from evenflow.ports import Clock


class _Hold(NamedTuple):
    """What was claimed here, and the owner's mark then: an older etag of it is over."""

    owner: Owner
    epoch: int
    mark: int


class _Now(NamedTuple):
    """What a claim is judged by."""

    view: View
    me: Member | None
    """Who claims, after its heartbeat; None: somebody lets go."""
    gifts: Mapping[PartitionId, Member]
    """What the claimant is to give away, and to whom."""


class Claims:
    """The ownership of one group."""

    def __init__(self, store: OpenStore, group: Group, pace: Pace, clock: Clock) -> None:
        self._store, self._group, self._clock = store, group, clock
        self._owners = Owners(pace, clock)
        self._view: View | None = None
        """From heartbeats alone: their cursors prove it to the store when it has lost writes."""
        self._sightings: dict[Owner, Sighting] = {}
        self._holds: dict[PartitionId, _Hold] = {}
        self._turn = asyncio.Lock()
        self.progress = Progress(store, group)

    async def ownership(self, names: tuple[str, str, str]) -> list[dict[str, Any]]:
        ledger = await self._store.peek(self._group)
        if ledger is None:
            return []
        self._watch(ledger)
        members = {member.id: member for member in ledger.members}
        return [
            ownership_of(names, lease, ledger.cursor.history, row_of(lease.owner, members))
            for lease in ledger.leases
            if not lease.ended
        ]

    async def claim(self, claims: Sequence[Claim]) -> list[dict[str, Any]]:
        """Those that were granted, each as it is now."""
        async with self._turn:
            rows = {
                owner: await self._heartbeat(owner) for owner in dict.fromkeys(claim.owner for claim in claims) if owner
            }
            view = self._view if rows else await self._look()
            if view is None:
                return []
            sights = {owner: self._now(view, me) for owner, me in rows.items()}
            nobody = self._now(view, None)
            verdicts = [self._judge(sights.get(claim.owner, nobody), claim) for claim in claims]
            leases = await self._carry_out(verdicts)
            granted = [
                (claim, lease)
                for claim, lease in zip(claims, leases, strict=True)
                if lease is not None and claim.owner == (lease.owner.id if lease.owner is not None else "")
            ]
            lost = await self.progress.seal({claim.partition: lease.epoch for claim, lease in granted if claim.owner})
            granted = [(claim, lease) for claim, lease in granted if claim.partition not in lost]
            self._holds |= {
                claim.partition: _Hold(me.owner, lease.epoch, me.mark)
                for claim, lease in granted
                if (me := rows.get(claim.owner))
            }
            await self._let_go(view, granted)
            return [claimed(claim, lease, view.history, rows.get(claim.owner)) for claim, lease in granted]

    async def close(self) -> None:
        """Nobody claims here any more. What owners have stays theirs until it expires, if they know of it."""
        async with self._turn:
            with suppress(Transient):
                view = await self._look() if self._owners.known else None
                if view is not None:
                    for owner in filter(view.has, self._owners.known):
                        await self._leave(view, owner)

    # --- what is known
    async def _heartbeat(self, owner: str, *, leaving: bool = False) -> Member:
        known = self._view
        row = self._owners.row(owner, retiring=_is_retired(known, owner), leaving=leaving)
        try:
            ledger = await self._store.heartbeat(self._group, row, known.cursor if known is not None else None)
        except Superseded:
            self._owners.forget(owner)
            raise
        self._owners.answered(owner, ledger.me)
        self._view = merge(known, ledger)
        return ledger.me or row

    async def _look(self) -> View | None:
        ledger = await self._store.peek(self._group)
        return merge(None, ledger) if ledger is not None else None

    def _watch(self, ledger: Ledger) -> None:
        """A mark only grows: seen twice, it stood still all the time in between."""
        now_s, seen = self._clock.now(), self._sightings
        marks: dict[Owner, int | None] = {lease.owner: None for lease in ledger.leases if lease.owner is not None}
        marks.update((member.owner, member.mark) for member in ledger.members)
        self._sightings = {
            owner: seen[owner] if owner in seen and seen[owner].mark == mark else Sighting(mark, now_s, owner in seen)
            for owner, mark in marks.items()
        }

    def _now(self, view: View, me: Member | None) -> _Now:
        return _Now(view, me, gifts(view, me, self._sightings, self._clock.now()) if me is not None else {})

    # --- what is decided
    def _judge(self, now: _Now, claim: Claim) -> Lease | Change | None:
        """The lease: it is renewed as it stands. A change: the store shall decide. None: it is lost."""
        view, me = now.view, now.me
        lease, bar = view.leases.get(claim.partition), _bar(view, claim.partition, me)
        if claim.etag is None:
            free = Lease(partition=claim.partition)
            return _change(view, free, me, "claimed: it had no owner yet") if lease is None and not bar else None
        if lease is None or claim.etag[:2] != (view.history, lease.revision):
            return None
        is_own = lease.owner is not None and lease.owner == self._claimant(claim.partition, me)
        if bar:
            return _change(view, lease, None, f"released: {bar}") if is_own else None
        if is_own:
            return self._renewal(now, lease, claim.etag)
        return self._takeover(now, lease, claim.etag)

    def _claimant(self, partition: PartitionId, me: Member | None) -> Owner | None:
        """Who lets go of a partition does not say who it is: whoever claimed it here."""
        if me is not None:
            return me.owner
        hold = self._holds.get(partition)
        return hold.owner if hold is not None else None

    def _renewal(self, now: _Now, lease: Lease, etag: Etag) -> Lease | Change | None:
        """By its owner. The heartbeat has renewed the lease already, unless that stems from before a loss of writes."""
        hold = self._holds.get(lease.partition)
        if hold is not None and hold.owner == lease.owner and (etag.mark or 0) < hold.mark:
            return None
        if now.me is None:
            return _change(now.view, lease, None, "released: by its owner")
        if lease.history != now.view.history:
            return _change(now.view, lease, now.me, "taken again: writes were lost")
        heir = now.gifts.get(lease.partition)
        return lease if heir is None else _change(now.view, lease, heir, f"handed over: {heir.id} has too few")

    def _takeover(self, now: _Now, lease: Lease, etag: Etag) -> Change | None:
        """By somebody else than its owner, if it has one: only if that one has not renewed it since the etag."""
        if lease.owner is None:
            return _change(now.view, lease, now.me, "claimed: it was free")
        member = row_of(lease.owner, now.view.members)
        if member is not None and not is_official(member) and not self._is_dead(lease, etag):
            return None
        return _change(now.view, lease, now.me, f"{TAKEN_OVER}: from {lease.owner.id}", (lease.owner, etag.mark))

    def _is_dead(self, lease: Lease, etag: Etag) -> bool:
        seen = self._sightings.get(lease.owner) if lease.owner is not None else None
        return seen is not None and seen.mark == etag.mark and silence_s(seen, self._clock.now()) >= lease.ttl_s

    # --- what is done
    async def _carry_out(self, verdicts: Sequence[Lease | Change | None]) -> list[Lease | None]:
        """Of each verdict the lease as it makes it; None where it was refused."""
        changes = [verdict for verdict in verdicts if isinstance(verdict, Change)]
        outcomes = iter(await self._store.swap(self._group, changes) if changes else ())
        leases: list[Lease | None] = []
        for verdict in verdicts:
            outcome = next(outcomes) if isinstance(verdict, Change) else None
            if isinstance(verdict, Lease):
                leases.append(verdict)
            else:
                leases.append(outcome.lease if outcome is not None and outcome.ok else None)
            if outcome is not None and outcome.lease is not None and self._view is not None:
                self._view = with_lease(self._view, outcome.lease)
        return leases

    async def _let_go(self, view: View, granted: Sequence[tuple[Claim, Lease]]) -> None:
        """Who claimed here and has let go of the last one is gone, as far as can be told; if not, it claims again."""
        leaving: set[Owner] = set()
        for claim, lease in granted:
            hold = self._holds.pop(claim.partition, None) if not claim.owner else None
            if hold is not None and view.leases[claim.partition].owner == hold.owner:
                leaving.add(hold.owner)
            view = with_lease(view, lease)
        for owner in leaving:
            await self._leave(view, owner)

    async def _leave(self, view: View, owner: Owner) -> None:
        """What was handed over to it meanwhile, it does not know of: nobody else would let go of that."""
        leases = [lease for lease in view.leases.values() if lease.owner == owner]
        if any(self._is_held(lease) for lease in leases):
            return
        changes = [_change(view, lease, None, "released: its owner has left") for lease in leases]
        with suppress(Transient):  # a row that stays behind is forgotten in an hour
            await self._store.swap(self._group, changes)
            await self._heartbeat(owner.id, leaving=True)

    def _is_held(self, lease: Lease) -> bool:
        hold = self._holds.get(lease.partition)
        return hold is not None and (hold.owner, hold.epoch) == (lease.owner, lease.epoch)


def _bar(view: View, partition: PartitionId, me: Member | None) -> str:
    """Why nobody shall have this partition, or this owner none, by a person's wish; "" when there is no such wish."""
    wish = view.state.pause_of(partition)
    if wish is not None:
        return paused_by(wish)
    return f"{me.id} was asked to retire" if me is not None and str(me.owner) in view.state.retired else ""


def _is_retired(view: View | None, owner: str) -> bool:
    member = view.members.get(owner) if view is not None else None
    return view is not None and member is not None and str(member.owner) in view.state.retired


def _change(
    view: View, lease: Lease, me: Member | None, reason: str, still: tuple[Owner, int | None] | None = None
) -> Change:
    return Change(
        partition=lease.partition,
        revision=lease.revision,
        history=view.history,
        owner=me.owner if me is not None else None,
        epoch=view.epoch_after(lease),
        ttl_s=me.ttl_s if me is not None else 0.0,
        reason=reason,
        still=still,
        late=lease.late,
        ended=lease.ended,
    )
