"""Decides claims: azure-eventhub's ownership with etags, implemented with leases and heartbeats of members.

An owner renews by a heartbeat: one write for all its partitions, which invalidates all their older etags. A claim of
another owner's partition is conditional on the revision of the lease and the heartbeat counter of that owner, both in
the etag; the store checks them in one step. So of a renewal and a claim, or of two claims, exactly one wins.
azure-eventhub decides itself who is dead, and it also claims from live owners to balance. An instance of evenflow's
Processor hands over by itself, so its partitions are not taken before its counter stood still for its time-to-live.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.compat.checkpointstore.checkpoints import FencedCheckpoints
from evenflow.compat.checkpointstore.entries import claimed, ownership_of, row_of
from evenflow.compat.checkpointstore.handovers import handovers
from evenflow.compat.checkpointstore.owners import ClaimingOwners, is_official
from evenflow.core.decide import TAKEN_OVER, paused_by
from evenflow.core.liveness import Sighting, silence_s
from evenflow.core.view import View, merge, with_lease
from evenflow.errors import Superseded, Transient
from evenflow.model import Change, Lease

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.compat.checkpointstore.entries import Claim, Etag
    from evenflow.compat.checkpointstore.owners import ClientTiming, OpenStore
    from evenflow.model import Group, Ledger, Member, Owner, PartitionId
    from evenflow.ports import Clock


class _ClaimedHere(NamedTuple):
    """A partition that was claimed here, and the owner's heartbeat counter then: older etags are invalid."""

    owner: Owner
    epoch: int
    mark: int


class _ClaimContext(NamedTuple):
    """The state on which a claim is decided."""

    view: View
    me: Member | None
    """The member that claims, after its heartbeat; None for a release."""
    handovers: Mapping[PartitionId, Member]
    """The partitions that this member must hand over, with their new owners."""


