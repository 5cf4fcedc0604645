"""One look at a group from outside: everything that its store and its source can tell, without taking part.

A failing partition, or a source that is away, leaves the rest of the picture whole: what could not be learnt is
missing, and `problems` says why.
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
"""A command that takes steps takes two or so: to find N commands, so many times N actions are read."""


class Survey(Struct, frozen=True, kw_only=True):
    group: Group
    ledger: Ledger | None
    checkpoints: Sequence[Checkpoint]
    moves: Sequence[Move]
    partitions: Sequence[PartitionId]
    bounds: Mapping[PartitionId, Bounds]
    problems: tuple[str, ...] = ()
    actions: Sequence[Action] = ()
    """What people did to it, newest first."""
    waiting: Mapping[PartitionId, datetime] = {}
    """When the oldest event after each checkpoint was enqueued, where the source can tell."""
    dead_letters: int | None = None
    """How many of its dead letters are open; None: nobody has looked."""
    parents: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Of the children of splits and merges, as far as the source tells."""
    starts: Mapping[PartitionId, Position] = {}
    """After which place children go on that have no checkpoint yet: by what was checkpointed of their parents."""
    vanished: frozenset[PartitionId] = frozenset()
    """Those that have not ended, but that children have all of already."""
    pieces: Mapping[PartitionId, Sequence[int]] = {}
    """The sequences of places that are in several logs at once: checkpoints and starts."""
    held: Mapping[PartitionId, Delay] = {}
    """Those that have events that nobody may have yet."""
    identity: Identity | None = None
    """Which hub the source has, and how it reads it; None: there is no source, or it did not tell."""

    @property
    def is_strange(self) -> bool:
        """Whether the source is not what the group reads: then it was asked for nothing, for nothing would fit."""
        return self.ledger is not None and _is_strange(self.ledger, self.identity)

    @property
    def leases(self) -> dict[PartitionId, Lease]:
        return {lease.partition: lease for lease in self.ledger.leases} if self.ledger is not None else {}

    @property
    def unborn(self) -> dict[PartitionId, tuple[PartitionId, ...]]:
        """Those that nobody is to have yet, and whom they wait for."""
        leases = self.leases
        waiting = unended(self.parents, open_ones(self.partitions, leases)) if self.parents else {}
        owned = {name for name, lease in leases.items() if lease.owner is not None}
        return {name: parents for name, parents in waiting.items() if name not in owned}

    @property
    def origins(self) -> dict[PartitionId, tuple[PartitionId, ...]]:
        """Whom each child follows: as the source tells, or else as the leases do that have ended."""
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
            unborn=self.unborn,
            starts=self.starts,
            vanished=self.vanished,
            pieces=self.pieces,
            held=self.held,
        )
        return partition_rows(self.ledger, self.checkpoints, self.bounds, self.partitions, given)

    def member_rows(self, standing: MemberContext | None = None) -> list[MemberRow]:
        return member_rows(self.ledger, standing)


class HeartbeatTracker:
    """Whose heartbeat moves and whose stands still, on the watcher's own clock, over several looks."""

    def __init__(self) -> None:
        self._seen: dict[Owner, tuple[int, float, bool]] = {}

    def look(self, members: Sequence[Member], now_s: float) -> dict[Owner, float | None]:
        """How long each has been silent; None where we have not watched for long enough to tell."""
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
        raise Misconfigured(f"{type(store).__name__} cannot be looked into; this needs a store that is Operable.")
    return store


async def conform(store: Store, group: Group, source: Source) -> None:
    """Where both know of one, let the store keep the group's leases by the convention of the source's own world."""
    if isinstance(store, Conforming) and isinstance(source, Conventional):
        store.conform(group, await source.convention(group.name))


def describe_source_error(store: Store, group: Group, error: EvenflowError) -> str:
    """What a source says; of a partition that it does not have, with where its lease is."""
    if isinstance(error, NoSuchPartition) and isinstance(store, Documented):
        return f"{error} It is {store.lease_at(group, error.partition)}."
    return str(error)


async def find_group(store: Store, name: str, source: Source | None) -> Group:
    """The group of this name: of the source's hub, or else the only one that the store has."""
    groups = await operable(store).groups()
    if source is not None:
        identity = await source.identity()
        wanted = Group(identity.namespace, identity.hub, name)
        await conform(store, wanted, source)
        found = _named(store, groups, lambda group: group, wanted)
        if found:
            return found[0]
        if isinstance(store, Conforming) and await operable(store).peek(wanted) is not None:
            return wanted  # nobody but processors of another make has run in it
        is_elsewhere = any((group.hub, group.name) == (identity.hub, name) for group in groups)
        where = f" in {identity.namespace!r}" if is_elsewhere else ""
        missing = f"The store knows no group {name!r} of hub {identity.hub!r}{where}."
        raise Misconfigured(f"{missing} {await _known(store, groups)}")
    found = _named(store, groups, lambda group: Group("", "", group.name), Group("", "", name))
    if not found:
        raise Misconfigured(f"The store knows no group {name!r}. {await _known(store, groups)}")
    if len(found) > 1:
        raise Misconfigured(f"Several hubs have a group {name!r}: say which with a source. {_listed(found)}")
    return found[0]


