"""The frozen records that everything else speaks in: what a stream is, and what instances agree on.

Nothing is decided here and nothing is fetched here. Times are seconds as floats and carry `_s` (or `_us` for
microseconds); wall-clock times end in `_at` and are for people only: no decision compares them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PartitionId: TypeAlias = str

EPOCH_HISTORY_BITS = 32
"""An epoch is (history << 32) + a count, so epochs of a later history are above all of an earlier one."""

MICROSECONDS = 1_000_000

CHARGES_HEARTBEATS = 10
"""A member tells what it is charged with no more than every so many heartbeats."""


class Position(Struct, frozen=True):
    """Where an event is in its partition. Reading goes on *after* a position.

    `offset` is the source's own opaque text; `sequence` orders, where the source has such a number.
    """

    offset: str
    sequence: int | None = None

    def __str__(self) -> str:
        return self.offset


BEGINNING = Position("-1", -1)
"""Before the first event there ever was."""


class Event(Struct, frozen=True, array_like=True, gc=False):
    """One event. A producer fills body, key and properties; the source adds where and when it was stored."""

    body: bytes
    key: str | None = None
    properties: dict[str, Any] | None = None
    sequence: int | None = None
    enqueued_us: int = 0
    offset_text: str | None = None
    """The source's offset, where it is more than the sequence in decimal."""

    @property
    def offset(self) -> str:
        return str(self.sequence) if self.offset_text is None else self.offset_text

    @property
    def position(self) -> Position:
        return Position(self.offset, self.sequence)

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self.enqueued_us / MICROSECONDS, UTC)


class Partition(Struct, frozen=True):
    """One partition of a hub as its source describes it."""

    id: PartitionId
    parents: tuple[PartitionId, ...] = ()
    """Whom it follows, after a split or a merge: it begins when all of them have ended. They never change."""


class Batch(Struct, frozen=True):
    """What one read returned."""

    events: Sequence[Event]
    resume: Position
    """Going on after this position neither repeats nor skips anything of this batch."""
    size_bytes: int = 0
    ended: tuple[Partition, ...] | None = None
    """Not None when this was the last batch, since the partition has ended (split, merged): its children, if any."""
    is_held_back: bool = False
    """There may be more by now, which nobody may have yet: see `Delaying`."""


class Delay(Struct, frozen=True):
    """Events are there, and nobody may have them yet."""

    seconds: float
    """How long the first of them has waited."""
    why: str
    """In words, with how many they are, and for whom they wait."""


class Bounds(Struct, frozen=True):
    """The oldest and newest positions of a partition; None is unknown, and never shown as zero.

    `oldest` is the position of the oldest event that can still be read, `newest` that of the newest. A partition
    that is empty now has a `newest` that is before its `oldest`; a log that never held an event has BEGINNING there.
    """

    oldest: Position | None = None
    newest: Position | None = None
    newest_at: datetime | None = None


MODE = " mode="
USUAL_MODE = "latest"
"""What people call the way that has no name in an `Identity`."""


class Identity(Struct, frozen=True):
    """Which hub this is. `made` changes when a hub of the same name is deleted and made again."""

    namespace: str
    hub: str
    made: str
    mode: str = ""
    """How it is read, where one way does not go on where another stopped: "all" for all versions and deletes of a
    change feed. "": as usual."""

    @property
    def source(self) -> str:
        """What a group keeps of it."""
        return f"{self.made}{MODE}{self.mode}" if self.mode else self.made


def made_and_mode(source: str) -> tuple[str, str]:
    """Of what a group keeps: which making of its hub, and how that is read, as people call it."""
    made, _, mode = source.partition(MODE)
    return made, mode or USUAL_MODE


