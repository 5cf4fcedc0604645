"""Two instances, one partition, one store: every step that the real system can interleave is one step here.

A request is sent, takes effect, is answered, is given up on, and may still take effect after that. A handler call
begins and ends. Time passes at any moment, so whoever takes no step is stalled. Instances crash, start again under
their id, and retire. The group is deleted, the store is emptied, or put back to an earlier state.

Real: the store (`store.py`) and what an instance decides and believes (`instance.py`). Modelled: the pump and the
committer (in here), the network, and time. What the model takes for granted, so that there are fewer interleavings:

- An instance sends at most one heartbeat a tick, and one more each time it is woken.
- A pump sends a seal, a commit and a handoff as soon as it may: what is on its way may take effect much later.
- Two owners are too many only if neither is passing the partition on, and both may begin calls by their deadlines.
- Newcomers and seals to an emptied store wait until somebody has told the store of its past. Before that, epochs may be
  given again, and the end of the log be taken for the start: that is allowed (`evenflow.testing.simulated.losses`).
- After a loss, a checkpoint that is restored may take back what a late commit wrote since: as far back as the store
  stood then. Who restores and who committed are two: the one does not know what the other has handled. In an emptied
  store that happens only where the group starts at the end of the log, for there they may not wait for each other.
- Nobody has to get anywhere: a world in which nothing happens any more breaks nothing. That is what `tests/sim` is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evenflow.model import Checkpoint, Member
from tests.exhaustive import store as stores
from tests.exhaustive.actor import Actor
from tests.exhaustive.instance import Body, settings_of
from tests.exhaustive.records import InstanceState, Interned, Request, StoreState
from tests.exhaustive.renumber import Renumbering
from tests.exhaustive.search import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = -1
CAP_S = 12
"""So long ago is as good as any longer time."""


def _round(name: str, *more: str) -> tuple[str, ...]:
    return f"{name} sends a heartbeat", f"{name}'s heartbeat takes", f"{name}'s heartbeat is", *more


_CLAIM = ("A's claim of epoch 1 for A#1 takes", "A's claim of epoch 1 for A#1 is")
_CLAIMED = _round("A", *_CLAIM)
_SEALED = ("A's seal", "A's seal")
_HANDLED = ("A begins", "the call of A", "A's commit", "A's commit")
_ACQUAINTED = (*_round("B"), "time", *_round("A"), *_round("B"))
BEGINNINGS = {
    "nothing": (),
    "claimed": (*_CLAIMED, *_round("B")),
    "settled": (*_CLAIMED, *_SEALED, *_ACQUAINTED),
    "handled": (*_CLAIMED, *_SEALED, *_HANDLED, *_ACQUAINTED),
}
"""How a world begins: nobody was ever there; A has claimed the partition, and its seal is under way; A has the
partition, and each has seen the other heartbeat; and A has handled an event."""


class Bounds(Struct, frozen=True, kw_only=True):
    """What a world has, and how often something may go wrong in it."""

    ticks: int
    ttls: tuple[int, int] = (3, 3)
    start: str = "earliest"
    events: int = 1
    """In the log when the world begins."""
    appends: int = 0
    slow: int = 0
    """How many requests may be under way, with a sender that waits, while time passes."""
    given_up: int = 0
    crashes: int = 0
    starts: int = 0
    """How often a process starts under the id of one that is gone."""
    retires: int = 0
    deletes: int = 0
    empties: int = 0
    losses: int = 0
    copies: int = 0
    """How often the store's state is copied, for the loss of all since then. Without any, the last write is lost."""
    handoff: bool = False
    """B is to have the partition as soon as it is there."""
    twins: bool = False
    """B runs under the id of A."""
    begins: str = "settled"
    """One of BEGINNINGS."""


class Left(NamedTuple):
    """What may still happen."""

    appends: int
    slow: int
    given_up: int
    crashes: int
    starts: int
    retires: int
    deletes: int
    empties: int
    losses: int
    copies: int


class Seen(NamedTuple):
    """What an observer knows who sees everything."""

    start: int = NOBODY
    """Where the group began."""
    handled: int = 0
    """A bit for each event."""
    given: tuple[tuple[int, str], ...] = ()
    """Epochs, and to whom."""
    heard: tuple[int, int] = (-CAP_S, -CAP_S)
    """When a heartbeat of each instance took effect last."""
    blind: bool = False
    """The store was emptied, and nobody has told it so."""
    kept: int = NOBODY
    """Where the checkpoint stood when the store lost it."""


