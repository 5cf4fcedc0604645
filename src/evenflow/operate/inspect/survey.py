"""Reads everything about a group from outside, from its store and its source, without joining it.

A failing partition or an unreachable source does not hide the rest: what could not be read is missing, and `problems`
says why.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evenflow.core.lineage import children_told, left_at, open_ones, parents_of, unended
from evenflow.errors import EvenflowError, Misconfigured, NoSuchPartition, SourceUnavailable
from evenflow.model import Group
from evenflow.operate.inspect.lag import lag_of
from evenflow.operate.inspect.members import MemberContext, MemberRow, member_rows
from evenflow.operate.inspect.ownership import PartitionContext, PartitionRow, partition_rows
from evenflow.ports import (
    Conforming,
    Conventional,
    Dated,
    Delaying,
    Documented,
    Merging,
    Operable,
    Shared,
    Steerable,
    Vanishing,
)
from evenflow.text import count_of, listed, natural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from evenflow.model import (
        Action,
        Bounds,
        Checkpoint,
        Delay,
        Identity,
        Lease,
        Ledger,
        Member,
        Move,
        Owner,
        Partition,
        PartitionId,
        Position,
    )
    from evenflow.ports import Source, Store


STEPS_READ = 4
"""A command may record its steps as further actions: to find N commands, this many times N actions are read."""


class Survey(Struct, frozen=True, kw_only=True):
    group: Group
    ledger: Ledger | None
    checkpoints: Sequence[Checkpoint]
    moves: Sequence[Move]
    partitions: Sequence[PartitionId]
    bounds: Mapping[PartitionId, Bounds]
    problems: tuple[str, ...] = ()
    actions: Sequence[Action] = ()
    """What operators did to the group, newest first."""
    waiting: Mapping[PartitionId, datetime] = {}
    """When the oldest event after each checkpoint was enqueued, where the source knows."""
    dead_letters: int | None = None
    """How many of its dead letters are open; None: not counted."""
    parents: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Of partitions that come from splits and merges, as far as the source knows."""
    starts: Mapping[PartitionId, Position] = {}
    """Where children start that have no checkpoint yet, from the checkpoints of their parents."""
    vanished: frozenset[PartitionId] = frozenset()
    """Partitions that have not ended, but whose children already continue all of them."""
    pieces: Mapping[PartitionId, Sequence[int]] = {}
    """The sequences of positions that are in several logs at once: of checkpoints and starts."""
    held: Mapping[PartitionId, Delay] = {}
    """Partitions with events in the log that cannot be read yet."""
    identity: Identity | None = None
    """The hub and the mode of the source; None without a source, or when it did not answer."""

    @property
    def has_different_source(self) -> bool:
        """Whether the source is not the one the group reads. Then it was not queried: positions would not match."""
        return self.ledger is not None and _is_different(self.ledger, self.identity)

    @property
    def leases(self) -> dict[PartitionId, Lease]:
        return {lease.partition: lease for lease in self.ledger.leases} if self.ledger is not None else {}

    @property
    def waiting_for(self) -> dict[PartitionId, tuple[PartitionId, ...]]:
        """Partitions that may not be owned yet, with the parents that must end first."""
        leases = self.leases
        waiting = unended(self.parents, open_ones(self.partitions, leases)) if self.parents else {}
        owned = {name for name, lease in leases.items() if lease.owner is not None}
        return {name: parents for name, parents in waiting.items() if name not in owned}

    @property
    def origins(self) -> dict[PartitionId, tuple[PartitionId, ...]]:
        """The parents of each child: from the source, or else from the leases of ended partitions."""
        found: dict[PartitionId, tuple[PartitionId, ...]] = {}
        for lease in sorted(self.leases.values(), key=lambda one: natural(one.partition)):
            for child in children_told(lease.reason) if lease.ended else ():
                found[child] = (*found.get(child, ()), lease.partition)
        return found | {name: tuple(sorted(parents, key=natural)) for name, parents in self.parents.items()}

    def partition_rows(self, known: PartitionContext | None = None) -> list[PartitionRow]:
        given = replace(
            known or PartitionContext(),
            parents=self.origins,
            waiting=self.waiting,
            waiting_for=self.waiting_for,
            starts=self.starts,
            vanished=self.vanished,
            pieces=self.pieces,
            held=self.held,
        )
        return partition_rows(self.ledger, self.checkpoints, self.bounds, self.partitions, given)

    def member_rows(self, standing: MemberContext | None = None) -> list[MemberRow]:
        return member_rows(self.ledger, standing)


