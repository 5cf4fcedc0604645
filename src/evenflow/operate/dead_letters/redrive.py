"""Requests that dead letters are handled again, or drops them, and watches the outcome.

The owners of the partitions handle the dead letters, never this module: requests stay in force when it is interrupted,
and requesting twice has no further effect. Selecting dead letters, evaluating answers and checking that an owner is
live are plain functions and records; the rest is a thin shell over the target and the store.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct, structs

from evenflow.core.filed import Filed, fold
from evenflow.errors import Transient
from evenflow.model import Action, Steering
from evenflow.ports import Operable, Steerable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from evenflow.model import Group, Lease, Ledger, Member, PartitionId
    from evenflow.ports import Clock, DeadLetters

STEPS_MOST = 50
"""The most steps of a redrive with a rate: each step is an action in the store's record, which is limited."""
LOOK_S = 0.5
REST_FACTOR = 4
"""Between two reads it waits at least this many times the duration of a read, so that a large log costs little."""
UNOWNED_S = 15.0
"""A partition may have no owner for this long while instances run: it is about to get one."""
PATIENCE_S = 60.0
"""An unavailable target or store is retried for this long, then its error ends the wait."""


@runtime_checkable
class OperatedStore(Operable, Steerable, Protocol):
    """A store that tools can inspect, and through which they can steer a group."""


class Requester(NamedTuple):
    """The operator who asks, and the reason: both are recorded."""

    by: str
    why: str


class DeadLetterFilter(Struct, frozen=True, kw_only=True):
    """Selects dead letters: those that match every field that is set."""

    ids: frozenset[str] = frozenset()
    partitions: frozenset[PartitionId] = frozenset()
    keys: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    error: str = ""
    """A part of the error, in any case."""

    def matches(self, filed: Filed) -> bool:
        dead_letter = filed.dead_letter
        return (
            (not self.ids or dead_letter.id in self.ids)
            and (not self.partitions or dead_letter.partition in self.partitions)
            and (not self.keys or dead_letter.event.key in self.keys)
            and (not self.states or filed.state in self.states)
            and self.error.casefold() in filed.error.casefold()
        )


class RedriveProgress(Struct, frozen=True, kw_only=True):
    """The outcome so far for the dead letters of a redrive."""

    redriven: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """By another operator, meanwhile."""
    waiting: tuple[str, ...] = ()
    unattended: Mapping[PartitionId, str] = {}
    """Partitions with waiting dead letters but no live owner, and why."""
    quiet_s: float = 0.0
    """How long no answer has come."""
    problem: str = ""
    """Why the last read failed."""

    @property
    def total(self) -> int:
        return self.answered + len(self.waiting)

    @property
    def answered(self) -> int:
        return len(self.redriven) + len(self.failed) + len(self.dropped)


def matching(filed: Iterable[Filed], choice: DeadLetterFilter) -> list[Filed]:
    return [one for one in filed if choice.matches(one)]


def overtaking(filed: Iterable[Filed], meant: Iterable[Filed]) -> list[Filed]:
    """The selected dead letters that were parked behind an open one of the same key that is not selected."""
    names = {one.dead_letter.id for one in meant}
    left: set[tuple[PartitionId, str | None]] = set()
    found = []
    for one in filed:
        place = (one.dead_letter.partition, one.dead_letter.event.key)
        if one.dead_letter.id in names:
            if one.dead_letter.reason == "parked" and place in left:
                found.append(one)
        elif one.is_open and one.dead_letter.event.key is not None:
            left.add(place)
    return found


def in_steps(asked: Sequence[Filed], rate: float | None) -> tuple[list[Sequence[Filed]], float]:
    """The steps of a redrive with this rate, and the seconds between them."""
    if rate is None or not asked:
        return [asked], 0.0
    step_s = max(1.0, 1.0 / rate, len(asked) / rate / STEPS_MOST)
    size = max(1, floor(rate * step_s))
    return [asked[start : start + size] for start in range(0, len(asked), size)], size / rate


