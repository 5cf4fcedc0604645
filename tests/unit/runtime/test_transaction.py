"""`partition.transaction()` on the real SQLite store: what it covers, what follows, and what is in doubt."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow import (
    AlreadyDone,
    Every,
    LeaseLost,
    Manual,
    Misconfigured,
    OwnedPartition,
    Processor,
    Retry,
    StoreUnavailable,
    TransactionTimeout,
)
from evenflow.core.filed import fold
from evenflow.model import BEGINNING, Action, Checkpoint, Position, Steering
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.runtime.hold import Hold
from evenflow.runtime.transaction import judged, learn
from evenflow.signals import HistoryLost, Trouble
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import GROUP, PatchyStore, Seen, Stage, at, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from evenflow import Event, Signal
    from evenflow.stores.sqlite.transactions import SQLiteTransaction

TABLE = "CREATE TABLE IF NOT EXISTS effects (partition TEXT, sequence INTEGER)"
EFFECT = "INSERT INTO effects VALUES (?, ?)"


class UnsureStore(SQLiteStore):
    """A store whose answers to the ends of transactions get lost, some before they took effect and some after."""

    fate: Iterator[str] = iter(())

    @asynccontextmanager
    async def transaction(
        self, group: Any, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float
    ) -> AsyncIterator[SQLiteTransaction]:
        fate = next(self.fate, "")
        given = {"committed": committed, "start": start, "limit_s": limit_s}
        async with super().transaction(group, checkpoint, **given) as tx:  # type: ignore[arg-type]
            yield tx
            if fate == "before":
                raise StoreUnavailable("lost on the way there")
        if fate == "after":
            raise StoreUnavailable("lost on the way back")


class Effects:
    """A processor over one partition, in real time, that writes each event's sequence into a table."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store"
        self.store = UnsureStore(self.path)
        self.source = FakeSource(1)
        self.happened: list[Signal] = []

    def processor(self, **options: Any) -> Processor:
        processor = Processor(self.source, self.store, "group", **options)
        processor.listen(self.happened.append)
        return processor

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.source.append("0", b"x")

    async def run(self, processor: Processor) -> None:
        await asyncio.wait_for(processor.serve(until="caught_up"), 30)

    async def record(self) -> Checkpoint:
        (record,) = await self.store.checkpoints(GROUP)
        return record

    async def counted(self) -> Counter[int]:
        """How often each event's effect is there. The store is closed: nothing else has the file open then."""
        await self.store.aclose()
        connection = apsw.Connection(str(self.path / "progress.sqlite"))
        try:
            return Counter(sequence for (sequence,) in connection.execute("SELECT sequence FROM effects"))
        finally:
            connection.close()

    @property
    def errors(self) -> list[str]:
        return [type(one.error).__name__ for one in self.happened if isinstance(one, Trouble)]


def once(count: int) -> Counter[int]:
    return Counter(range(count))


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path)


async def write(tx: Any, events: Sequence[Event], partition: OwnedPartition) -> None:
    await tx.execute(TABLE)
    await tx.execute_many(EFFECT, [(partition.id, event.sequence) for event in events])


# --- what it covers
@pytest.mark.parametrize("policy", [Every(events=3), Every(seconds=0.01), Manual()], ids=str)
async def test_an_event_with_its_effect(effects: Effects, policy: Any) -> None:
    processor = effects.processor(checkpoint=policy)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await write(tx, [event], partition)

    effects.fill(20)
    await effects.run(processor)
    record = await effects.record()
    assert (record.ordinal, record.position, record.effects) == (20, at(19), True)
    assert await effects.counted() == once(20)


@pytest.mark.parametrize("policy", [Every(events=3), Every(seconds=0.01), Manual()], ids=str)
async def test_a_batch_with_its_effects(effects: Effects, policy: Any) -> None:
    processor = effects.processor(checkpoint=policy, batch_events=7)

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await write(tx, events, partition)

    effects.fill(50)
    await effects.run(processor)
    assert (await effects.record()).ordinal == 50, "no event is counted twice"
    assert await effects.counted() == once(50)


