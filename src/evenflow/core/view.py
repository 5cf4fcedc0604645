"""What an instance knows of its group: ledgers, which tell only what changed, merged into one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from evenflow.model import next_epoch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model import Cursor, GroupState, Lease, Ledger, Member, Owner, PartitionId


class View(Struct, frozen=True):
    cursor: Cursor
    members: Mapping[str, Member]
    leases: Mapping[PartitionId, Lease]
    state: GroupState
    began: int = 0
    """The store's history in which the group began."""
    epoch_floor: int = 0
    """No lease has an epoch at or below it: a deleted group of this name may have had it."""

    @property
    def history(self) -> int:
        return self.cursor.history

    def has(self, owner: Owner) -> bool:
        """Whether this very incarnation has a row, so that its heartbeats can still come."""
        member = self.members.get(owner.id)
        return member is not None and member.incarnation == owner.incarnation

    def epoch_after(self, lease: Lease) -> int:
        """For the next owner of this lease."""
        return next_epoch(max(lease.epoch, self.epoch_floor), self.history)


def merge(view: View | None, ledger: Ledger) -> View:
    """The view after a ledger. A lease is never replaced by an older state of itself.

    A heartbeat that took effect before one of our own swaps may be answered after it.
    """
    same_history = view is not None and view.history == ledger.cursor.history
    leases: Mapping[PartitionId, Lease] = view.leases if view is not None and not ledger.whole else {}
    if ledger.leases or ledger.whole:
        leases = dict(leases)
        for lease in ledger.leases:
            known = view.leases.get(lease.partition) if view is not None and same_history else None
            leases[lease.partition] = known if known is not None and known.revision > lease.revision else lease
    members = view.members if view is not None else {}
    if ledger.roster:
        members = {member.id: member for member in ledger.members}
    return View(ledger.cursor, members, leases, ledger.state, ledger.began, ledger.epoch_floor)


def with_lease(view: View, lease: Lease) -> View:
    """The view after an answered swap of our own."""
    known = view.leases.get(lease.partition)
    if lease.history != view.history or (known is not None and known.revision >= lease.revision):
        return view
    return structs.replace(view, leases={**view.leases, lease.partition: lease})