def progress_of(targets: Mapping[str, int], filed: Iterable[Filed]) -> RedriveProgress:
    """The answers to the requested tries: `targets` has the number of the try for each id."""
    found: dict[str, list[str]] = {"redriven": [], "failed": [], "dropped": [], "waiting": []}
    states = {one.dead_letter.id: one for one in filed}
    for name, number in targets.items():
        found[_answer(states.get(name), number)].append(name)
    return RedriveProgress(**{kind: tuple(names) for kind, names in found.items()})  # type: ignore[arg-type]


def _answer(filed: Filed | None, number: int) -> str:
    if filed is None or filed.state == "again" or filed.number < number:
        return "waiting"
    return "failed" if filed.state == "dead" else filed.state


class OwnerLiveness:
    """Whether a partition has a live owner: its heartbeat counter changes, on our own clock."""

    def __init__(self) -> None:
        self._seen: dict[PartitionId, tuple[object, float]] = {}

    def missing(
        self, ledger: Ledger | None, partitions: Iterable[PartitionId], now_s: float, answered: int = 0
    ) -> dict[PartitionId, str]:
        """The partitions without a live owner, each with the reason. `answered` counts the answers so far."""
        if ledger is None or not ledger.members:
            return dict.fromkeys(partitions, "no instance is running")
        leases = {lease.partition: lease for lease in ledger.leases}
        members = {member.owner: member for member in ledger.members}
        found = {}
        for partition in partitions:
            lease = leases.get(partition)
            owner = members.get(lease.owner) if lease is not None and lease.owner is not None else None
            why = self._why_missing(ledger, partition, lease, owner, now_s, answered)
            if why:
                found[partition] = why
        return found

    def _why_missing(
        self,
        ledger: Ledger,
        partition: PartitionId,
        lease: Lease | None,
        owner: Member | None,
        now_s: float,
        answered: int,
    ) -> str:
        if (pause := ledger.state.pause_of(partition)) is not None:
            return f"it is paused{f' by {pause.by}' if pause.by else ''}"
        ended = lease is not None and lease.ended
        beat: object = (owner.owner, owner.mark) if owner is not None else answered if ended else None
        seen, since_s = self._seen.get(partition, (beat, now_s))
        if seen != beat:
            since_s = now_s
        self._seen[partition] = beat, since_s
        if owner is None:
            why = "it has ended, and no owner of a child answers" if ended else "it has no owner"
            return why if now_s - since_s >= UNOWNED_S else ""
        silent = now_s - since_s >= 2 * owner.ttl_s + owner.heartbeat_s
        return f"its owner {owner.id} sends no heartbeats" if silent else ""


