"""Small observers who know what really happened, one for each invariant. They see true time and raise Violation.

Events of a partition are numbered from 0. Positions are sequences: a record at sequence n says that 0 to n are handled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.core.failure import DEATHS_MOST, ENDS_MOST, FRUITLESS_MOST
from evenflow.model import restore_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from evenflow.core.filed import Filed
    from evenflow.model import Checkpoint, DeadLetter, Lease, Owner, PartitionId
    from evenflow.testing.simulated.loads import Loads

ROUNDING_S = 1e-6
MEASURED = 0.05
"""Of the mean load: an instance knows loads as it measured them, over a short time and with noise."""


class Violation(AssertionError):
    """An invariant was broken."""


class OneOwner:
    """1. Two incarnations never hold the same partition in the same epoch, and epochs only grow."""

    def __init__(self) -> None:
        self._holders: dict[tuple[PartitionId, int], Owner] = {}

    def lease_written(self, before: Lease | None, after: Lease) -> None:
        if before is not None and after.epoch <= before.epoch and after.owner != before.owner:
            raise Violation(f"partition {after.partition} changed its owner without a new epoch ({after.epoch})")
        if after.owner is not None:
            self.holds(after.partition, after.epoch, after.owner)

    def holds(self, partition: PartitionId, epoch: int, owner: Owner) -> None:
        holder = self._holders.setdefault((partition, epoch), owner)
        if holder != owner:
            raise Violation(f"partition {partition}: {holder} and {owner} both hold epoch {epoch}")


Place: TypeAlias = "tuple[PartitionId, int]"


class NothingLost:
    """2. A record never passes an event that was not handled; in the end every event was.

    An event that a child has a copy of goes by its `origin`: it is handled when it was, wherever that happened.
    """

    def __init__(
        self,
        origin: Callable[[PartitionId, int], Place] = lambda partition, sequence: (partition, sequence),
        owed: Callable[[PartitionId, int], bool] = lambda partition, sequence: False,
    ):
        """`owed`: it was passed over without knowing better, and those who know better may not have come back yet."""
        self._origin, self._owed = origin, owed
        self._handled: dict[PartitionId, set[int]] = defaultdict(set)
        self._vouched: dict[PartitionId, set[int]] = defaultdict(set)
        self._first: dict[PartitionId, int] = {}

    def first_sealed(self, partition: PartitionId, sequence: int, *, late: bool = False) -> None:
        """Where the group begins in this partition: what was there before does not count."""
        if late and sequence >= 0 and partition not in self._first:
            raise Violation(f"partition {partition} came after the group had begun, and began after {sequence}")
        if partition not in self._first:
            self._pass_over_copies(partition, sequence)
        first = self._first.setdefault(partition, sequence)
        if sequence > first:
            self._must_be_handled(partition, first, sequence)
        self._first[partition] = min(first, sequence)

    def _pass_over_copies(self, partition: PartitionId, sequence: int) -> None:
        """Of events that were there before the group was, in parents that it never saw."""
        for where, at in (self._origin(partition, one) for one in range(sequence + 1)):
            if where != partition:
                self._handled[where].add(at)

    def begin_anew(self) -> None:
        """The group was deleted: where it begins now says nothing of where it began before."""
        self._first.clear()

    def first(self, partition: PartitionId) -> int:
        """What comes after this is the group's."""
        return self._first.get(partition, -1)

    def has_begun(self, partition: PartitionId) -> bool:
        return partition in self._first

    def handled(self, partition: PartitionId, sequence: int) -> None:
        where, at = self._origin(partition, sequence)
        self._handled[where].add(at)

    def is_handled(self, partition: PartitionId, sequence: int) -> bool:
        """Or it was never the group's."""
        where, at = self._origin(partition, sequence)
        return at in self._handled[where] or at <= self._first.get(where, -1)

    def vouched(self, partition: PartitionId, sequence: int) -> None:
        """An application has it, and may checkpoint it before its call ends: then it counts as handled."""
        where, at = self._origin(partition, sequence)
        self._vouched[where].add(at)

    def moved(self, partition: PartitionId, before: int, after: int) -> None:
        if after > before:
            self._must_be_handled(partition, before, after)

    def _must_be_handled(self, partition: PartitionId, before: int, after: int) -> None:
        for sequence in range(before + 1, after + 1):
            where, at = self._origin(partition, sequence)
            if at in self._vouched[where]:
                self._handled[where].add(at)
            if not self.is_handled(partition, sequence) and not self._owed(partition, sequence):
                raise Violation(f"partition {partition}: the checkpoint passed {sequence}, which was never handled")

    def missing(self, partition: PartitionId, newest: int) -> list[int]:
        first = self._first.get(partition)
        if first is None:
            return [0]
        return [n for n in range(first + 1, newest + 1) if not self.is_handled(partition, n)]