class HeartbeatTracker:
    """Measures silence: how long each heartbeat counter has not changed over several snapshots, on our own clock."""

    def __init__(self) -> None:
        self._seen: dict[Owner, tuple[int, float, bool]] = {}

    def observe(self, members: Sequence[Member], now_s: float) -> dict[Owner, float | None]:
        """How long each has been silent; None where it has not been observed for long enough."""
        seen, self._seen = self._seen, {}
        silences: dict[Owner, float | None] = {}
        for member in members:
            mark, since_s, moved = seen.get(member.owner, (member.mark, now_s, False))
            if mark != member.mark:
                mark, since_s, moved = member.mark, now_s, True
            self._seen[member.owner] = mark, since_s, moved
            silent_s = now_s - since_s
            silences[member.owner] = silent_s if moved or silent_s >= member.ttl_s else None
        return silences


def operable(store: Store) -> Operable:
    if not isinstance(store, Operable):
        raise Misconfigured(f"{type(store).__name__} cannot be inspected: this needs a store that is Operable.")
    return store


async def conform(store: Store, group: Group, source: Source) -> None:
    """Where both support it, let the store use the lease layout that official processors of this source use."""
    if isinstance(store, Conforming) and isinstance(source, Conventional):
        store.conform(group, await source.convention(group.name))


def describe_source_error(store: Store, group: Group, error: EvenflowError) -> str:
    """The source's error; when a partition does not exist, with where its lease is stored."""
    if isinstance(error, NoSuchPartition) and isinstance(store, Documented):
        return f"{error} It is {store.lease_at(group, error.partition)}."
    return str(error)


async def find_group(store: Store, name: str, source: Source | None) -> Group:
    """The group with this name: the one of the source's hub, or else the only one in the store."""
    groups = await operable(store).groups()
    if source is not None:
        identity = await source.identity()
        wanted = Group(identity.namespace, identity.hub, name)
        await conform(store, wanted, source)
        found = _named(store, groups, lambda group: group, wanted)
        if found:
            return found[0]
        if isinstance(store, Conforming) and await operable(store).peek(wanted) is not None:
            return wanted  # only third-party processors have run in it
        is_elsewhere = any((group.hub, group.name) == (identity.hub, name) for group in groups)
        where = f" in {identity.namespace!r}" if is_elsewhere else ""
        missing = f"The store has no group {name!r} of hub {identity.hub!r}{where}."
        raise Misconfigured(f"{missing} {await _known(store, groups)}")
    found = _named(store, groups, lambda group: Group("", "", group.name), Group("", "", name))
    if not found:
        raise Misconfigured(f"The store has no group {name!r}. {await _known(store, groups)}")
    if len(found) > 1:
        raise Misconfigured(f"Several hubs have a group {name!r}. Name its source to choose one. {_listed(found)}")
    return found[0]


async def third_party_leases(store: Store) -> Mapping[str, int]:
    """Leases that belong to none of the store's groups, by prefix. Call it after its groups were listed."""
    return await store.foreign() if isinstance(store, Conforming) else {}


def describe_third_party_leases(found: Mapping[str, int]) -> str:
    """A hint for operators whose group is missing; "" when there are no such leases."""
    if not found:
        return ""
    prefixes = ", ".join(f"{prefix!r} ({count_of(leases, 'lease')})" for prefix, leases in found.items())
    return (
        f"There are leases of third-party processors that belong to none of its groups, under {prefixes}. To inspect"
        " them, name the source with the account's host as in the prefix, and as the group the part of the prefix"
        " before that host."
    )