class Convention(Struct, frozen=True, kw_only=True):
    """How processors of another make keep the leases of a hub, for those that call themselves by a group's name."""

    prefix: str
    """How the ids of all their documents begin."""
    prefix_by_names: str = ""
    """How those of some of them do, which go by the names of things instead of by their numbers; "": none do."""
    ending: str = ""
    """How `prefix` ends, whatever the name and the host are before it: so end all that are for this very hub."""
    mode: str = ""
    """What they write there of how the hub is read."""
    spans: Mapping[PartitionId, tuple[str, str]] = {}
    """Where the partitions that there are begin and end, in their own terms."""


class Group(Struct, frozen=True):
    """A consumer group. Groups are independent of each other."""

    namespace: str
    hub: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.name}"


class Owner(Struct, frozen=True):
    """One start of one instance: an id comes back after a restart, an incarnation never does."""

    id: str
    incarnation: int
    """0: a processor of another make, whose starts nobody counts."""

    def __str__(self) -> str:
        return f"{self.id}#{self.incarnation}"


class Member(Struct, frozen=True, kw_only=True):
    """An instance as it appears in the store. The store counts `incarnation` and `mark`; the rest it is told."""

    id: str
    nonce: str
    """Random for each start: the store tells a first heartbeat that is repeated from a second process with the same id.
    """
    incarnation: int = 0
    """0 until the store has given one."""
    mark: int = 0
    """Moves with every heartbeat."""
    ttl_s: float
    heartbeat_s: float = 2.0
    weight: float = 1.0
    max_partitions: int | None = None
    min_partitions: int | None = None
    retiring: bool = False
    """Drains and passes on all it has; gets nothing more."""
    leaving: bool = False
    """The last heartbeat: remove my row, if no lease names me."""
    version: str = ""
    host: str = ""
    pid: int = 0
    started_at: float = 0.0
    source: str = ""
    """The hub that it reads, and how: see `Identity.source`."""
    load: dict[PartitionId, float] | None = None
    charges: dict[str, float] | None = None
    """What services have counted for this start, of each kind of operation; None: nothing yet. It is up to
    CHARGES_HEARTBEATS heartbeats old."""
    heartbeat_at: float = 0.0
    """When the store had its last heartbeat, by the store's wall clock. For people."""
    foreign: bool = False
    """A processor of another make that uses the store's layout. The store makes this row from what it owns, with
    incarnation 0; it neither drains nor hands over, and `ttl_s` is its own expiry."""

    @property
    def owner(self) -> Owner:
        return Owner(self.id, self.incarnation)

    @property
    def seat(self) -> Seat:
        """As the planner sees it."""
        return Seat(self.id, self.weight, self.max_partitions, self.min_partitions)


class Lease(Struct, frozen=True, kw_only=True):
    """Who owns a partition."""

    partition: PartitionId
    owner: Owner | None = None
    epoch: int = 0
    revision: int = 0
    """The group's revision at the last change of this lease; what compare-and-set compares. 0: there is none yet."""
    history: int = 0
    """The store's history in which it was written."""
    ttl_s: float = 0.0
    """The owner's, written by the swap that made it the owner: a restart may overwrite the member's row."""
    late: bool = False
    """The partition appeared after the group began, so it starts at its beginning whatever the start position is."""
    ended: bool = False
    """All of it is handled, or its children go on from its checkpoint: nobody will own it any more."""
    reason: str = ""
    changed_at: float = 0.0
    settled: bool = True
    """False: it was taken from a processor of another make that may still be handling it. It is not to be begun yet."""


class Cursor(Struct, frozen=True):
    """How much of a store's group an instance has seen. Opaque to all but stores, except for `history`."""

    lineage: str
    """Random for each making of the store: an emptied store is another one under the same name."""
    history: int
    revision: int
    stamp: str = ""
    """Names this very revision, where a store can forget one and make another of the same number."""


class Wish(Struct, frozen=True):
    """What a person asked of a group: who, why and when."""

    by: str = ""
    why: str = ""
    at: float = 0.0
    visit: str = ""
    """Not a person's own: a visit (a seek, say) pauses for as long as it takes, and this tells which one it was."""
    damaged: bool = False
    """Nor this: the store cannot read what it keeps of the partition, says why, and ends it when it can. It is never
    written down."""