@pytest.mark.parametrize("batch", [False, True])
async def test_a_plain_handler_blocks(effects: Effects, batch: bool) -> None:
    processor = effects.processor(checkpoint=Manual(), batch_events=7)

    def handle_batch(events: Sequence[Event], partition: OwnedPartition) -> None:
        with partition.transaction() as tx:
            tx.execute(TABLE)
            tx.execute_many(EFFECT, ((partition.id, event.sequence) for event in events))
            assert tx.execute("SELECT count(*) FROM effects WHERE sequence >= 0")[0] != (0,)

    def handle(event: Event, partition: OwnedPartition) -> None:
        handle_batch([event], partition)

    (processor.on_batch if batch else processor.on_event)(handle_batch if batch else handle)
    effects.fill(20)
    await effects.run(processor)
    assert (await effects.record()).ordinal == 20
    assert await effects.counted() == once(20)


async def test_events_without_a_transaction_are_committed_along_with_the_next(effects: Effects) -> None:
    processor = effects.processor(checkpoint=Every(events=1000))
    ordinals: list[int] = []

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence in (4, 8):
            async with partition.transaction() as tx:
                await write(tx, [event], partition)
            ordinals.append((await effects.record()).ordinal)

    effects.fill(12)
    await effects.run(processor)
    assert ordinals == [5, 9]
    assert (await effects.record()).ordinal == 12, "the policy goes on after it"
    assert await effects.counted() == Counter([4, 8])


async def test_a_batch_in_several_steps(effects: Effects) -> None:
    processor = effects.processor(checkpoint=Manual())
    steps: list[int] = []

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        for first in range(0, len(events), 4):
            part = events[first : first + 4]
            async with partition.transaction(part[-1]) as tx:
                await write(tx, part, partition)
            steps.append((await effects.record()).ordinal)

    effects.fill(10)
    await effects.run(processor)
    assert steps[-1] == 10
    assert await effects.counted() == once(10)


# --- when it fails
async def test_a_handler_that_fails_inside_leaves_nothing_and_is_called_again(effects: Effects) -> None:
    processor = effects.processor()
    failures = iter([ZeroDivisionError(), asyncio.CancelledError(), ZeroDivisionError()])

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await write(tx, events, partition)
            if (failure := next(failures, None)) is not None:
                raise failure

    effects.fill(10)
    await effects.run(processor)
    assert await effects.counted() == once(10)
    assert effects.errors == ["ZeroDivisionError", "RuntimeError", "ZeroDivisionError"]


async def test_after_a_step_that_was_committed_a_failing_batch_goes_on_behind_it(effects: Effects) -> None:
    processor = effects.processor(batch_events=10)
    calls: list[list[int]] = []

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        calls.append([event.sequence or 0 for event in events])
        if len(calls) == 1:
            async with partition.transaction(events[3]) as tx:
                await write(tx, events[:4], partition)
            raise ValueError("after the first step")
        async with partition.transaction() as tx:
            await write(tx, events, partition)

    effects.fill(10)
    await effects.run(processor)
    assert calls[0] == list(range(10))
    assert [number for call in calls[1:] for number in call] == list(range(4, 10))
    assert effects.errors == ["ValueError"], "it is told nevertheless"
    assert await effects.counted() == once(10)


@pytest.mark.parametrize(("fate", "errors"), [("before", 1), ("after", 0)])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_commit_in_doubt_happens_once(effects: Effects, batch: bool, fate: str, errors: int) -> None:
    processor = effects.processor(checkpoint=Every(events=2))
    effects.store.fate = iter([fate] if batch else ["", fate])
    called: Counter[int] = Counter()

    async def handle_batch(events: Sequence[Event], partition: OwnedPartition) -> None:
        called.update(event.sequence or 0 for event in events)
        async with partition.transaction() as tx:
            await write(tx, events, partition)

    async def handle(event: Event, partition: OwnedPartition) -> None:
        await handle_batch([event], partition)

    (processor.on_batch if batch else processor.on_event)(handle_batch if batch else handle)
    effects.fill(6)
    await effects.run(processor)
    again = Counter(range(6) if batch else [1])
    assert called == once(6) + (again if errors else Counter()), "what took effect is not handed over again"
    assert effects.errors == ["StoreUnavailable"] * errors
    assert (await effects.record()).ordinal == 6
    assert await effects.counted() == once(6)