async def third_party_leases(store: Store) -> Mapping[str, int]:
    """After its groups were listed: leases that are of none of them, by their prefix."""
    return await store.foreign() if isinstance(store, Conforming) else {}


def describe_third_party_leases(found: Mapping[str, int]) -> str:
    """For people who miss a group; "" when there are none."""
    if not found:
        return ""
    prefixes = ", ".join(f"{prefix!r} ({count_of(leases, 'lease')})" for prefix, leases in found.items())
    return (
        f"There are leases of no group that it knows, as processors of another make keep them, under {prefixes}. To"
        " look at them, say the source, with the account's host as it stands in the prefix, and for the group what"
        " stands before the host."
    )


async def find_group_to_look(store: Store, name: str, source: Source | None) -> Group:
    """The same; while the source is away, the only group of this name: what the store tells is wanted then, too."""
    try:
        return await find_group(store, name, source)
    except SourceUnavailable as away:
        try:
            return await find_group(store, name, None)
        except Misconfigured:
            raise away from None


def _named(store: Store, groups: Sequence[Group], part: Callable[[Group], Group], wanted: Group) -> Sequence[Group]:
    """Those of this very name; of a store that has its names from Event Hubs also those that differ in case."""
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
    """`identity` is for whoever has just asked the source for it."""
    looked = operable(store)
    if source is not None:
        await conform(store, group, source)
    ledger = await looked.peek(group)
    checkpoints = await looked.checkpoints(group)
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    problems: list[str] = []
    if source is not None and ledger is not None and ledger.state.source:
        identity = identity or await identity_of(source)
        source = None if _is_strange(ledger, identity) else source
    there = await _partitions(source, problems)
    partitions = [one.id for one in there]
    wanted = sorted(open_ones(partitions, leases), key=natural)
    parents = parents_of(there, partitions, vanish=isinstance(source, Vanishing))
    vanished = frozenset(wanted).difference(partitions).intersection(chain.from_iterable(parents.values()))
    readable = [name for name in wanted if name not in vanished]
    # Who cannot say what there is would be asked in vain, and for long.
    bounds = (
        await _bounds(source, readable, lambda error: describe_source_error(store, group, error), problems)
        if not problems
        else {}
    )
    problems += _untold(readable, bounds) if source is not None and not problems else []
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


def _is_strange(ledger: Ledger, identity: Identity | None) -> bool:
    return identity is not None and ledger.state.source not in ("", identity.source)


async def identity_of(source: Source) -> Identity | None:
    """A source that does not say counts as the group's own: it will tell what is wrong."""
    try:
        return await source.identity()
    except EvenflowError:
        return None


def pieces_of(source: object, places: Mapping[PartitionId, Position]) -> Mapping[PartitionId, Sequence[int]]:
    """Of those that are in several logs at once."""
    if not isinstance(source, Merging):
        return {}
    found = {}
    for name, place in places.items():
        with suppress(EvenflowError):  # another source's, or edited by hand: whoever reads there is told
            found[name] = source.sequences(place)
    return {name: sequences for name, sequences in found.items() if len(sequences) > 1}


async def _actions(store: Store, group: Group, limit: int) -> Sequence[Action]:
    """What people asked for; the steps that this took stay in the store."""
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
    say: Callable[[EvenflowError], str],
    problems: list[str],
) -> Mapping[PartitionId, Bounds]:
    """All in one request; one by one when that fails, so that a broken partition hides no other."""
    if source is None or not partitions:
        return {}
    try:
        return await source.bounds(partitions)
    except EvenflowError as error:
        if len(partitions) == 1:
            problems.append(f"partition {partitions[0]}: {say(error)}")
            return {}
    found: dict[PartitionId, Bounds] = {}
    for partition in partitions:
        found.update(await _bounds(source, [partition], say, problems))
    return found


async def _starts(
    source: Source | None,
    parents: Mapping[PartitionId, Sequence[PartitionId]],
    places: Mapping[PartitionId, Position],
) -> Mapping[PartitionId, Position]:
    """Of children without a place of their own. Whose parents had none either begins where only its processor knows."""
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
    """Of those that have lag, or of whom it is not known. Where it cannot be told, it is reckoned otherwise."""
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
    """Where nothing comes after a place, it is the end, whatever the numbers say: a child counts on from its parent."""
    return {name: replace(one, newest=at_end[name]) if name in at_end else one for name, one in bounds.items()}


def _untold(wanted: Sequence[PartitionId], bounds: Mapping[PartitionId, Bounds]) -> list[str]:
    """A source may not know, or leave out what it cannot read."""
    names = [name for name in wanted if name not in bounds or bounds[name].newest is None]
    called = f"partition {names[0]}" if len(names) == 1 else f"partitions {listed(names)}"
    return [f"{called}: the source cannot tell where the log ends."] if names else []


async def _known(store: Store, groups: Sequence[Group]) -> str:
    """And what is there beside groups."""
    return f"{_listed(groups)} {describe_third_party_leases(await third_party_leases(store))}".rstrip()


def _listed(groups: Sequence[Group]) -> str:
    return f"It has: {', '.join(map(str, groups))}." if groups else "It has no groups yet."