class NeverBack:
    """3. A checkpoint never goes back by itself, and never changes under an older epoch than its own."""

    def written(self, before: Checkpoint | None, after: Checkpoint, *, sought: bool, history: int) -> None:
        if before is None or (before.epoch != after.epoch and self._restores(before, after, history)):
            return
        if after.epoch < before.epoch:
            raise Violation(f"partition {after.partition}: a record of epoch {before.epoch} fell to {after.epoch}")
        back = (after.position.sequence or 0) < (before.position.sequence or 0)
        if (back and not sought) or after.ordinal < before.ordinal:
            raise Violation(
                f"partition {after.partition}: the checkpoint went back from {before.position} to {after.position}"
            )

    def committed(self, record: Checkpoint | None, wish: Checkpoint, *, ok: bool, history: int) -> None:
        if ok and (record is None or record.epoch != wish.epoch) and not self._restores(record, wish, history):
            raise Violation(f"partition {wish.partition}: a commit of epoch {wish.epoch} passed a record of another")

    def _restores(self, record: Checkpoint | None, wish: Checkpoint, history: int) -> bool:
        """Of an older history, and so is the record, if it is not lost altogether."""
        is_older = history > 0 and wish.epoch <= restore_epoch(history)
        return is_older and (record is None or record.epoch < wish.epoch)


class InOrder:
    """4. Inside a partition, an instance's calls never overlap and never go out of order; with a limit to its
    concurrency, no more of them run at the same time."""

    def __init__(
        self,
        limit: int | None = None,
        *,
        may_skip: Callable[[PartitionId, int], bool] = lambda partition, sequence: False,
    ) -> None:
        """`may_skip`: a child leaves out what its parents have handled."""
        self._limit, self._may_skip = limit, may_skip
        self._running: dict[tuple[Any, PartitionId], int] = {}
        self._next: dict[tuple[PartitionId, Hashable], int] = {}

    def begins(
        self, who: Any, partition: PartitionId, epoch: Hashable, first: int, last: int, *, aside: bool = False
    ) -> None:
        """`aside`: a redriven dead letter, which has no place in the order of its partition, but runs alone."""
        if (who, partition) in self._running:
            raise Violation(f"partition {partition}: two calls of {who} overlap")
        self._running[who, partition] = last
        if self._limit is not None and sum(runner == who for runner, _ in self._running) > self._limit:
            raise Violation(f"partition {partition}: more than {self._limit} calls of {who} at the same time")
        expected = self._next.get((partition, epoch))
        if aside:
            return
        if expected is not None and not all(self._may_skip(partition, one) for one in range(expected, first)):
            raise Violation(f"partition {partition} epoch {epoch}: {first} was handled though {expected} was not")
        if expected is not None and first < expected:
            raise Violation(f"partition {partition} epoch {epoch}: {first} came again after {expected - 1}")

    def ends(self, who: Any, partition: PartitionId, epoch: Hashable, last: int, *, ok: bool) -> None:
        del self._running[who, partition]
        if ok:
            self._next[partition, epoch] = last + 1

    def filed(self, partition: PartitionId, epoch: int, sequence: int) -> None:
        """It is in the dead letters: the next one may follow."""
        if self._next.get((partition, epoch), sequence) == sequence:
            self._next[partition, epoch] = sequence + 1

    def process_died(self, who: Any) -> None:
        for key in [key for key in self._running if key[0] == who]:
            del self._running[key]


