"""Revisions and marks of a store are only compared, so worlds that differ in nothing else are the same: the numbers in
use become 1, 2, 3 and so on, in their order. Not where a store may go back: then distances count."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.core.view import View
    from evenflow.model import Cursor, Lease, Ledger
    from tests.exhaustive.model import World
    from tests.exhaustive.records import InstanceState, Interned, Request, StoreState

T = TypeVar("T")
New = dict[int, int]


class Renumbering:
    def __init__(
        self, stores: Interned[StoreState], instances: Interned[InstanceState], requests: Interned[Request]
    ) -> None:
        self._stores = _Kind(stores, _store)
        self._instances = _Kind(instances, _instance)
        self._requests = _Kind(requests, _request)

    def tidied(self, world: World) -> World:
        used = set(self._stores.used(world.store))
        for number in world.instances:
            if number >= 0:
                used |= self._instances.used(number)
        for number in world.network:
            used |= self._requests.used(number)
        if not used or len(used) == max(used):
            return world
        new = {old: count for count, old in enumerate(sorted(used), 1)}
        a, b = (number if number < 0 else self._instances.tidied(number, new) for number in world.instances)
        network = tuple(sorted(self._requests.tidied(number, new) for number in world.network))
        return world._replace(store=self._stores.tidied(world.store, new), instances=(a, b), network=network)


class _Kind:
    """Records of one kind: which numbers each of them uses, and what it is with others."""

    def __init__(self, records: Interned[T], walk: Callable[[T, Callable[[int], int]], T]) -> None:  # type: ignore[type-var]
        self._records, self._walk = records, walk
        self._used: dict[int, frozenset[int]] = {}
        self._tidied: dict[tuple[int, tuple[int, ...]], int] = {}

    def used(self, number: int) -> frozenset[int]:
        if number not in self._used:
            found: set[int] = set()

            def note(old: int) -> int:
                if old > 0:
                    found.add(old)
                return old

            self._walk(self._records[number], note)
            self._used[number] = frozenset(found)
        return self._used[number]

    def tidied(self, number: int, new: New) -> int:
        used = sorted(self.used(number))
        key = number, tuple(new[old] for old in used)
        if key not in self._tidied:
            record = self._walk(self._records[number], lambda old: new[old] if old > 0 else old)
            self._tidied[key] = self._records.number(record)
        return self._tidied[key]


def _store(state: StoreState, of: Callable[[int], int]) -> StoreState:
    room = state.room
    if room is not None:
        room = replace(
            room,
            born=of(room.born),
            revision=of(room.revision),
            roster_revision=of(room.roster_revision),
            members=tuple(replace(member, mark=of(member.mark)) for member in room.members),
            lease=_lease(room.lease, of),
        )
    return replace(state, room=room, floor=(of(state.floor[0]), state.floor[1]))


def _instance(state: InstanceState, of: Callable[[int], int]) -> InstanceState:
    sightings = state.sightings
    if sightings is not None:
        sightings = tuple(
            (owner, seen if seen.mark is None else seen._replace(mark=of(seen.mark))) for owner, seen in sightings
        )
    return replace(state, view=_view(state.view, of), sightings=sightings)


def _request(request: Request, of: Callable[[int], int]) -> Request:
    change, outcome = request.change, request.outcome
    if change is not None:
        still = change.still
        if still is not None and still[1] is not None:
            still = still[0], of(still[1])
        change = replace(change, revision=of(change.revision), still=still)
    if outcome is not None:
        outcome = replace(outcome, lease=_lease(outcome.lease, of))
    cursor, ledger = _cursor(request.cursor, of), _ledger(request.ledger, of)
    return replace(request, cursor=cursor, change=change, ledger=ledger, outcome=outcome)


def _view(view: View | None, of: Callable[[int], int]) -> View | None:
    if view is None:
        return None
    leases = {name: replace(lease, revision=of(lease.revision)) for name, lease in view.leases.items()}
    return replace(view, cursor=replace(view.cursor, revision=of(view.cursor.revision)), leases=leases)


def _ledger(ledger: Ledger | None, of: Callable[[int], int]) -> Ledger | None:
    if ledger is None:
        return None
    leases = tuple(replace(lease, revision=of(lease.revision)) for lease in ledger.leases)
    members = tuple(replace(member, mark=of(member.mark)) for member in ledger.members)
    cursor = replace(ledger.cursor, revision=of(ledger.cursor.revision))
    return replace(ledger, cursor=cursor, leases=leases, members=members)


def _lease(lease: Lease | None, of: Callable[[int], int]) -> Lease | None:
    return None if lease is None else replace(lease, revision=of(lease.revision))


def _cursor(cursor: Cursor | None, of: Callable[[int], int]) -> Cursor | None:
    return None if cursor is None else replace(cursor, revision=of(cursor.revision))