class SplitStore(UnsureStore):
    """Sabotage: the checkpoint is written after the transaction, not in it, as a program would by itself."""

    @asynccontextmanager
    async def transaction(
        self, group: Any, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float
    ) -> AsyncIterator[SQLiteTransaction]:
        fate = next(self.fate, "")
        (record,) = await self.checkpoints(group)
        given = {"committed": committed, "start": start, "limit_s": limit_s}
        async with SQLiteStore.transaction(self, group, record, **given) as tx:  # type: ignore[arg-type]
            yield tx
        if fate:
            raise StoreUnavailable("lost between effects and checkpoint")
        await self.commit(group, [checkpoint])


async def test_with_the_checkpoint_outside_of_the_transaction_counts_go_wrong(effects: Effects) -> None:
    """So the tests above can fail."""
    effects.store = SplitStore(effects.path)
    effects.store.fate = iter(["", "between"])
    processor = effects.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await write(tx, [event], partition)

    effects.fill(6)
    await effects.run(processor)
    assert await effects.counted() == once(6) + Counter([1])


async def test_a_handler_that_tries_again_itself_learns_that_it_is_done(effects: Effects) -> None:
    processor = effects.processor()
    effects.store.fate = iter(["after"])
    told: list[str] = []

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        for _ in range(2):
            try:
                async with partition.transaction() as tx:
                    await write(tx, events, partition)
            except StoreUnavailable as error:
                told.append(type(error).__name__)
            except AlreadyDone as error:
                told.append(type(error).__name__)
                raise

    effects.fill(6)
    await effects.run(processor)
    assert told == ["StoreUnavailable", "AlreadyDone"]
    assert effects.errors == []
    assert await effects.counted() == once(6)


async def test_a_handler_that_sits_in_the_block_is_told_and_the_lock_is_free(effects: Effects) -> None:
    processor = effects.processor(ttl_s=1.0, heartbeat_s=0.2, margin_s=0.2)
    errors: list[Exception] = []

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        try:
            async with partition.transaction() as tx:
                await write(tx, events, partition)
                if not errors:
                    await effects.store.seal(GROUP, "other", 1, Checkpoint(partition="other", epoch=1, **AT_0))
                    # It waited for the transaction: that is over, although its block is not.
        except TransactionTimeout as error:
            errors.append(error)
            raise

    effects.fill(6)
    await effects.run(processor)
    assert errors
    assert [one.ordinal for one in await effects.store.checkpoints(GROUP) if one.partition == "0"] == [6]
    assert await effects.counted() == once(6)


AT_0: dict[str, Any] = {"position": Position("-1", -1), "ordinal": 0}


async def test_who_was_fenced_by_another_owners_seal_stops(effects: Effects) -> None:
    """The lease was taken while the call ran: the transaction is refused, and the partition is lost."""
    processor = effects.processor(checkpoint=Manual(), heartbeat_s=0.1)
    errors: list[str] = []

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        if not errors:
            await effects.store.seal(GROUP, "0", partition.epoch + 1, Checkpoint(partition="0", epoch=0, **AT_0))
        try:
            async with partition.transaction() as tx:
                await write(tx, events, partition)
        except LeaseLost as error:
            errors.append(type(error).__name__)
            raise

    effects.fill(6)
    await effects.run(processor)
    assert errors[:1] == ["LeaseLost"]
    assert await effects.counted() == once(6), "taken again under a higher epoch, and handled then"


# --- misuse
async def test_a_store_that_cannot_is_named(stage: Stage) -> None:
    told: list[str] = []
    processor = stage.processor(store=PatchyStore())

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        try:
            async with partition.transaction():
                pass
        except Misconfigured as error:
            told.append(str(error))

    stage.fill(1, "0")
    await processor.serve(until="caught_up")
    assert len(told) == 1
    assert "PatchyStore" in told[0]
    assert "sqlite:FOLDER" in told[0]


