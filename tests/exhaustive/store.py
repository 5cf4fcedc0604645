"""The store of the model: the real MemoryStore, put together from a record, asked one thing, and taken apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evenflow.errors import LeaseLost, Superseded
from evenflow.stores.memory import MemoryStore
from evenflow.stores.stored_group import StoredGroup
from tests.exhaustive.instance import GROUP
from tests.exhaustive.records import PARTITION, Request, RoomState, StoreState

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from evenflow.model import Checkpoint


def effect(state: StoreState, request: Request) -> tuple[StoreState, Request]:
    """The store after a request, and the request with its answer."""
    store = thawed(state)
    answered = _answered(store, request)
    return frozen(store), replace(answered, effected=True)


def _answered(store: MemoryStore, request: Request) -> Request:
    if request.kind == "heartbeat":
        assert request.member is not None
        ledger = _asked(store.heartbeat(GROUP, request.member, request.cursor))
        if ledger is None:
            return replace(request, refused=True)
        me = None if ledger.me is None else replace(ledger.me, mark=0)
        members = tuple(replace(one, mark=0) if one.id == request.member.id else one for one in ledger.members)
        return replace(request, ledger=replace(ledger, me=me, members=members))
    if request.kind in ("claim", "pass"):
        assert request.change is not None
        return replace(request, outcome=_asked(store.swap(GROUP, [request.change]))[0])
    assert request.record is not None
    if request.kind == "seal":
        record, epoch = request.record, request.record.epoch
        sealed = _asked(store.seal(GROUP, PARTITION, epoch, record, unplanned=request.unplanned))
        return replace(request, refused=sealed is None, answer=sealed)
    return replace(request, refused=not _asked(store.commit(GROUP, [request.record]))[0].ok)


def deleted(state: StoreState) -> StoreState:
    store = thawed(state)
    _asked(store.delete(GROUP))
    return frozen(store)


def emptied(state: StoreState) -> StoreState:
    store = thawed(state)
    store.empty()
    return frozen(store)


def put_back(state: StoreState, to: StoreState) -> StoreState:
    store = thawed(state)
    store.restore(thawed(to).snapshot())
    return frozen(store)


def _asked(work: Coroutine[Any, Any, Any]) -> Any:
    """The memory store never waits, so one push runs it whole. None where it refuses."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    except (LeaseLost, Superseded):
        return None
    raise AssertionError("the memory store waited for something")


def thawed(state: StoreState) -> MemoryStore:
    store = MemoryStore(wall=lambda: 0.0, lineage="s")
    store._terms, store._history = state.terms, state.history
    store._floor, store._epoch_floors = state.floor, {GROUP: state.epoch_floor} if state.epoch_floor else {}
    if state.record is not None:
        store._records[GROUP] = {PARTITION: state.record}
    if (kept := state.room) is not None:
        store._stored[GROUP] = StoredGroup(
            first_revision=kept.born,
            revision=kept.revision,
            newest=kept.newest,
            began=kept.began,
            epoch_floor=kept.epoch_floor,
            departed=kept.departed,
            roster_revision=kept.roster_revision,
            state=kept.state,
            members={member.id: member for member in kept.members},
            leases={} if kept.lease is None else {PARTITION: kept.lease},
        )
    return store


def frozen(store: MemoryStore) -> StoreState:
    room, records = store._stored.get(GROUP), store._records.get(GROUP, {})
    record: Checkpoint | None = records.get(PARTITION)
    kept = (
        None
        if room is None
        else RoomState(
            born=room.first_revision,
            revision=room.revision,
            newest=room.newest,
            began=room.began,
            epoch_floor=room.epoch_floor,
            departed=room.departed,
            roster_revision=room.roster_revision,
            state=room.state,
            members=tuple(room.members.values()),
            lease=room.leases.get(PARTITION),
        )
    )
    return StoreState(
        room=kept,
        record=record,
        floor=store._floor,
        epoch_floor=store._epoch_floors.get(GROUP, 0),
        terms=store._terms,
        history=store._history,
    )