class SilentStops:
    """5. No call begins later than the patience after the last answered heartbeat that showed its owner as the owner,
    nor after a call of a later owner.
    """

    def __init__(self) -> None:
        self._shown_s: dict[tuple[Any, PartitionId, int], float] = {}
        self._answered_s: dict[Any, float] = {}
        self._claims: dict[tuple[Any, PartitionId, int], float] = {}
        self._newest_epoch: dict[PartitionId, int] = {}

    def answered(self, who: Any, sent_s: float, owned: Iterable[Lease]) -> None:
        """`owned` are the leases that the heartbeat's ledger showed as its sender's."""
        self._answered_s[who] = sent_s
        for lease in owned:
            self._shown_s[who, lease.partition, lease.epoch] = sent_s

    def claims(self, who: Any, partition: PartitionId, epoch: int) -> None:
        self._claims[who, partition, epoch] = self._answered_s.get(who, float("-inf"))

    def in_time(self, who: Any, partition: PartitionId, epoch: int, now_s: float, patience_s: float) -> None:
        """A call, or the hook of the start."""
        key = (who, partition, epoch)
        sent_s = max(self._shown_s.get(key, float("-inf")), self._claims.get(key, float("-inf")))
        if now_s - sent_s >= patience_s + ROUNDING_S:
            raise Violation(
                f"partition {partition}: {who} began a call {now_s - sent_s:.3f} s after its last answered heartbeat,"
                f" its patience is {patience_s:.3f} s"
            )

    def begins(
        self,
        who: Any,
        partition: PartitionId,
        epoch: int,
        now_s: float,
        patience_s: float,
        *,
        unordered: bool = False,
    ) -> None:
        """`unordered`: an epoch that was given without knowing of those before."""
        self.in_time(who, partition, epoch, now_s, patience_s)
        if unordered:
            return
        newest = self._newest_epoch.setdefault(partition, epoch)
        if epoch < newest:
            raise Violation(f"partition {partition}: {who} began a call in epoch {epoch} after one in epoch {newest}")
        self._newest_epoch[partition] = epoch


class PlannedIsFree:
    """6. As long as nothing unplanned happened, no event is handled twice, and none waits for longer than a drain and
    the newcomer's wake-up take. Where nothing wakes the newcomer but its next heartbeat, it may have to pass the
    partition on by then: there (`each_move`) each move has that time of its own."""

    def __init__(self, wait_most_s: float | None, *, each_move: bool = False) -> None:
        self.calm = True
        self._each_move = each_move
        self._wait_most_s = wait_most_s
        """None where handlers are too slow for the stream, so that events wait for each other."""
        self._begun: Counter[tuple[PartitionId, int]] = Counter()
        self._appended_s: dict[tuple[PartitionId, int], float] = {}
        self._next: dict[PartitionId, int] = {}
        """The first event that has not begun, once one has."""
        self._moved_s: dict[PartitionId, float] = {}

    def appended(self, partition: PartitionId, sequence: int, now_s: float) -> None:
        self._appended_s[partition, sequence] = now_s

    def handed_over(self, partition: PartitionId, now_s: float) -> None:
        if self._each_move and self.calm and (first := self._next.get(partition)) is not None:
            self._look((partition, first), now_s)
            self._moved_s[partition] = now_s

    def _look(self, place: Place, now_s: float) -> None:
        since_s = max(self._appended_s.get(place, now_s), self._moved_s.get(place[0], 0.0))
        if self._wait_most_s is not None and now_s - since_s > self._wait_most_s:
            raise Violation(
                f"partition {place[0]}: {place[1]} waited {now_s - since_s:.1f} s though nothing went wrong"
            )

    def begins(self, places: Sequence[Place], now_s: float) -> None:
        if not self.calm:
            return
        self._look(places[0], now_s)
        for place in places:
            self._next[place[0]] = place[1] + 1
            self._begun[place] += 1
            if self._begun[place] > 1:
                raise Violation(f"partition {place[0]}: {place[1]} was handled twice though nothing went wrong")


class SeekIsObeyed:
    """A seek that was answered has moved the record, and the next call is that of the event after it."""

    def __init__(self) -> None:
        self._next: dict[tuple[PartitionId, int], int] = {}
        self._moved: set[tuple[PartitionId, int]] = set()
        self._epochs: set[tuple[PartitionId, int]] = set()

    def moved(self, partition: PartitionId, epoch: int, place: int) -> None:
        """The record was moved there, under the epoch that the seek took. (Notes may be written there later.)"""
        if (partition, epoch) not in self._epochs:
            self._epochs.add((partition, epoch))
            self._next[partition, epoch] = place + 1
        self._moved.add((partition, place))

    def begins(self, partition: PartitionId, epoch: int, first: int) -> None:
        self._epochs.add((partition, epoch))  # a seek in doubt may have a new epoch and nothing else: notes follow
        expected = self._next.pop((partition, epoch), first)
        if first != expected:
            raise Violation(f"partition {partition}: after a seek {first} came, and not {expected}")

    def filed(self, partition: PartitionId, epoch: int, sequence: int) -> None:
        """It went into the dead letters, as others of its key before it: the next one may follow."""
        if self._next.get((partition, epoch)) == sequence:
            self._next[partition, epoch] = sequence + 1

    def answered(self, partition: PartitionId, place: int) -> None:
        if (partition, place) not in self._moved:
            raise Violation(f"partition {partition}: a seek to {place} was answered, but nothing was moved")