async def test_misuse_is_told(effects: Effects) -> None:
    processor = effects.processor()
    told: list[str] = []

    async def expect(block: Callable[[], Any]) -> None:
        try:
            await block()
        except Misconfigured as error:
            told.append(str(error))

    kept: list[OwnedPartition] = []

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        kept.append(partition)

        async def enter(event: Event | None = None) -> None:
            async with partition.transaction(event):
                pass

        def enter_plainly() -> None:
            with partition.transaction():
                pass

        async def enter_on_the_loop() -> None:
            enter_plainly()

        await expect(lambda: asyncio.create_task(enter()))
        await expect(lambda: asyncio.to_thread(enter_plainly))
        await expect(enter_on_the_loop)
        await expect(lambda: enter(effects.source._logs["0"].events[0].__class__(b"x")))
        async with partition.transaction() as tx:
            await write(tx, events, partition)
            await expect(enter)
            await tx.execute("SELECT 1")  # the first one is as well as it was
        await expect(enter)

    async def outside() -> None:
        async with kept[0].transaction():
            pass

    effects.fill(3)
    await effects.run(processor)
    await expect(outside)
    inside, wrong, both, again = "inside a handler call", "one of the events", "one at a time", "earlier transaction"
    patterns = [inside, inside, "`async with`", wrong, both, again, inside]
    assert [pattern in text for pattern, text in zip(patterns, told, strict=True)] == [True] * 7, told
    assert await effects.counted() == once(3)


async def test_a_plain_handler_that_writes_async_with_is_told(effects: Effects) -> None:
    processor = effects.processor()
    told: list[str] = []

    @processor.on_event
    def handle(event: Event, partition: OwnedPartition) -> None:
        async def enter() -> None:
            async with partition.transaction():
                pass

        try:
            asyncio.run(enter())
        except Misconfigured as error:
            told.append(str(error))

    effects.fill(1)
    await effects.run(processor)
    await effects.store.aclose()
    assert "a plain handler writes `with`" in told[0]


# --- lost history
async def test_what_lives_beside_effects_is_never_sealed_from_memory(stage: Stage) -> None:
    """Effects and record have gone back together: the record is the truth, and what it does not know is done again."""
    await with_effects(stage)
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=Every(events=1), longest_ttl_s=20.0) as processor:
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(1.0)
        snapshot = stage.store.snapshot()
        stage.fill(5)
        await until(lambda: len(seen) == 20)
        await asyncio.sleep(1.0)
        stage.store.restore(snapshot)
        await until(lambda: stage.told(HistoryLost))
        await until(lambda: len(processor.owned) == 2)
        stage.fill(1)
        await until(lambda: 10 in seen.of("0") and 10 in seen.of("1"))
    assert seen.of("0") == [*range(10), *range(5, 11)]


async def test_where_the_record_is_gone_with_its_effects_it_begins_anew(stage: Stage) -> None:
    await with_effects(stage)
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=Every(events=1), longest_ttl_s=20.0) as processor:
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(1.0)
        stage.store.__init__(wall=lambda: stage.now_s)  # type: ignore[misc]
        await until(lambda: stage.told(HistoryLost))
        await until(lambda: len(processor.owned) == 2)
        await until(lambda: len(seen) == 20)
    assert seen.of("0") == [*range(5), *range(5)]


async def with_effects(stage: Stage) -> None:
    """As a transaction leaves it: whoever seals the record afterwards learns that there are effects."""
    for partition in stage.source.partition_ids:
        record = Checkpoint(partition=partition, epoch=0, effects=True, **AT_0)
        await stage.store.seal(GROUP, partition, 0, record)


# --- learning, on its own
def in_doubt(done: int, committed: int) -> Hold:
    hold = Hold("0", 3, 1e9)
    hold.begin(Checkpoint(partition="0", epoch=3, position=at(committed - 1), ordinal=committed), 0.0)
    hold.done, hold.doubt = (done, at(done - 1)), True
    return hold


async def put(stage: Stage, ordinal: int, epoch: int = 3) -> None:
    record = Checkpoint(partition="0", epoch=epoch, position=at(ordinal - 1), ordinal=ordinal)
    await stage.store.seal(GROUP, "0", epoch, record)


async def test_what_is_in_doubt_is_learned_from_the_record(stage: Stage) -> None:
    await put(stage, 9)
    hold = in_doubt(done=5, committed=3)
    assert await learn(stage.parts(), hold) == 4
    assert (hold.done, hold.committed, hold.doubt) == ((9, at(8)), 9, False)


async def test_nothing_is_asked_without_a_doubt(stage: Stage) -> None:
    hold = in_doubt(done=5, committed=3)
    hold.doubt = False
    assert await learn(stage.parts(), hold) == 0
    assert stage.store.asked["seal"] == 0