EVERYTHING: PartitionId = ""
"""In place of a partition: the whole group."""


class GroupState(Struct, frozen=True):
    """What holds for the whole group. It travels with every heartbeat, so it stays small."""

    source: str = ""
    """The hub that the group's checkpoints belong to, and how it is read: see `Identity.source`."""
    pauses: dict[PartitionId, Wish] = {}
    """Partitions that an operator paused; EVERYTHING is all of them. Nobody owns a paused partition."""
    retired: dict[str, Wish] = {}
    """Incarnations (as text) that were asked to retire."""
    redrives: dict[PartitionId, int] = {}
    """How often a redrive of dead letters was asked for."""

    def pause_of(self, partition: PartitionId) -> Wish | None:
        """Why this partition is paused; None when it is not."""
        return self.pauses.get(partition) or self.pauses.get(EVERYTHING)


class Steering(Struct, frozen=True, kw_only=True):
    """A change of a group's state, made in one step whatever others change at the same time."""

    pause: tuple[PartitionId, ...] = ()
    """EVERYTHING, or partitions. What is paused already keeps its first wish, but a visit's gives way to a person's."""
    resume: tuple[PartitionId, ...] = ()
    """EVERYTHING ends the pause of the whole group and of each partition."""
    visit: str = ""
    """This visit pauses; and of what it names to resume, just what still carries its own wish is resumed."""
    retire: tuple[Owner, ...] = ()
    redrive: tuple[PartitionId, ...] = ()


class Action(Struct, frozen=True, kw_only=True):
    """Something that a person did to a group, for the record."""

    kind: str
    """pause, resume, seek, delete, retire, redrive, drop; or a step of one: `pause for seek`."""
    by: str
    why: str
    what: str
    """A sentence: what was done, to which partitions, from where to where."""
    at: float = 0.0
    """By the store's wall clock, which fills it in."""

    @property
    def is_step(self) -> bool:
        """Done in the course of another one: a seek pauses what it moves. Nobody asked for it by itself."""
        return " for " in self.kind


class Ledger(Struct, frozen=True, kw_only=True):
    """What a heartbeat answers: what changed since the cursor that it was given."""

    cursor: Cursor
    me: Member | None
    """The beating member as stored; None once it has left, or when nobody heartbeats (a peek)."""
    whole: bool
    """`leases` are all leases of the group; otherwise those that changed."""
    leases: tuple[Lease, ...] = ()
    roster: bool = True
    """`members` are all members. Otherwise nobody joined, left or changed, and `members` are those (but for me)
    whose mark stood still since the cursor; everybody else's has moved."""
    members: tuple[Member, ...] = ()
    state: GroupState = GroupState()
    began: int = 0
    """The store's history in which the group began, as far as any heartbeat has shown. In a later one, writes of this
    group may be lost.
    """
    epoch_floor: int = 0
    """Above all epochs of the groups of this name that were deleted; those of leases begin above it. 0: none was."""


class Change(Struct, frozen=True, kw_only=True):
    """One wish to change a lease. It happens whole, and only if everything it names is still so."""

    partition: PartitionId
    revision: int
    """The lease's revision as seen; 0 when there is no lease yet."""
    history: int
    """The store's history as seen."""
    owner: Owner | None
    """The owner afterwards, who must have a member row of this incarnation. None releases."""
    epoch: int
    ttl_s: float = 0.0
    reason: str = ""
    still: tuple[Owner, int | None] | None = None
    """For a takeover: the silent owner and the mark that stood still (None: its row is gone or overwritten)."""
    late: bool = False
    ended: bool = False


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one change or checkpoint. `why` says in a word what refused it."""

    partition: PartitionId
    ok: bool
    why: str = ""
    lease: Lease | None = None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Up to `position`, all of the partition is handled. Written under the epoch that sealed it."""

    partition: PartitionId
    epoch: int
    position: Position
    ordinal: int
    """How many events were handled up to here, over all owners: what orders two checkpoints, never their offsets."""
    edition: int = 0
    """Counts the records that an owner sends under one epoch: the order of those with equal ordinals. A seal sets it to
    0."""
    notes: dict[str, Any] = {}
    """Failure state that outlives its owner; small."""
    event_at: float = 0.0
    """When the last handled event was enqueued; 0: unknown. For people: how far behind this is in time."""
    begun: int = 0
    """The ordinal when the record was last sealed: an epoch that leaves it there made no progress."""
    fruitless: int = 0
    """How many epochs in a row ended unplanned and without progress. The store counts `begun` and this one."""
    effects: bool = False
    """A transaction wrote it once: the application's effects live beside it, and go back when it does."""
    effects_to: int = 0
    """In a commit: the ordinal that its owner knows the record to have, with effects beside it. A record that stands
    below has lost some of them, and is not moved. Not kept."""
    changed_at: float = 0.0


