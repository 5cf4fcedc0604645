"""The protocols at the edges: where events come from, where instances agree, what time it is.

The contracts stand here; implementations add only what is their own. All methods are called from one event loop.
Any of them may be cancelled, and may raise `Transient`: the caller must then assume that the request *may still take
effect*, now or later. Drivers' own errors never pass these borders; they are translated, with `from`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from evenflow.errors import LeaseLost
    from evenflow.model import (
        Action,
        Batch,
        Bounds,
        Change,
        Checkpoint,
        Convention,
        Cursor,
        DeadLetterRecord,
        Delay,
        Event,
        Group,
        GroupState,
        Identity,
        Ledger,
        Member,
        Move,
        Outcome,
        Partition,
        PartitionId,
        Position,
        Steering,
    )

    Start: TypeAlias = str | datetime | Position
    """ "earliest", "latest", a time, or a position to go on after."""


class Clock(Protocol):
    """Time and chance, so that the simulated world can bend both."""

    def now(self) -> float:
        """Seconds on this instance's own monotonic clock, which runs on through suspend."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for people. No decision compares two of them."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def nonce(self) -> str:
        """A fresh random name."""
        ...

    def chance(self) -> float:
        """A random number, 0 <= x < 1, for jitter."""
        ...


@runtime_checkable
class Source(Protocol):
    """A hub that can be read."""

    async def identity(self) -> Identity:
        """Which hub this is; `made` changes when the hub is deleted and made again. A group that has read it in one
        `mode` is refused to whoever reads it in another."""
        ...

    async def partitions(self) -> Sequence[Partition]:
        """All partitions there are now. They may grow, split and merge; an absence removes nothing.

        A child names its parents, and is there as soon as one of their readers says that it has ended. A parent that
        can be read to its end stays as long as its events do; see `Vanishing` for others.
        """
        ...

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        """Turn a start into the concrete position to go on after, which does not change as events arrive.

        "earliest" is just before the oldest event, "latest" is the newest, a time is just before the first event
        enqueued at or after it. A position is checked: PositionOutOfRange when it lies outside the log. A source
        may know further texts, which have a colon (`group:NAME`); Misconfigured for those that it does not know.
        """
        ...

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        """A reader of all events after `after`, in order. PositionGone when retention removed some of them.

        Where the source can, it disconnects readers of a lower epoch, and of the same one. Epoch 0 is what readers
        have that know of no epochs; it comes where the group is `Shared`.
        """
        ...

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]: ...

    async def aclose(self) -> None: ...


class Reader(Protocol):
    """Reads one partition, forward. Used by one task at a time."""

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        """The next events, at least one unless `max_wait_s` passes without any: then an empty batch.

        Returns as soon as there is something. At most `max_events`; at most about `max_bytes`, but at least one
        event however large it is. A cancelled read loses nothing: the next one returns what it would have.
        The last batch of a partition that has ended says so, also to whoever opens it at its end, and later.
        `LeaseLost` when the source has given the partition to another reader.
        """
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Revocable(Protocol):
    """A reader that learns by itself that the source has given its partition to another one, also between two reads."""

    async def revoked(self) -> LeaseLost:
        """Returns when it has."""
        ...


@runtime_checkable
class Vanishing(Protocol):
    """A source whose partitions cannot be read any more once they have split or merged: their children have it all.

    So a reader may say that its partition has ended before it gave all of it. Whoever asks for a partition that is
    gone is not refused: it resolves, its bounds are unknown, and a reader of it says at once that it has ended. Its
    children name all of their ancestors that the source knows as parents.
    """

    async def child_start(self, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
        """Where a child begins: just before the first event that its parents had not handled.

        `after` has the checkpoints of those parents that the group had; of several generations the youngest counts,
        since it may have been rewound. Their events up to there may come again only where it cannot be told otherwise.
        """
        ...


@runtime_checkable
class Grouped(Protocol):
    """A source that knows consumer groups itself: its readers belong to one."""

    def of_group(self, name: str) -> Source:
        """The same hub, as the consumer group of this name reads it. Closing the source it came from closes it."""
        ...


@runtime_checkable
class Mirrored(Protocol):
    """A source that shows a group's checkpoints to tools of its own world."""

    def committed(self, positions: Mapping[PartitionId, Position]) -> None:
        """These checkpoints are in the store now. Returns at once and never raises: a mirror is for people."""
        ...


@runtime_checkable
class Dated(Protocol):
    """A source that can tell how old an event is without a reader: then lag in time is exact."""

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime | None]:
        """When the first event after each position was enqueued; who has none, or cannot be read, is left out. None:
        it is certain that there is none, though sequences may tell otherwise."""
        ...