async def find_group_to_look(store: Store, name: str, source: Source | None) -> Group:
    """The same, but while the source is unreachable, the only group with this name: its store can still be read."""
    try:
        return await find_group(store, name, source)
    except SourceUnavailable as unreachable:
        try:
            return await find_group(store, name, None)
        except Misconfigured:
            raise unreachable from None


def _named(store: Store, groups: Sequence[Group], part: Callable[[Group], Group], wanted: Group) -> Sequence[Group]:
    """Exact matches; in a store that follows the naming of Event Hubs, else those that differ only in case."""
    found = [group for group in groups if part(group) == wanted]
    if found or not isinstance(store, Shared):
        return found
    return [group for group in groups if str(part(group)).lower() == str(wanted).lower()]


async def survey(
    store: Store,
    group: Group,
    source: Source | None,
    moves: int = 10,
    actions: int = 0,
    identity: Identity | None = None,
) -> Survey:
    """Pass `identity` if the source was just asked for it."""
    looked = operable(store)
    if source is not None:
        await conform(store, group, source)
    ledger = await looked.peek(group)
    checkpoints = await looked.checkpoints(group)
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    problems: list[str] = []
    if source is not None and ledger is not None and ledger.state.source:
        identity = identity or await identity_of(source)
        source = None if _is_different(ledger, identity) else source
    there = await _partitions(source, problems)
    partitions = [one.id for one in there]
    wanted = sorted(open_ones(partitions, leases), key=natural)
    parents = parents_of(there, partitions, vanish=isinstance(source, Vanishing))
    vanished = frozenset(wanted).difference(partitions).intersection(chain.from_iterable(parents.values()))
    readable = [name for name in wanted if name not in vanished]
    # A source that failed to list its partitions would fail here, too, after another timeout.
    bounds = (
        await _bounds(source, readable, lambda error: describe_source_error(store, group, error), problems)
        if not problems
        else {}
    )
    problems += _unknown_ends(readable, bounds) if source is not None and not problems else []
    places = {record.partition: record.position for record in checkpoints}
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    left = {one.partition: left_at(leases[one.partition], one) for one in checkpoints if one.partition in leases}
    starts = await _starts(source, {name: parents[name] for name in wanted if name in parents}, {**places, **left})
    reached = {**starts, **places}
    waiting = await _waiting(source, reached, bounds)
    return Survey(
        group=group,
        ledger=ledger,
        checkpoints=checkpoints,
        moves=await looked.moves(group, moves),
        partitions=partitions,
        bounds=_ending(bounds, {name: reached[name] for name, since in waiting.items() if since is None}),
        problems=tuple(problems),
        actions=await _actions(store, group, actions),
        waiting={name: since for name, since in waiting.items() if since is not None},
        parents=parents,
        starts=starts,
        vanished=vanished,
        pieces=pieces_of(source, reached),
        identity=identity,
        held=await _held(source, [name for name in readable if lag_of(reached.get(name), bounds.get(name)) != 0]),
    )


def _is_different(ledger: Ledger, identity: Identity | None) -> bool:
    return identity is not None and ledger.state.source not in ("", identity.source)


async def identity_of(source: Source) -> Identity | None:
    """None when the source fails: then it counts as the group's own, and later calls report the error."""
    try:
        return await source.identity()
    except EvenflowError:
        return None


def pieces_of(source: object, places: Mapping[PartitionId, Position]) -> Mapping[PartitionId, Sequence[int]]:
    """For positions that are in several logs at once."""
    if not isinstance(source, Merging):
        return {}
    found = {}
    for name, place in places.items():
        with suppress(EvenflowError):  # of another source, or edited by hand: its reader reports that
            found[name] = source.sequences(place)
    return {name: sequences for name, sequences in found.items() if len(sequences) > 1}