async def test_a_record_that_did_not_move_says_that_it_failed(stage: Stage) -> None:
    await put(stage, 4)
    hold, error = in_doubt(done=5, committed=3), StoreUnavailable("no answer")
    assert await judged(stage.parts(), hold, error) is error
    assert (hold.done, hold.committed) == ((5, at(4)), 4), "progress without a transaction stays"


async def test_a_record_that_went_back_or_is_anothers_loses_the_partition(stage: Stage) -> None:
    await put(stage, 2)
    with pytest.raises(LeaseLost, match="gone back"):
        await learn(stage.parts(), in_doubt(done=5, committed=3))
    await put(stage, 2, epoch=4)
    with pytest.raises(LeaseLost):
        await learn(stage.parts(), in_doubt(done=5, committed=3))


async def test_a_record_that_is_no_more_is_not_made_again_without_its_effects(stage: Stage) -> None:
    """What was sealed had effects, which were lost together with it: they happen again, from the first event on."""
    hold = in_doubt(done=5, committed=3)
    hold.begin(Checkpoint(partition="0", epoch=3, position=at(2), ordinal=3, effects=True), 0.0)
    hold.doubt = True
    with pytest.raises(LeaseLost, match="gone back"):
        await learn(stage.parts(), hold)
    assert (await stage.store.seal(GROUP, "0", 4, Checkpoint(partition="0", epoch=4, **AT_0))).position == BEGINNING


async def test_a_commit_says_up_to_where_effects_are_known(stage: Stage) -> None:
    """A store that has lost them refuses it: policy commits would pass over effects that are not there any more."""
    await put(stage, 9)
    hold = in_doubt(done=12, committed=9)
    hold.effects = True
    record = hold.checkpoint(manual=False)
    assert record is not None
    assert (record.ordinal, record.effects_to) == (12, 9)
    snapshot = stage.store.snapshot()
    assert (await stage.store.commit(GROUP, [record]))[0].ok
    stage.store.restore(snapshot)
    hold.committed = 12
    record = hold.checkpoint(manual=False)
    assert record is not None
    assert not (await stage.store.commit(GROUP, [record]))[0].ok


async def test_it_asks_until_the_store_answers_or_the_hold_stops(stage: Stage) -> None:
    await put(stage, 9)
    stage.store.away = {"seal"}
    hold = in_doubt(done=5, committed=3)
    asking = asyncio.create_task(learn(stage.parts(), hold))
    await asyncio.sleep(60)
    assert not asking.done()
    assert len(stage.told(Trouble)) > 3
    stage.store.away = set()
    assert await asking == 4
    stage.store.away, hold.doubt = {"seal"}, True
    asking = asyncio.create_task(learn(stage.parts(), hold))
    await asyncio.sleep(60)
    hold.stop("handed over")
    assert await asking == 0


@pytest.mark.parametrize("plain", [False, True])
async def test_a_redriven_dead_letter_may_use_a_transaction_and_no_checkpoint_moves(
    effects: Effects, plain: bool
) -> None:
    dead_letters = MemoryDeadLetters()
    bad = {3}
    processor = effects.processor(dead_letter=dead_letters, retry=Retry(attempts=1))

    async def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence in bad:
            raise ValueError("bad")
        async with partition.transaction() as tx:
            await write(tx, [event], partition)

    def handle_plainly(event: Event, partition: OwnedPartition) -> None:
        if event.sequence in bad:
            raise ValueError("bad")
        with partition.transaction() as tx:
            tx.execute(TABLE)
            tx.execute(EFFECT, (partition.id, event.sequence))

    processor.on_event(handle_plainly if plain else handle)
    effects.fill(6)
    await effects.run(processor)
    (filed,) = fold(dead_letters.records(GROUP))
    await dead_letters.file(GROUP, "0", [filed.asked(by="ada", why="", at=0.0)])
    action = Action(kind="redrive", by="ada", why="", what="")
    await effects.store.steer(GROUP, Steering(redrive=("0",)), action)
    bad.clear()
    await effects.run(processor)
    assert await effects.counted() == once(6)