class Settles:
    """7. With no more faults, every partition has a live owner, shares are even, and then nothing moves."""

    def uneven(
        self,
        leases: dict[PartitionId, Lease],
        alive: set[Owner],
        partitions: set[PartitionId],
        loads: Loads | None = None,
        least: Mapping[Owner, int] | None = None,
    ) -> str | None:
        """What is not settled yet; None when all is. By count, or by true `loads`. `least`: who wants so many."""
        if unowned := self.unowned(leases, alive, partitions):
            return unowned
        if loads is not None:
            return self._overloaded(leases, alive, partitions, loads)
        counts = Counter(dict.fromkeys(alive, 0))
        counts.update(lease.owner for lease in leases.values() if lease.owner is not None)
        return self._unfair(counts, {owner: (least or {}).get(owner, 0) for owner in alive})

    def unowned(self, leases: dict[PartitionId, Lease], alive: set[Owner], partitions: set[PartitionId]) -> str | None:
        for partition in sorted(partitions):
            lease = leases.get(partition)
            if lease is None or lease.owner is None:
                return f"nobody owns partition {partition}"
            if lease.owner not in alive:
                return f"partition {partition} belongs to {lease.owner}, who is not alive"
        return None

    def _unfair(self, counts: Counter[Owner], least: Mapping[Owner, int]) -> str | None:
        """Beyond what each wants at least, counts differ by one at most. Where there are too few for all, nobody has
        more than that, and one alone has a part of it."""
        if sum(least.values()) > counts.total():
            parts = [owner for owner, count in counts.items() if 0 < count < least[owner]]
            greedy = any(count > least[owner] for owner, count in counts.items())
            return f"{dict(counts)} of {dict(least)}: too few for all" if greedy or len(parts) > 1 else None
        if any(counts[owner] < wanted for owner, wanted in least.items()):
            return f"somebody has too few: {dict(counts)} of {dict(least)}"
        spare = [count for owner, count in counts.items() if count > least[owner]]
        if spare and max(spare) - min(counts.values()) > 1:
            return f"shares are uneven: {dict(counts)}"
        return None

    def _overloaded(
        self, leases: dict[PartitionId, Lease], alive: set[Owner], partitions: set[PartitionId], loads: Loads
    ) -> str | None:
        owners = {name: lease.owner.id for name, lease in leases.items() if lease.owner is not None}
        carried = loads.carried(owners, [owner.id for owner in alive])
        mean = loads.mean(partitions, len(alive))
        most, bar = max(carried.values()) / mean, loads.bar(partitions, len(alive)) / mean
        if most > bar + MEASURED:
            return f"the most loaded has {most:.2f} of the mean load, the bar is {bar:.2f}: {carried}"
        return None


class Generations:
    """13. Across splits and merges the events of a key are handled in their order: none of a child before all those of
    its parents."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Place]] = defaultdict(list)

    def appended(self, key: str, place: Place) -> None:
        self._waiting[key].append(place)

    def ended(self, partition: PartitionId, reached: int | None, newest: int) -> None:
        """The lease says so. A partition that could be read to its end is checkpointed there."""
        if reached != newest:
            raise Violation(f"partition {partition} has ended at {reached}, but its last event is {newest}")

    def begins(self, places: Sequence[tuple[str, Place]], is_over: Callable[[PartitionId, int], bool]) -> None:
        """One call. `is_over`: handled, or never the group's."""
        together = {place for _, place in places}
        for key, place in places:
            waiting = self._waiting[key]
            for earlier in waiting[: waiting.index(place)] if place in waiting else ():
                if earlier not in together and not is_over(*earlier):
                    raise Violation(f"{place} is handled before {earlier}, both of key {key}: (partition, sequence)")

    def handled(self, key: str, place: Place) -> None:
        if place in self._waiting[key]:
            self._waiting[key].remove(place)