async def _actions(store: Store, group: Group, limit: int) -> Sequence[Action]:
    """What operators requested, without the recorded steps of these requests."""
    if not limit or not isinstance(store, Steerable):
        return ()
    asked = [action for action in await store.actions(group, limit * STEPS_READ) if not action.is_step]
    return asked[:limit]


async def _partitions(source: Source | None, problems: list[str]) -> Sequence[Partition]:
    if source is None:
        return []
    try:
        return await source.partitions()
    except EvenflowError as error:
        problems.append(str(error))
        return []


async def _bounds(
    source: Source | None,
    partitions: Sequence[PartitionId],
    describe: Callable[[EvenflowError], str],
    problems: list[str],
) -> Mapping[PartitionId, Bounds]:
    """All in one request; one by one if that fails, so that a broken partition does not hide others."""
    if source is None or not partitions:
        return {}
    try:
        return await source.bounds(partitions)
    except EvenflowError as error:
        if len(partitions) == 1:
            problems.append(f"partition {partitions[0]}: {describe(error)}")
            return {}
    found: dict[PartitionId, Bounds] = {}
    for partition in partitions:
        found.update(await _bounds(source, [partition], describe, problems))
    return found


async def _starts(
    source: Source | None,
    parents: Mapping[PartitionId, Sequence[PartitionId]],
    places: Mapping[PartitionId, Position],
) -> Mapping[PartitionId, Position]:
    """Of children without a checkpoint. If their parents have none either, only the processor knows their start."""
    vanishing: object = source
    found: dict[PartitionId, Position] = {}
    for child, names in parents.items():
        after = {name: places[name] for name in names if name in places}
        if child not in places and after and isinstance(vanishing, Vanishing):
            with suppress(EvenflowError):
                found[child] = await vanishing.child_start(child, after)
    return found


async def _waiting(
    source: Source | None, places: Mapping[PartitionId, Position], bounds: Mapping[PartitionId, Bounds]
) -> Mapping[PartitionId, datetime | None]:
    """For partitions with lag, or with unknown lag. If the source fails, lag in seconds is estimated differently."""
    behind = {name: place for name, place in places.items() if name in bounds and lag_of(place, bounds[name]) != 0}
    dated: object = source
    if not behind or not isinstance(dated, Dated):
        return {}
    try:
        return await dated.waiting_since(behind)
    except EvenflowError:
        return {}


async def _held(source: Source | None, behind: Sequence[PartitionId]) -> Mapping[PartitionId, Delay]:
    delaying: object = source
    if not behind or not isinstance(delaying, Delaying):
        return {}
    try:
        return await delaying.held_back(behind)
    except EvenflowError:
        return {}


def _ending(bounds: Mapping[PartitionId, Bounds], at_end: Mapping[PartitionId, Position]) -> dict[PartitionId, Bounds]:
    """A position without events after it is the end, whatever the numbers say: children continue their parent's."""
    return {name: replace(one, newest=at_end[name]) if name in at_end else one for name, one in bounds.items()}


def _unknown_ends(wanted: Sequence[PartitionId], bounds: Mapping[PartitionId, Bounds]) -> list[str]:
    """A source may not know the end of a log, or leave out what it cannot read."""
    names = [name for name in wanted if name not in bounds or bounds[name].newest is None]
    called = f"partition {names[0]}" if len(names) == 1 else f"partitions {listed(names)}"
    return [f"{called}: the source does not know where the log ends, so lag is unknown."] if names else []


async def _known(store: Store, groups: Sequence[Group]) -> str:
    """What the store has instead: its groups, and leases of third-party processors."""
    return f"{_listed(groups)} {describe_third_party_leases(await third_party_leases(store))}".rstrip()


def _listed(groups: Sequence[Group]) -> str:
    return f"It has: {', '.join(map(str, groups))}." if groups else "It has no groups yet."