async def _redriven(
    effects: Effects, dead_letters: MemoryDeadLetters, handle: Any, *, batch: bool = False, **options: Any
) -> str:
    """One bad event is filed, mended, and asked for again; what becomes of its dead letter."""
    settings: dict[str, Any] = {"dead_letter": dead_letters, "retry": Retry(attempts=3, first_s=0.01), **options}
    processor = effects.processor(**settings)
    (processor.on_batch if batch else processor.on_event)(handle)
    for filed in fold(dead_letters.records(GROUP)):
        await dead_letters.file(GROUP, "0", [filed.asked(by="ada", why="", at=0.0)])
    await effects.store.steer(GROUP, Steering(redrive=("0",)), Action(kind="redrive", by="ada", why="", what=""))
    await effects.run(processor)
    (filed,) = fold(dead_letters.records(GROUP))
    return filed.state


async def _file_one(effects: Effects, dead_letters: MemoryDeadLetters) -> None:
    """Event 3 of 6 is in the dead letters, the others are done."""

    async def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 3:
            raise ValueError("bad")
        async with partition.transaction() as tx:
            await write(tx, [event], partition)

    processor = effects.processor(dead_letter=dead_letters, retry=Retry(attempts=1))
    processor.on_event(handle)
    effects.fill(6)
    await effects.run(processor)


@pytest.mark.parametrize("checkpoint", [Every(seconds=1.0), Manual()])
async def test_a_redriven_dead_letter_whose_transaction_committed_is_handled_whatever_follows(
    effects: Effects, checkpoint: Every | Manual
) -> None:
    dead_letters = MemoryDeadLetters()
    await _file_one(effects, dead_letters)

    async def handle(event: Event, partition: OwnedPartition) -> None:
        async with partition.transaction(event) as tx:
            await write(tx, [event], partition)
        raise OSError("after its effects were there")

    before = (await effects.record()).ordinal
    assert await _redriven(effects, dead_letters, handle, checkpoint=checkpoint) == "redriven"
    assert (await effects.record()).ordinal == before
    assert await effects.counted() == once(6)


@pytest.mark.parametrize("fate", ["before", "after"])
async def test_a_redriven_dead_letters_commit_in_doubt_happens_once(effects: Effects, fate: str) -> None:
    dead_letters = MemoryDeadLetters()
    await _file_one(effects, dead_letters)
    effects.store.fate = iter([fate])

    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        async with partition.transaction(events[-1]) as tx:
            await write(tx, events, partition)

    assert await _redriven(effects, dead_letters, handle, batch=True) == "redriven"
    assert await effects.counted() == once(6)


async def test_who_dies_after_a_redriven_dead_letters_effects_leaves_it_handled(effects: Effects) -> None:
    """The note is in the same transaction: the next owner answers for it, and calls nobody."""
    dead_letters = MemoryDeadLetters()
    await _file_one(effects, dead_letters)
    died = asyncio.Event()

    async def handle(event: Event, partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await write(tx, [event], partition)
        died.set()
        await asyncio.Event().wait()  # as good as dead: what it has written stays

    processor = effects.processor(dead_letter=dead_letters, stop_s=0.5, heartbeat_s=0.2, ttl_s=2.0, margin_s=0.2)
    processor.on_event(handle)
    (filed,) = fold(dead_letters.records(GROUP))
    await dead_letters.file(GROUP, "0", [filed.asked(by="ada", why="", at=0.0)])
    await effects.store.steer(GROUP, Steering(redrive=("0",)), Action(kind="redrive", by="ada", why="", what=""))
    async with processor:
        await asyncio.wait_for(died.wait(), 30)
    (filed,) = fold(dead_letters.records(GROUP))
    assert filed.state == "again"

    async def never(event: Event, partition: OwnedPartition) -> None:
        raise AssertionError("it is handled already")

    after = effects.processor(dead_letter=dead_letters, heartbeat_s=0.1, ttl_s=1.0, margin_s=0.2)
    after.on_event(never)
    await effects.run(after)
    (filed,) = fold(dead_letters.records(GROUP))
    assert filed.state == "redriven"
    assert await effects.counted() == once(6)


async def test_a_redriven_dead_letter_has_one_transaction(effects: Effects) -> None:
    dead_letters = MemoryDeadLetters()
    await _file_one(effects, dead_letters)

    async def handle(event: Event, partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await write(tx, [event], partition)
        async with partition.transaction() as tx:
            await write(tx, [event], partition)

    assert await _redriven(effects, dead_letters, handle) == "redriven"
    assert "Misconfigured" in effects.errors
    assert await effects.counted() == once(6)