class OwnershipClaims:
    """The ownership of one group's partitions."""

    def __init__(self, store: OpenStore, group: Group, timing: ClientTiming, clock: Clock) -> None:
        self._store, self._group, self._clock = store, group, clock
        self._owners = ClaimingOwners(timing, clock)
        self._view: View | None = None
        """Built from heartbeats only: their cursors show the store whether it has lost writes."""
        self._sightings: dict[Owner, Sighting] = {}
        self._claimed: dict[PartitionId, _ClaimedHere] = {}
        self._turn = asyncio.Lock()
        self.checkpoints = FencedCheckpoints(store, group)

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
        """The granted claims, each with its new etag."""
        async with self._turn:
            rows = {
                owner: await self._heartbeat(owner) for owner in dict.fromkeys(claim.owner for claim in claims) if owner
            }
            view = self._view if rows else await self._look()
            if view is None:
                return []
            contexts = {owner: self._context(view, me) for owner, me in rows.items()}
            release = self._context(view, None)
            verdicts = [self._judge(contexts.get(claim.owner, release), claim) for claim in claims]
            leases = await self._carry_out(verdicts)
            granted = [
                (claim, lease)
                for claim, lease in zip(claims, leases, strict=True)
                if lease is not None and claim.owner == (lease.owner.id if lease.owner is not None else "")
            ]
            epochs = {claim.partition: lease.epoch for claim, lease in granted if claim.owner}
            lost = await self.checkpoints.seal(epochs)
            granted = [(claim, lease) for claim, lease in granted if claim.partition not in lost]
            self._claimed |= {
                claim.partition: _ClaimedHere(me.owner, lease.epoch, me.mark)
                for claim, lease in granted
                if (me := rows.get(claim.owner))
            }
            await self._let_go(view, granted)
            return [claimed(claim, lease, view.history, rows.get(claim.owner)) for claim, lease in granted]

    async def close(self) -> None:
        """Stop claiming. Partitions that were claimed here stay with their owners until they expire."""
        async with self._turn:
            with suppress(Transient):
                view = await self._look() if self._owners.known else None
                if view is not None:
                    for owner in filter(view.has, self._owners.known):
                        await self._leave(view, owner)

    # --- reading the group
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
        """Record the heartbeat counters. One that is the same twice has not moved in between, as it only increases."""
        now_s, seen = self._clock.now(), self._sightings
        marks: dict[Owner, int | None] = {lease.owner: None for lease in ledger.leases if lease.owner is not None}
        marks.update((member.owner, member.mark) for member in ledger.members)
        self._sightings = {
            owner: seen[owner] if owner in seen and seen[owner].mark == mark else Sighting(mark, now_s, owner in seen)
            for owner, mark in marks.items()
        }

    def _context(self, view: View, me: Member | None) -> _ClaimContext:
        if me is None:
            return _ClaimContext(view, None, {})
        return _ClaimContext(view, me, handovers(view, me, self._sightings, self._clock.now()))

    # --- decisions
    def _judge(self, context: _ClaimContext, claim: Claim) -> Lease | Change | None:
        """A lease that is renewed as it is; a change for the store to accept or reject; None for a lost claim."""
        view, me = context.view, context.me
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
            return self._renewal(context, lease, claim.etag)
        return self._takeover(context, lease, claim.etag)

    def _claimant(self, partition: PartitionId, me: Member | None) -> Owner | None:
        """The owner of the claim. A release does not name its owner: it is the one that claimed the partition here."""
        if me is not None:
            return me.owner
        claimed_here = self._claimed.get(partition)
        return claimed_here.owner if claimed_here is not None else None

    def _renewal(self, context: _ClaimContext, lease: Lease, etag: Etag) -> Lease | Change | None:
        """A claim by the owner. Its heartbeat renewed the lease, unless the lease is older than a loss of writes."""
        before = self._claimed.get(lease.partition)
        if before is not None and before.owner == lease.owner and (etag.mark or 0) < before.mark:
            return None
        if context.me is None:
            return _change(context.view, lease, None, "released: by its owner")
        if lease.history != context.view.history:
            return _change(context.view, lease, context.me, "taken again: writes were lost")
        to = context.handovers.get(lease.partition)
        return lease if to is None else _change(context.view, lease, to, f"handed over: {to.id} has too few")

    def _takeover(self, context: _ClaimContext, lease: Lease, etag: Etag) -> Change | None:
        """A claim of a free partition, or of another owner's: only if that one has not renewed it since the etag."""
        if lease.owner is None:
            return _change(context.view, lease, context.me, "claimed: it was free")
        member = row_of(lease.owner, context.view.members)
        if member is not None and not is_official(member) and not self._is_dead(lease, etag):
            return None
        reason = f"{TAKEN_OVER}: from {lease.owner.id}"
        return _change(context.view, lease, context.me, reason, (lease.owner, etag.mark))

    def _is_dead(self, lease: Lease, etag: Etag) -> bool:
        seen = self._sightings.get(lease.owner) if lease.owner is not None else None
        return seen is not None and seen.mark == etag.mark and silence_s(seen, self._clock.now()) >= lease.ttl_s

    # --- writes
    async def _carry_out(self, verdicts: Sequence[Lease | Change | None]) -> list[Lease | None]:
        """The resulting lease of each verdict; None if the claim was lost or the store rejected it."""
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
        """Remove an owner that has released its last partition: it has probably stopped. If not, it claims again."""
        leaving: set[Owner] = set()
        for claim, lease in granted:
            released = self._claimed.pop(claim.partition, None) if not claim.owner else None
            if released is not None and view.leases[claim.partition].owner == released.owner:
                leaving.add(released.owner)
            view = with_lease(view, lease)
        for owner in leaving:
            await self._leave(view, owner)

    async def _leave(self, view: View, owner: Owner) -> None:
        """Release partitions that were handed over to it and that it never learned of, and remove its row."""
        leases = [lease for lease in view.leases.values() if lease.owner == owner]
        if any(self._is_claimed_here(lease) for lease in leases):
            return
        changes = [_change(view, lease, None, "released: its owner has left") for lease in leases]
        with suppress(Transient):  # a row that remains is removed after an hour
            await self._store.swap(self._group, changes)
            await self._heartbeat(owner.id, leaving=True)

    def _is_claimed_here(self, lease: Lease) -> bool:
        here = self._claimed.get(lease.partition)
        return here is not None and (here.owner, here.epoch) == (lease.owner, lease.epoch)


def _bar(view: View, partition: PartitionId, me: Member | None) -> str:
    """The operator request that forbids the claim, a pause of the partition or a retirement of the owner; else ""."""
    request = view.state.pause_of(partition)
    if request is not None:
        return paused_by(request)
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