class Move(Struct, frozen=True, kw_only=True):
    """One change of a partition's owner, with its reason, for people."""

    partition: PartitionId
    before: str | None
    after: str | None
    epoch: int
    reason: str
    at: float

    @property
    def kind(self) -> str:
        """The first words of the reason: claimed, taken over, taken again, handed over, released, ended, seek."""
        return self.reason.partition(":")[0]


class DeadLetter(Struct, frozen=True, kw_only=True, tag="dead_letter"):
    """An event that could not be handled, with all that is needed to understand it and to handle it later.

    Its identity is (group, partition, position), so that filing it again after a crash makes no second one.
    """

    partition: PartitionId
    event: Event
    reason: str
    """poison: it failed too often; killed: it ended its process; parked: it follows another one of its key."""
    error: str
    traceback: str = ""
    attempts: int = 0
    instance: str = ""
    epoch: int = 0
    at: float = 0.0

    @property
    def id(self) -> str:
        """Unique in its group: partition@offset."""
        return f"{self.partition}@{self.event.offset}"


class Verdict(Struct, frozen=True, kw_only=True, tag="verdict"):
    """What became of a dead letter, or shall: again (it is to be redriven), redriven, failed (a redrive did) or
    dropped.
    """

    dead_letter: str
    """The dead letter's id."""
    kind: str
    by: str = ""
    why: str = ""
    at: float = 0.0
    number: int = 0
    """Which try it is, from 1: `again` and its answer have the same."""


DeadLetterRecord: TypeAlias = "DeadLetter | Verdict"
"""What a log of dead letters holds. A dead letter's state follows from all records that name it."""


class Seat(NamedTuple):
    """A member as the planner sees it: what it may own, and what it counts."""

    id: str
    weight: float = 1.0
    max_partitions: int | None = None
    min_partitions: int | None = None
    """To have at least so many, while there are enough for all who want that."""


class Assignment(NamedTuple):
    """Where a plan wants a partition, and why."""

    partition: PartitionId
    before: str | None
    after: str | None
    reason: str


class Plan(Struct, frozen=True):
    """Who should own what: `owners` for every partition, and each difference from what is as a move."""

    owners: Mapping[PartitionId, str | None]
    moves: tuple[Assignment, ...]
    shares: Mapping[str, int]


def epoch_parts(epoch: int) -> tuple[int, int]:
    """The history and the count of an epoch."""
    return epoch >> EPOCH_HISTORY_BITS, epoch & ((1 << EPOCH_HISTORY_BITS) - 1)


def next_epoch(epoch: int, history: int) -> int:
    """The lowest epoch above `epoch` that belongs to `history` or a later one."""
    return max(epoch, history << EPOCH_HISTORY_BITS) + 1


def restore_epoch(history: int) -> int:
    """Above all epochs of older histories and below all of this one: no lease ever has it, since counts begin at 1."""
    return history << EPOCH_HISTORY_BITS


def show_epoch(epoch: int) -> str:
    """For people: the count alone while the store never lost its history."""
    history, count = epoch_parts(epoch)
    return f"{history}.{count}" if history else str(count)