@runtime_checkable
class Delaying(Protocol):
    """A source whose readers may have to wait with events that are there, until somebody else is at its end.

    Its bounds count such events. A batch without events says so (`Batch.is_held_back`) where there may be any.
    """

    async def held_back(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Delay]:
        """Those of them that have such events now."""
        ...


@runtime_checkable
class Merging(Protocol):
    """A source whose partitions merge. A place may then be in several logs at once, each with sequences of its own."""

    def sequences(self, position: Position) -> Sequence[int]:
        """Of all its pieces; that of the position itself is the least of them."""
        ...


@runtime_checkable
class Naming(Protocol):
    """A source whose events are of things that have a name, as documents have an id."""

    def name_of(self, event: Event) -> str:
        """For people, who look for it there; "" where it has none."""
        ...


@runtime_checkable
class Charged(Protocol):
    """A source or a store whose service counts what it is asked for, as Cosmos DB does in request units."""

    def charges(self) -> Mapping[str, float]:
        """The units of all answers so far, of each kind of operation."""
        ...


@runtime_checkable
class Decoding(Protocol):
    """A source whose bodies are documents, and which knows more of them than JSON says: which numbers are exact."""

    def decoder(self) -> Callable[[bytes], Any]:
        """Makes a document of a body, by what was known when the source was last asked for its partitions: so it is
        asked for anew with each call of a handler. (Not with each body, since that would cost.)"""
        ...


@runtime_checkable
class Ranged(Protocol):
    """A source whose partitions are ranges of a space of keys, as those of Cosmos DB are."""

    def range_of(self, partition: PartitionId) -> tuple[str, str] | None:
        """From where it goes, to before where; None while that is not known. It never changes."""
        ...


@runtime_checkable
class Conventional(Protocol):
    """A source whose hub processors of another make read, too, with a convention for their leases."""

    async def convention(self, name: str) -> Convention:
        """For a group of this name; its `spans` are those of the partitions that there are now."""
        ...


@runtime_checkable
class Writable(Source, Protocol):
    """A hub that can be written to, too."""

    async def send(self, events: Sequence[Event]) -> object:
        """Append events, those of one key in one partition and in this order; returns once they are durable."""
        ...


@runtime_checkable
class Checkable(Protocol):
    """What is to be written to much later, such as a target of dead letters, and can tell beforehand whether it can."""

    async def check(self) -> None:
        """Misconfigured when nothing can be written there: it is not there, or does not let us. Writes nothing."""
        ...


@runtime_checkable
class Store(Protocol):
    """Where instances agree: members, leases, checkpoints. Every method is atomic per lease or checkpoint."""

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        """One round trip: I am alive, and what has changed. The ledger is read no earlier than the heartbeat took
        effect.

        Creates the group and the member's row when they are missing; the first heartbeat of a nonce gets a new
        incarnation, higher than every one before, and replaces the row of an older one. `Superseded` when a newer
        incarnation of this id has beaten. `since` None, of another lineage or history, or too old: everything.
        A `since` of another lineage proves that history was lost: the store's history then rises above it.
        With `member.leaving` the row is removed, unless a lease names this incarnation; `ledger.me` tells. A heartbeat
        that comes later with the nonce of one who has left changes nothing, and `ledger.me` is None.
        `ledger.began` is the history in which the group was made, or that of the oldest `since` ever brought.
        """
        ...

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        """Compare and set, each change on its own, all that is checked for one in one atomic step:

        - the store's history is `change.history`, and the lease's revision is `change.revision` (0: no lease);
        - `change.still`: the mark of that owner's incarnation is what it was;
        - `change.owner`: that incarnation has a member row;
        - the epoch is above the group's `epoch_floor`.
        A success gives the lease a new revision, keeps the reason, and wakes the new owner where the store can.
        An outcome that refuses has the lease as it is, and in `why` one of: revision, history, epoch, mark, owner.
        """
        ...

    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        """A new owner's first act: write the epoch into the checkpoint record, and return the record.

        Creates it as `default` when there is none. An existing record keeps its position. `LeaseLost` when the record
        has a higher epoch, when the epoch is below the group's `epoch_floor`, and when there is no record and the epoch
        is of an older history than the store's. Sealing again under the same epoch only reads. A new epoch begins with
        `edition` 0.

        A seal counts whether the epoch before it got anywhere: `begun` becomes the ordinal, and `fruitless` 0 if that
        moved since the last seal; if not, one more when `unplanned` (the partition was taken over).
        """
        ...

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        """Move records forward, each under the very epoch that sealed it; refused (`why` is "epoch") otherwise.

        A lower ordinal than the record's (or an equal one and a lower `edition`) changes nothing and is still ok: a
        late commit that was overtaken. `begun` and `fruitless` stay as the seal wrote them, and `effects` once it is
        true.

        In a history above 0, what an instance remembers of an older one is restored: under an epoch up to
        `restore_epoch(history)`, where the record is missing, or lower by (epoch, ordinal, edition) and without
        `effects`. Nothing below the group's `epoch_floor` counts.
        """
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Watchable(Protocol):
    """A store that can wake an instance before its next heartbeat."""

    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the event loop when a lease was given to `instance`, or the group's state changed.

        Wake-ups may be spurious, may be merged, and may be missed now and then. Returns what ends it.
        """
        ...


@runtime_checkable
class Shared(Protocol):
    """A store whose groups may have members that are not ours: processors of another make that use its layout."""

    @property
    def shared(self) -> bool:
        """Whether to reckon with such members. Readers are opened with epoch 0 then, as theirs are."""
        ...


@runtime_checkable
class Conforming(Protocol):
    """A store that can keep leases by the convention of processors of another make."""

    def conform(self, group: Group, convention: Convention) -> None:
        """Said before anything else is asked for this group, and again when partitions appear. Nothing is sent."""
        ...

    async def foreign(self) -> Mapping[str, int]:
        """Under which prefixes leases are kept that are of none of the groups, as they were last listed, and how many.

        Mostly processors of another make keep them: they have leases, and no group."""
        ...


@runtime_checkable
class Documented(Protocol):
    """A store whose leases people can see, and edit, with tools of its own."""

    def lease_at(self, group: Group, partition: PartitionId) -> str:
        """For people: where a partition's lease is, with the field that names the partition. Nothing is asked."""
        ...