class World(NamedTuple):
    store: int
    replica: int
    instances: tuple[int, int]
    network: tuple[int, ...]
    seen: Seen
    left: Left
    end: int
    """Of the log."""


Choice: TypeAlias = "tuple[str, Callable[..., World], tuple[int, ...]]"
"""A step that may be made: what it is called, and how it is made."""


class Protocol:
    """The model that the search walks through."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.attempted = ""
        self.stores: Interned[StoreState] = Interned()
        self.instances: Interned[InstanceState] = Interned()
        self.requests: Interned[Request] = Interned()
        self._settings = [settings_of(ttl, max(bounds.ttls), bounds.start) for ttl in bounds.ttls]
        self._effects: dict[tuple[int, int], tuple[int, int]] = {}
        self._acts: dict[tuple[int, int, str, int, int], tuple[int, tuple[int, ...]]] = {}
        self._aged_instances: dict[int, int] = {}
        self._aged_requests: dict[int, int] = {}
        self._begins: dict[tuple[int, int], bool] = {}
        self._may_lose = bool(bounds.empties or bounds.losses)
        self._renumbering = None if self._may_lose else Renumbering(self.stores, self.instances, self.requests)

    def initial(self) -> World:
        return self._walked(self._nothing(), BEGINNINGS[self.bounds.begins])

    def _walked(self, world: World, way: tuple[str, ...]) -> World:
        """After the steps whose names begin so."""
        for wanted in way:
            after = self.tick(world) if wanted == "time" else None
            for name, made in self.steps(world):
                if after is None and name.startswith(wanted):
                    after = made
            assert after is not None, f"no step {wanted!r} among {[name for name, _ in self.steps(world)]}"
            world = after
        return world

    def _nothing(self) -> World:
        b = self.bounds
        left = Left(
            b.appends, b.slow, b.given_up, b.crashes, b.starts, b.retires, b.deletes, b.empties, b.losses, b.copies
        )
        instances = (self._newcomer(0, 1), self._newcomer(1, 1))
        return World(self.stores.number(StoreState()), NOBODY, instances, (), Seen(), left, b.events)

    def _newcomer(self, slot: int, start: int) -> int:
        name = "A" if self.bounds.twins else "AB"[slot]
        least = 1 if self.bounds.handoff and slot else None
        nonce = f"{'AB'[slot]}{start}"
        me = Member(id=name, nonce=nonce, ttl_s=self.bounds.ttls[slot], heartbeat_s=1.0, min_partitions=least)
        return self.instances.number(InstanceState(me))

    # --- time
    def tick(self, world: World) -> World | None:
        waiting = sum(self.requests[number].live for number in world.network)
        if waiting > world.left.slow:
            return None
        a, b = (self._aged(number) for number in world.instances)
        network = tuple(sorted(self._aged_request(number) for number in world.network))
        a_heard, b_heard = (max(at - 1, -max(self.bounds.ttls)) for at in world.seen.heard)
        seen = world.seen._replace(heard=(a_heard, b_heard))
        left = world.left._replace(slow=world.left.slow - waiting)
        return self._tidy(world._replace(instances=(a, b), network=network, seen=seen, left=left))

    def _aged(self, number: int) -> int:
        if number == NOBODY:
            return NOBODY
        if number not in self._aged_instances:
            older = _older(self.instances[number])
            self._aged_instances[number] = self.instances.number(self._plain(older))
        return self._aged_instances[number]

    def _plain(self, state: InstanceState) -> InstanceState:
        """The same without what makes no difference any more."""
        patience_s = state.me.ttl_s - 1
        if -state.heartbeat_sent_s > patience_s:
            # Its heartbeats were interrupted: the next answer begins its watch anew.
            state = replace(state, sightings=None, heartbeat_sent_s=-patience_s - 1)
        if self._may_lose:
            return state
        hold, remembered = state.hold, state.remembered
        if hold is not None and hold.sealed_s != 0:
            hold = replace(hold, sealed_s=0)
        if remembered is not None and not remembered.due:
            remembered = None  # the store has it, and keeps it
        return replace(
            state, hold=hold, remembered=remembered, tenure=None, lineage="", memory_sent_s=0, history_since_s=0
        )

    def _aged_request(self, number: int) -> int:
        if number not in self._aged_requests:
            request = self.requests[number]
            if request.live:
                request = replace(
                    request, sent_s=request.sent_s - 1, patience_from_s=max(request.patience_from_s - 1, -CAP_S)
                )
            self._aged_requests[number] = self.requests.number(request)
        return self._aged_requests[number]

    # --- steps
    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for name, make, args in self._choices(world):
            self.attempted = name
            yield name, self._tidy(make(world, *args))

    def _choices(self, world: World) -> Iterator[Choice]:
        left = world.left
        for number in dict.fromkeys(world.network):
            yield from self._request_choices(world, number)
        for slot in (0, 1):
            yield from self._instance_choices(world, slot)
        if left.appends:
            yield "an event is appended", self._append, ()
        if left.deletes and self.stores[world.store].room is not None:
            yield "the group is deleted", self._delete, ()
        if left.empties and self.stores[world.store].room is not None:
            yield "the store is emptied", self._empty, ()
        if left.copies and self.stores[world.store].room is not None:
            yield "the store's state is copied", self._copy, ()
        if left.losses and world.replica != NOBODY:
            yield "the store is put back to the copy", self._put_back, ()

    def _request_choices(self, world: World, number: int) -> Iterator[Choice]:
        request = self.requests[number]
        said = _said(request)
        waits = world.seen.blind and (
            request.kind == "seal" or (request.kind == "heartbeat" and request.cursor is None)
        )
        if not request.effected and not waits:
            yield f"{said} takes effect{'' if request.live else ', late'}", self._effect, (number,)
        if request.live:
            if request.effected:
                yield f"{said} is answered", self._answer, (number,)
            if world.left.given_up:
                yield f"{said} is given up on", self._give_up, (number,)

    def _instance_choices(self, world: World, slot: int) -> Iterator[Choice]:
        name, number = "AB"[slot], world.instances[slot]
        if number == NOBODY:
            if world.left.starts:
                yield f"{name} starts again", self._start, (slot,)
            return
        me = self.instances[number]
        if (not me.beaten or me.woken) and not me.heartbeats:
            yield f"{name} sends a heartbeat", self._heartbeat, (slot,)
        if (hold := me.hold) is not None:
            if hold.calling:
                yield f"the call of {name} ends", self._end_call, (slot,)
            elif hold.pumping and hold.sealed and hold.done < world.end and self._may_begin(slot, number):
                yield f"{name} begins to handle event {hold.done} in epoch {hold.epoch}", self._begin_call, (slot,)
            if hold.deadline_s <= 0 and not hold.over:
                yield f"{name} stops itself", self._fence, (slot,)
        if world.left.crashes:
            yield f"{name} crashes", self._crash, (slot,)
        if world.left.retires and not me.me.retiring and me.view is not None:
            yield f"{name} retires", self._retire, (slot,)

    def _may_begin(self, slot: int, number: int) -> bool:
        known = self._begins.get((slot, number))
        if known is None:
            hold = Body(self.instances[number], self._settings[slot]).hold
            known = self._begins[slot, number] = hold is not None and hold.may_begin(0.0)
        return known

    # --- the world's
    def _append(self, world: World) -> World:
        return world._replace(end=world.end + 1, left=world.left._replace(appends=world.left.appends - 1))

    def _delete(self, world: World) -> World:
        store = self.stores.number(stores.deleted(self.stores[world.store]))
        seen = world.seen._replace(start=NOBODY, handled=0)
        left = world.left._replace(deletes=world.left.deletes - 1)
        return world._replace(store=store, replica=NOBODY, seen=seen, left=left)

    def _empty(self, world: World) -> World:
        store = self.stores.number(stores.emptied(self.stores[world.store]))
        left = world.left._replace(empties=world.left.empties - 1)
        seen = world.seen._replace(blind=True, kept=CAP_S if self.bounds.start == "earliest" else self._stands(world))
        return world._replace(store=store, replica=NOBODY, seen=seen, left=left)

    def _copy(self, world: World) -> World:
        return world._replace(replica=world.store, left=world.left._replace(copies=world.left.copies - 1))

    def _put_back(self, world: World) -> World:
        store = self.stores.number(stores.put_back(self.stores[world.store], self.stores[world.replica]))
        seen = world.seen._replace(kept=self._stands(world))
        left = world.left._replace(losses=world.left.losses - 1, copies=0)
        return world._replace(store=store, replica=NOBODY, seen=seen, left=left)

    def _stands(self, world: World) -> int:
        record = self.stores[world.store].record
        return NOBODY if record is None else int(record.position.offset)

    # --- requests
    def _effect(self, world: World, number: int) -> World:
        known = self._effects.get((world.store, number))
        if known is None:
            state, answered = stores.effect(self.stores[world.store], self.requests[number])
            known = self._effects[world.store, number] = self.stores.number(state), self.requests.number(answered)
        request = self.requests[known[1]]
        seen = self._observe(world, self.stores[world.store], self.stores[known[0]], request)
        answer = (known[1],) if request.live else ()
        network = tuple(sorted((*_without(world.network, number), *answer)))
        replica = world.store if world.left.losses and not self.bounds.copies else world.replica
        if replica != NOBODY and self.stores[replica].room is None:
            replica = NOBODY  # the group itself is never lost
        return world._replace(store=known[0], replica=replica, network=network, seen=seen)

    def _answer(self, world: World, number: int) -> World:
        request = self.requests[number]
        world = world._replace(network=_without(world.network, number))
        if request.kind == "heartbeat" and (
            request.refused or (request.ledger is not None and request.ledger.me is None)
        ):
            return self._gone(world, request.slot)  # superseded; or it has left
        return self._act(world, request.slot, f"answer:{request.kind}", number)

    def _give_up(self, world: World, number: int) -> World:
        request = self.requests[number]
        network = _without(world.network, number)
        if not request.effected:
            network = tuple(sorted((*network, self.requests.number(_orphaned(request)))))
        left = world.left._replace(given_up=world.left.given_up - 1)
        world = world._replace(network=network, left=left)
        return self._act(world, request.slot, f"give_up:{request.kind}", number)

    # --- instances
    def _start(self, world: World, slot: int) -> World:
        newcomer = self._newcomer(slot, 1 + self.bounds.starts - world.left.starts + 1)
        left = world.left._replace(starts=world.left.starts - 1)
        return world._replace(instances=_placed(world.instances, slot, newcomer), left=left)

    def _crash(self, world: World, slot: int) -> World:
        return self._gone(world._replace(left=world.left._replace(crashes=world.left.crashes - 1)), slot)

    def _gone(self, world: World, slot: int) -> World:
        network = []
        for number in world.network:
            request = self.requests[number]
            if not request.live or request.slot != slot:
                network.append(number)
            elif not request.effected:
                network.append(self.requests.number(_orphaned(request)))
        instances = _placed(world.instances, slot, NOBODY)
        return world._replace(instances=instances, network=tuple(sorted(network)))

    def _heartbeat(self, world: World, slot: int) -> World:
        return self._act(world, slot, "heartbeat")

    def _begin_call(self, world: World, slot: int) -> World:
        self._observe_call(world, slot)
        return self._act(world, slot, "begin")

    def _end_call(self, world: World, slot: int) -> World:
        hold = self.instances[world.instances[slot]].hold
        assert hold is not None
        if hold.epoch > self.stores[world.store].epoch_floor:
            world = world._replace(seen=world.seen._replace(handled=world.seen.handled | 1 << hold.done))
        return self._act(world, slot, "end")

    def _fence(self, world: World, slot: int) -> World:
        return self._act(world, slot, "fence")

    def _retire(self, world: World, slot: int) -> World:
        return self._act(world._replace(left=world.left._replace(retires=world.left.retires - 1)), slot, "retire")

    def _act(self, world: World, slot: int, what: str, number: int = NOBODY) -> World:
        """What an instance does in one step of its own, with all that it sends at once."""
        key = slot, world.instances[slot], what, number, world.end if self.bounds.start == "latest" else 0
        known = self._acts.get(key)
        if known is None:
            request = None if number == NOBODY else self.requests[number]
            before = self.instances[world.instances[slot]]
            actor = Actor(slot, before, self._settings[slot], world.end)
            actor.act(what, request)
            after = self.instances.number(self._plain(actor.after()))
            known = self._acts[key] = after, tuple(self.requests.number(one) for one in actor.sent)
        network = tuple(sorted((*world.network, *known[1]))) if known[1] else world.network
        return world._replace(instances=_placed(world.instances, slot, known[0]), network=network)

    # --- what must hold
    def _observe(self, world: World, before: StoreState, after: StoreState, request: Request) -> Seen:
        seen = world.seen
        if request.kind == "heartbeat" and not request.refused:
            if request.live:
                seen = seen._replace(heard=_placed(seen.heard, request.slot, 0))
            if seen.blind and request.cursor is not None:
                seen = seen._replace(blind=False)
        lease = after.room.lease if after.room is not None else None
        if request.outcome is not None and request.outcome.ok and lease is not None:
            highest = seen.given[-1][0] if seen.given else 0
            if lease.epoch <= highest:
                raise Violation(f"epoch {lease.epoch} is given, although {highest} was given before")
            seen = seen._replace(given=(*seen.given, (lease.epoch, str(lease.owner))))
        if after.record is not None and after.record != before.record:
            self._observe_record(seen, before.record, after.record, is_restored=request.kind in ("restore", "remember"))
            if seen.start == NOBODY:
                seen = seen._replace(start=int(after.record.position.offset))
        return seen

    def _observe_record(self, seen: Seen, before: Checkpoint | None, after: Checkpoint, *, is_restored: bool) -> None:
        new = int(after.position.offset)
        if before is not None and new < int(before.position.offset) and not (is_restored and new >= seen.kept):
            # What a late commit wrote after a loss gives way to what the owners after it remember.
            raise Violation(f"the checkpoint goes back from {before.position} to {new}")
        if before is not None and after.epoch < before.epoch:
            raise Violation(f"epoch {after.epoch} takes the record back from {before.epoch}")
        start = new if seen.start == NOBODY else seen.start
        if skipped := [event for event in range(start, new) if not seen.handled >> event & 1]:
            raise Violation(f"the checkpoint passes event {skipped[0]}, which nobody has handled")

    def _observe_call(self, world: World, slot: int) -> None:
        me, other = (self._state(world.instances[one]) for one in (slot, 1 - slot))
        assert me is not None
        assert me.hold is not None
        given = dict(world.seen.given)
        if given.get(me.hold.epoch) != str(me.me.owner):
            raise Violation(f"{me.me.owner} handles in epoch {me.hold.epoch}, which is {given.get(me.hold.epoch)}'s")
        if world.seen.heard[slot] + self.bounds.ttls[slot] - 1 <= 0:
            raise Violation(f"{me.me.owner} begins a call although the store has not heard of it for too long")
        floor = self.stores[world.store].epoch_floor
        theirs = other.hold if other is not None else None
        if theirs is None or theirs.over or theirs.passing or theirs.epoch <= floor or me.hold.epoch <= floor:
            return
        if theirs.deadline_s > 0:
            raise Violation(f"both instances may handle the partition, in epochs {me.hold.epoch} and {theirs.epoch}")

    def reached(self) -> set[str]:
        """What has happened in some state or other, so that it is known that there is something to check."""
        names = {f"{self.requests[number].kind}, late" for _, number in self._effects if not self.requests[number].live}
        for request in map(self.requests.__getitem__, range(len(self.requests))):
            if request.effected:
                names.add(f"{request.kind}, refused" if request.refused else request.kind)
            if request.outcome is not None and request.change is not None:
                names.add(request.change.reason if request.outcome.ok else f"{request.kind}: {request.outcome.why}")
        return names

    def _state(self, number: int) -> InstanceState | None:
        return None if number == NOBODY else self.instances[number]

    def _tidy(self, world: World) -> World:
        return world if self._renumbering is None else self._renumbering.tidied(world)


def _older(state: InstanceState) -> InstanceState:
    """After time has passed. What was long ago is as good as any longer time."""
    hold, tenure = state.hold, state.tenure
    if hold is not None:
        hold = replace(hold, deadline_s=max(hold.deadline_s - 1, 0), sealed_s=_ago(hold.sealed_s))
    if tenure is not None:
        tenure = replace(tenure, deadline_s=max(tenure.deadline_s - 1, 0), sealed_s=_ago(tenure.sealed_s))
    sightings = state.sightings
    if sightings is not None:
        sightings = tuple((owner, seen._replace(since_s=_ago(seen.since_s))) for owner, seen in sightings)
    return replace(
        state,
        sightings=sightings,
        heartbeat_sent_s=_ago(state.heartbeat_sent_s),
        history_since_s=_ago(state.history_since_s),
        memory_sent_s=_ago(state.memory_sent_s),
        hold=hold,
        tenure=tenure,
        beaten=False,
    )


def _ago(at_s: float) -> float:
    return at_s - 1 if at_s > -CAP_S else at_s


def _placed(pair: tuple[int, int], slot: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if slot == 0 else (pair[0], value)


def _without(network: tuple[int, ...], number: int) -> tuple[int, ...]:
    at = network.index(number)
    return network[:at] + network[at + 1 :]


def _orphaned(request: Request) -> Request:
    """Nobody waits for its answer, so when it was sent does not matter any more."""
    return replace(request, live=False, sent_s=0.0, patience_from_s=0.0)


def _said(request: Request) -> str:
    """For people."""
    what = request.kind
    if request.change is not None:
        what += f" of epoch {request.change.epoch} for {request.change.owner}"
    elif request.record is not None:
        what += f" of {request.record.position} under epoch {request.record.epoch}"
    elif request.member is not None and request.member.leaving:
        what = "last heartbeat"
    return f"{'AB'[request.slot]}'s {what}"