class Redrive:
    """One redrive: requests every selected dead letter, and waits for these and for those requested earlier."""

    def __init__(
        self, dead_letters: DeadLetters, store: OperatedStore, group: Group, clock: Clock, requester: Requester
    ) -> None:
        self._dead_letters = dead_letters
        self._store = store
        self._group = group
        self._clock = clock
        self._requester = requester
        self._liveness = OwnerLiveness()
        self.asked = 0
        """How many dead letters it has requested so far, without those requested earlier."""
        self._targets: dict[str, int] = {}
        self._places: dict[str, PartitionId] = {}
        self._last = RedriveProgress()
        self._answered_s = clock.now()
        self._seen_s = clock.now()

    async def run(
        self,
        meant: Sequence[Filed],
        *,
        rate: float | None = None,
        wait: bool = True,
        report: Callable[[RedriveProgress], None] = lambda _: None,
    ) -> RedriveProgress:
        """Request at most `rate` dead letters a second. Redriven and dropped ones are skipped.

        Returns when all are answered, or when no live owner is left to answer the rest.
        """
        before = [one for one in meant if one.state == "again"]
        steps, step_s = in_steps([one for one in meant if one.state == "dead"], rate)
        self._expect(before, 0)
        next_s = self._clock.now()
        for step in steps:
            await self._clock.sleep(max(0.0, next_s - self._clock.now()))
            next_s = self._clock.now() + step_s
            await self._ask(step, before)
            before = []
            report(await self._look())
        while wait and not self._is_over():
            await self._clock.sleep(LOOK_S)
            report(await self._look())
        return self._last

    async def _ask(self, step: Sequence[Filed], before: Sequence[Filed]) -> None:
        """The verdicts first: an owner that is notified before them would find nothing to do.

        Owners are notified again of earlier requests, since those may have been interrupted before the notification.
        """
        at = self._clock.wall()
        for partition, dead_letters in by_partition(step).items():
            verdicts = [one.asked(by=self._requester.by, why=self._requester.why, at=at) for one in dead_letters]
            await self._dead_letters.file(self._group, partition, verdicts)
            self.asked += len(verdicts)
        self._expect(step, 1)
        if step or before:
            partitions = tuple(by_partition([*step, *before]))
            again = f", and notified owners of {_count(before)} requested earlier" if before else ""
            what = f"requested {_count(step)} of {_names(partitions)} to be handled again{again}"
            await self._store.steer(
                self._group, Steering(redrive=partitions), _action("redrive", self._requester, what)
            )

    def _expect(self, dead_letters: Iterable[Filed], more: int) -> None:
        for one in dead_letters:
            self._targets[one.dead_letter.id] = one.number + more
            self._places[one.dead_letter.id] = one.dead_letter.partition
        self._last = progress_of(self._targets, [])

    async def _look(self) -> RedriveProgress:
        started_s = self._clock.now()
        try:
            found = await self._found()
        except Transient as error:
            if started_s - self._seen_s >= PATIENCE_S:
                raise
            return self._note(self._last, quiet_s=started_s - self._answered_s, problem=str(error))
        now_s = self._seen_s = self._clock.now()
        if found.answered != self._last.answered:
            self._answered_s = now_s
        self._note(found, quiet_s=now_s - self._answered_s)
        await self._clock.sleep((now_s - started_s) * REST_FACTOR if found.waiting else 0.0)
        return self._last

    async def _found(self) -> RedriveProgress:
        filed: list[Filed] = []
        for partition in sorted({*self._places.values()}):
            filed += await read_filed(self._dead_letters, self._group, partition)
        found = progress_of(self._targets, filed)
        waiting = {self._places[name] for name in found.waiting}
        ledger = await self._store.peek(self._group) if waiting else None
        missing = self._liveness.missing(ledger, sorted(waiting), self._clock.now(), found.answered)
        return structs.replace(found, unattended=missing)

    def _note(self, found: RedriveProgress, *, quiet_s: float, problem: str = "") -> RedriveProgress:
        self._last = structs.replace(found, quiet_s=quiet_s, problem=problem)
        return self._last

    def _is_over(self) -> bool:
        return all(self._places[name] in self._last.unattended for name in self._last.waiting)


async def drop(
    dead_letters: DeadLetters,
    store: Steerable,
    group: Group,
    meant: Sequence[Filed],
    clock: Clock,
    requester: Requester,
) -> int:
    """Drop those that are open; returns how many.

    Owners are notified as for a redrive: a key whose last dead letter was dropped is no longer parked.
    """
    there = [one for one in meant if one.is_open]
    at = clock.wall()
    for partition, filed in by_partition(there).items():
        verdicts = [one.dropped(by=requester.by, why=requester.why, at=at) for one in filed]
        await dead_letters.file(group, partition, verdicts)
    if there:
        partitions = tuple(by_partition(there))
        what = (
            f"dropped {_count(there)} of {_names(partitions)}: {', '.join([one.dead_letter.id for one in there[:20]])}"
        )
        what += f" and {len(there) - 20} more" if len(there) > 20 else ""
        await store.steer(group, Steering(redrive=partitions), _action("drop", requester, what))
    return len(there)


async def read_filed(dead_letters: DeadLetters, group: Group, partition: PartitionId | None = None) -> list[Filed]:
    return fold([record async for record in dead_letters.read(group, partition)])


def by_partition(filed: Iterable[Filed]) -> dict[PartitionId, list[Filed]]:
    """In order, for each partition."""
    found: dict[PartitionId, list[Filed]] = {}
    for one in filed:
        found.setdefault(one.dead_letter.partition, []).append(one)
    return found


def _action(kind: str, requester: Requester, what: str) -> Action:
    return Action(kind=kind, by=requester.by, why=requester.why, what=what)


def _count(filed: Sequence[Filed]) -> str:
    return f"{len(filed)} dead letter{'' if len(filed) == 1 else 's'}"


def _names(partitions: Sequence[PartitionId]) -> str:
    return f"partition{'' if len(partitions) == 1 else 's'} {', '.join(partitions)}"