@runtime_checkable
class Operable(Protocol):
    """A store that people can look into and clean up."""

    async def groups(self) -> Sequence[Group]: ...

    async def peek(self, group: Group) -> Ledger | None:
        """The whole ledger without a heartbeat; None when there is no such group."""
        ...

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]: ...

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        """The last changes of owners, newest first. Only so many are kept."""
        ...

    async def delete(self, group: Group) -> None:
        """Forget the group with its leases and checkpoints. The caller makes sure that nobody runs in it.

        Of its name an epoch floor remains, above all epochs of these leases and checkpoints: should somebody run after
        all, a process that was stopped for instance, its requests count for nothing in a group that is made again.
        """
        ...


@runtime_checkable
class Steerable(Protocol):
    """A store through which people steer a group."""

    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        """Change the group's state in one step, keep the action, wake every instance, and return the new state.

        The action's `by`, `why` and the store's time become the wish. Misconfigured when there is no such group.
        """
        ...

    async def record(self, group: Group, action: Action) -> None:
        """Keep an action that changes no state. It outlives the group's deletion."""
        ...

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        """The last actions, newest first. Only so many are kept."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store whose database can hold an application's effects beside its checkpoints."""

    def transaction(
        self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float
    ) -> AbstractAsyncContextManager[Transaction]:
        """Effects and `checkpoint` in one transaction: all of it is durable when the block has ended, or none.

        The record must carry the checkpoint's epoch, also when the transaction ends, and must not stand below the
        ordinal `committed`, which the owner knows to have been written (`LeaseLost`: writes were lost); nor beyond
        `start`, where the batch begins (`AlreadyDone`: an earlier try took effect). It has `effects` afterwards.

        Whatever leaves the block by an exception rolls it back. So does the store by itself, `limit_s` after this
        was called, whatever the application does meanwhile: what it holds of the database is free then, and
        whatever is asked of the transaction raises `TransactionTimeout`, its end too.

        Its block may begin in one task and end in another.

        `Transient` at its end: whether it took effect is in doubt. One transaction neither sees nor delays commits
        of other partitions for longer than it is open itself, and they never become part of it.
        """
        ...


class Transaction(Protocol):
    """What an application writes through. Its SQL is the store's, and the statements are its own.

    So an error that a statement earned by itself (its syntax, a constraint) is the database's own error, the one
    that whoever writes such SQL knows: the exception to the rule above. What else goes wrong is an error of ours.
    What would end the transaction, or write to evenflow's own tables, is refused: `Misconfigured`.
    """

    async def execute(self, statement: str, values: Sequence[object] = ()) -> Sequence[tuple[object, ...]]:
        """Run one statement; its rows."""
        ...

    async def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement for each row of values."""
        ...


@runtime_checkable
class DeadLetters(Protocol):
    """Where events go that could not be handled: a log of records, of which nothing is ever taken back."""

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        """Append records, durably, in this order. The same one may be filed twice: reading counts it once."""
        ...

    def read(self, group: Group, partition: PartitionId | None = None) -> AsyncIterator[DeadLetterRecord]:
        """All records of a group, or of one of its partitions, each partition's in the order they were filed."""
        ...

    async def aclose(self) -> None: ...