class PoisonIsFiled:
    """9. What is in the dead letters belongs there: it failed alone as often as it may, or its owners ended in it, or
    it followed an open dead letter of its key. What is said to be redriven was handled. (That no checkpoint passes
    poison before it is filed, NothingLost sees.)
    """

    def __init__(self, attempts: int | None, *, lost: bool) -> None:
        self._attempts = attempts
        self._lost = lost
        """The store may lose writes, and with them what it knew of parked keys."""
        self._failures: Counter[tuple[PartitionId, int]] = Counter()
        self._ended: Counter[tuple[PartitionId, int]] = Counter()
        self._handled: set[tuple[PartitionId, int]] = set()
        self.found: set[tuple[PartitionId, int]] = set()

    def handled(self, partition: PartitionId, sequence: int) -> None:
        self._handled.add((partition, sequence))

    def redriven(self, partition: PartitionId, sequence: int) -> None:
        if (partition, sequence) not in self._handled:
            raise Violation(f"{(partition, sequence)} is said to be redriven, but nothing has handled it")

    def failed(self, partition: PartitionId, sequence: int) -> None:
        """A call with this event alone failed."""
        self._failures[partition, sequence] += 1

    def owner_ended(self, partition: PartitionId, sequence: int) -> None:
        """Its owner died, or fell silent, in a call with this event alone."""
        self._ended[partition, sequence] += 1

    def filed(self, partition: PartitionId, dead_letter: DeadLetter, earlier: Iterable[Filed], *, owes: bool) -> None:
        """`owes`: a redrive was asked for and is not done, so that its owner cannot know of the latest verdicts."""
        sequence = dead_letter.event.sequence or 0
        place = (partition, sequence)
        self.found.add(place)
        if dead_letter.reason == "poison" and self._failures[place] < (self._attempts or 1):
            raise Violation(f"{place} is in the dead letters, but it failed only {self._failures[place]} times")
        if dead_letter.reason == "killed" and self._ended[place] < DEATHS_MOST:
            raise Violation(f"{place} is said to have killed its owners, but {self._ended[place]} ended in it")
        if dead_letter.reason == "parked" and not any(self._precedes(one, dead_letter, owes=owes) for one in earlier):
            raise Violation(f"{place} was parked, though no earlier event of its key is an open dead letter")

    def _precedes(self, one: Filed, dead_letter: DeadLetter, *, owes: bool) -> bool:
        is_open = one.is_open or owes or self._lost
        before, after = one.dead_letter.event, dead_letter.event
        return is_open and before.key == after.key and (before.sequence or 0) <= (after.sequence or 0)


class KeyOrder:
    """10. With dead_letter_order="key", the events of a key succeed for the first time in their order, redriven ones
    included: none before an earlier one that was neither handled nor dropped."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[PartitionId, str], list[int]] = defaultdict(list)

    def appended(self, partition: PartitionId, key: str | None, sequence: int) -> None:
        if key is not None:
            self._waiting[partition, key].append(sequence)

    def handled(self, partition: PartitionId, key: str | None, sequence: int, first: int) -> None:
        """`first`: what comes up to it was never the group's."""
        waiting = self._waiting.get((partition, key or ""), [])
        if key is None or sequence not in waiting:
            return
        overtaken = [one for one in waiting if first < one < sequence]
        if overtaken:
            raise Violation(f"partition {partition}: {sequence} was handled before {overtaken[0]}, both of key {key}")
        waiting.remove(sequence)

    def dropped(self, partition: PartitionId, key: str | None, sequence: int) -> None:
        waiting = self._waiting.get((partition, key or ""), [])
        if sequence in waiting:
            waiting.remove(sequence)


class Halves:
    """11. After a batch failed, the next call of its epoch takes at most half of it, from the same event on. (That no
    event is handled twice in an epoch, InOrder sees.)"""

    def __init__(self) -> None:
        self._failed: dict[tuple[PartitionId, Hashable], tuple[int, int]] = {}

    def failed(self, partition: PartitionId, epoch: Hashable, first: int, size: int) -> None:
        if size > 1:
            self._failed[partition, epoch] = (first, size)

    def begins(self, partition: PartitionId, epoch: Hashable, first: int, size: int) -> None:
        before = self._failed.pop((partition, epoch), None)
        if before is not None and (first != before[0] or size > before[1] // 2):
            raise Violation(f"partition {partition}: after {before} failed, {(first, size)} was tried: (first, events)")


class DeadlyIsBounded:
    """12. An event that ends its process does not walk through the fleet: so many owners without progress, and so many
    who tried it alone. The first count begins anew when the partition has advanced, but not for ever: so many owners
    end there altogether, and one whose successor passed the partition on before it could count."""

    def __init__(self) -> None:
        self._deaths: Counter[tuple[PartitionId, int]] = Counter()
        self._advances: Counter[tuple[PartitionId, int]] = Counter()

    def died(self, partition: PartitionId, sequence: int) -> None:
        place = (partition, sequence)
        self._deaths[place] += 1
        most = min(FRUITLESS_MOST * (1 + self._advances[place]), ENDS_MOST + 1) + DEATHS_MOST
        if self._deaths[place] > most:
            raise Violation(f"{place} has ended {self._deaths[place]} processes, {most} are the most")

    def advanced(self, partition: PartitionId) -> None:
        """An epoch has ended in which its record had moved."""
        for place in self._deaths:
            if place[0] == partition:
                self._advances[place] += 1
