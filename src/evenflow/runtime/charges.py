"""What services charge this instance for, and when that is news for those who look at the group from outside.

What is published changes the member's row, and then everybody gets the whole roster with its next heartbeat: so it is
told once in a while. Nothing is decided by it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from evenflow.model import CHARGES_HEARTBEATS
from evenflow.ports import Charged

if TYPE_CHECKING:
    from evenflow.model import Member
    from evenflow.ports import Source, Store


def charges_of(source: Source, store: Store) -> dict[str, float]:
    """What the services of both count, of each kind of operation, as exactly as they tell it."""
    found: Counter[str] = Counter()
    for part in (source, store):
        charged: object = part
        if isinstance(charged, Charged):
            found.update(charged.charges())
    return {kind: round(units, 2) for kind, units in found.items()}


class Bill:
    def __init__(self, source: Source, store: Store) -> None:
        self._source, self._store = source, store
        self._heartbeats = CHARGES_HEARTBEATS

    def news(self, me: Member) -> dict[str, float] | None:
        """Before a heartbeat: what is to be published from now on; None: what is published will do."""
        self._heartbeats += 1
        if self._heartbeats < CHARGES_HEARTBEATS:
            return None
        charges = charges_of(self._source, self._store)
        if charges == (me.charges or {}):
            return None
        self._heartbeats = 0
        return charges
