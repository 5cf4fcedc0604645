"""The part of the store contract that is about transactions: effects of an application beside its checkpoint.

The statements are such that every SQL database knows them. A store with another language subclasses and says its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import pytest
from msgspec.structs import replace

from evenflow.errors import AlreadyDone, EvenflowError, LeaseLost, TransactionTimeout, Transient
from evenflow.model import next_epoch
from evenflow.testing.store.scene import PATIENCE_S, Scene, Stage, at, scene

if TYPE_CHECKING:
    from evenflow.model import Outcome
    from evenflow.ports import Store, Transaction

SHORT_S = 0.3


class TransactionContract(Stage):
    """Transactional, for stores that are."""

    make_table: ClassVar[str] = "CREATE TABLE effects (name TEXT PRIMARY KEY)"
    write: ClassVar[str] = "INSERT INTO effects (name) VALUES (?)"
    read: ClassVar[str] = "SELECT name FROM effects ORDER BY name"

    @scene
    async def test_effects_and_checkpoint_happen_together(self, play: Scene) -> None:
        await self._prepare(play)
        async with play.transaction(at(3), start=0) as tx:
            await self._write(tx, "a")
            await tx.execute_many(self.write, [("b",), ("c",)])
            assert [tuple(row) for row in await tx.execute(self.read)] == [("a",), ("b",), ("c",)]
        record = await play.other.seal(play.group, "0", 1, at(0))
        assert (record.ordinal, record.effects) == (3, True)
        assert await self._found(play) == {"a", "b", "c"}

    @scene
    async def test_an_exception_leaves_both_as_they_were(self, play: Scene) -> None:
        await self._prepare(play)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with play.transaction(at(3), start=0) as tx:
                await self._write(tx, "a")
                _ = 1 / 0
        assert (await play.seal(1)).ordinal == 0
        assert await self._found(play) == set()
        async with play.transaction(at(3), start=0) as tx:
            await self._write(tx, "a")
        assert (await play.seal(1)).ordinal == 3

    @scene
    async def test_a_cancelled_block_leaves_both_as_they_were(self, play: Scene) -> None:
        await self._prepare(play)
        inside = asyncio.Event()

        async def block() -> None:
            async with play.transaction(at(3), start=0) as tx:
                await self._write(tx, "a")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert (await play.seal(1)).ordinal == 0
        assert await self._found(play) == set()

    @scene
    async def test_an_error_in_the_sql_can_be_caught_or_rolls_back(self, play: Scene) -> None:
        await self._prepare(play)
        with pytest.raises(Exception, match="nonsense") as caught:  # noqa: PT012
            async with play.transaction(at(1)) as tx:
                await self._write(tx, "a")
                await tx.execute("nonsense")
        assert not isinstance(caught.value, EvenflowError), "it is the application's own"
        assert await self._found(play) == set()

    @scene
    async def test_another_epoch_or_no_record_refuses(self, play: Scene) -> None:
        with pytest.raises(LeaseLost):
            async with play.transaction(at(1)):
                pass
        await self._prepare(play)
        await play.other.seal(play.group, "0", 2, at(0))
        for epoch in (1, 3):
            with pytest.raises(LeaseLost):
                async with play.transaction(at(1, epoch=epoch)) as tx:
                    await self._write(tx, "fenced")
        assert (await play.seal(2)).ordinal == 0
        assert await self._found(play) == set()

    @scene
    async def test_a_concurrent_seal_either_sees_it_or_ends_it(self, play: Scene) -> None:
        """It began before the takeover. It does not commit after the new owner's seal was answered."""
        await self._prepare(play)
        sealing = asyncio.create_task(self._seal_patiently(play.other, play, epoch=2))
        took_effect, sealed_first = True, False
        try:
            async with play.transaction(at(1)) as tx:
                await self._write(tx, "a")
                await asyncio.wait([sealing], timeout=SHORT_S)
                sealed_first = sealing.done()
        except LeaseLost:
            took_effect = False
        ordinal = await sealing
        assert (took_effect, ordinal) == ((False, 0) if sealed_first or not took_effect else (True, 1))
        assert await self._found(play) == ({"a"} if took_effect else set())

    @scene
    async def test_an_earlier_attempt_that_took_effect_is_reported(self, play: Scene) -> None:
        await self._prepare(play)
        async with play.transaction(at(3), start=0) as tx:
            await self._write(tx, "a")
        for wanted, start in ((at(3), 0), (at(5), 2), (at(9), 0)):
            with pytest.raises(AlreadyDone):
                async with play.transaction(wanted, start=start) as tx:
                    await self._write(tx, "again")
        assert (await play.seal(1)).ordinal == 3
        assert await self._found(play) == {"a"}

    @scene
    async def test_events_that_were_handled_without_one_are_committed_along(self, play: Scene) -> None:
        await self._prepare(play)
        await play.commit(at(2))
        async with play.transaction(at(9), start=8, committed=2) as tx:
            await self._write(tx, "a")
        assert (await play.seal(1)).ordinal == 9

    @scene
    async def test_a_record_that_has_gone_back_is_a_lost_lease(self, play: Scene) -> None:
        await self._prepare(play)
        with pytest.raises(LeaseLost, match="lost writes"):
            async with play.transaction(at(9), start=8, committed=5) as tx:
                await self._write(tx, "a")
        assert (await play.seal(1)).ordinal == 0

    @scene
    async def test_a_commit_after_it_changes_nothing_of_before(self, play: Scene) -> None:
        await self._prepare(play)
        async with play.transaction(at(5), start=0) as tx:
            await self._write(tx, "a")
        assert (await play.commit(at(4))).ok
        assert (await play.seal(1)).ordinal == 5
        assert (await play.commit(at(6))).ok
        assert (await play.seal(1)).effects, "once there are effects, there are"

    @scene
    async def test_a_commit_passes_over_no_effects_that_were_lost(self, play: Scene) -> None:
        """The store has lost writes: the record stands below what the owner of the partition knows."""
        await self._prepare(play)
        async with play.transaction(at(5), start=0) as tx:
            await self._write(tx, "a")
        assert not (await play.commit(replace(at(9), effects_to=7))).ok
        assert (await play.seal(1)).ordinal == 5
        assert (await play.commit(replace(at(9), effects_to=5))).ok
        assert (await play.seal(1)).ordinal == 9

    @scene
    async def test_a_commit_makes_no_record_without_the_effects(self, play: Scene) -> None:
        assert not (await play.commit(replace(at(9, partition="lost"), effects_to=7))).ok
        assert (await play.seal(1, partition="lost")).ordinal == 0

    @scene
    async def test_two_at_once_both_happen(self, play: Scene) -> None:
        await self._prepare(play)
        await play.seal(1, partition="1")

        async def block(partition: str, *, other: bool) -> None:
            async with play.transaction(at(1, partition=partition), other=other) as tx:
                await self._write(tx, partition)
                await asyncio.sleep(0.01)
                await self._write(tx, f"{partition} again")

        await asyncio.gather(block("0", other=False), block("1", other=False))
        assert await self._found(play) == {"0", "0 again", "1", "1 again"}

    @scene
    async def test_two_clients_take_turns(self, play: Scene) -> None:
        await self._prepare(play)
        await play.seal(1, partition="1")
        for turn in range(10):
            for number, partition in enumerate("01"):
                async with play.transaction(at(turn + 1, partition=partition), other=bool(number)) as tx:
                    await self._write(tx, f"{partition} {turn}")
        assert len(await self._found(play)) == 20

    @scene
    async def test_of_two_tries_of_one_batch_one_takes_effect(self, play: Scene) -> None:
        await self._prepare(play)

        async def attempt(name: str, *, other: bool) -> bool:
            try:
                async with play.transaction(at(3), start=0, other=other) as tx:
                    await self._write(tx, name)
            except (AlreadyDone, Transient):
                return False
            return True

        tries = [attempt(f"try {number}", other=number % 2 == 1) for number in range(4)]
        assert sum(await asyncio.gather(*tries)) == 1
        assert len(await self._found(play)) == 1

    @scene
    async def test_a_commit_of_another_partition_waits_at_most_and_is_no_part_of_it(self, play: Scene) -> None:
        await self._prepare(play)
        await play.seal(1, partition="1")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with play.transaction(at(1)) as tx:
                await self._write(tx, "a")
                waiting = asyncio.create_task(play.store.commit(play.group, [at(7, partition="1")]))
                await asyncio.sleep(0.05)
                _ = 1 / 0
        outcomes: list[Outcome] = list(await waiting)
        assert [outcome.ok for outcome in outcomes] == [True]
        assert (await play.seal(1, partition="1")).ordinal == 7, "it was not rolled back with the other"
        assert (await play.seal(1)).ordinal == 0

    @scene
    async def test_who_stays_in_the_block_for_too_long_is_rolled_back_and_blocks_no_other(self, play: Scene) -> None:
        await self._prepare(play)
        await play.seal(1, partition="1")
        with pytest.raises(TransactionTimeout):  # noqa: PT012
            async with play.transaction(at(1), limit_s=SHORT_S) as tx:
                await self._write(tx, "a")
                waiting = asyncio.create_task(self._commit_patiently(play.other, play, partition="1"))
                await asyncio.wait_for(waiting, PATIENCE_S)
                await asyncio.sleep(SHORT_S)
                with pytest.raises(TransactionTimeout):
                    await self._write(tx, "b")
        assert (await play.seal(1)).ordinal == 0
        assert await self._found(play) == set()

    @scene
    async def test_the_limit_counts_from_the_call(self, play: Scene) -> None:
        await self._prepare(play)
        with pytest.raises(TransactionTimeout):
            async with play.transaction(at(1), limit_s=0.0):
                pass

    @scene
    async def test_after_its_end_nothing_is_executed(self, play: Scene) -> None:
        await self._prepare(play)
        async with play.transaction(at(1)) as tx:
            await self._write(tx, "a")
        with pytest.raises(EvenflowError):
            await self._write(tx, "late")
        assert await self._found(play) == {"a"}

    @scene
    async def test_memory_never_wins_over_a_record_with_effects(self, play: Scene) -> None:
        """After lost history effects and record have gone back together: the record is the truth."""
        await self._prepare(play)
        async with play.transaction(at(3), start=0) as tx:
            await self._write(tx, "a")
        later = next_epoch(1, 1)
        record = await play.seal(later, at(9, epoch=later))
        assert (record.ordinal, record.effects) == (3, True)

    # --- short words
    async def _prepare(self, play: Scene) -> None:
        """A sealed record, and a table of the application's. The table's making is an effect like any other."""
        await play.seal(1)
        await play.seal(1, partition="tables")
        async with play.transaction(at(1, partition="tables")) as tx:
            await tx.execute(self.make_table)

    async def _write(self, tx: Transaction, name: str) -> None:
        await tx.execute(self.write, (name,))

    async def _found(self, play: Scene) -> set[object]:
        """What the other client sees, in a transaction of a partition that no other test uses."""
        await play.other.seal(play.group, "reader", 1, at(0, partition="reader"))
        async with play.transaction(at(0, partition="reader"), start=0, other=True) as tx:
            return {row[0] for row in await tx.execute(self.read)}

    async def _seal_patiently(self, client: Store, play: Scene, *, epoch: int) -> int:
        """A store may say that it is locked: then it is asked again, as the runtime does."""
        while True:
            with suppress(Transient):
                return (await client.seal(play.group, "0", epoch, at(0))).ordinal
            await asyncio.sleep(0.01)

    async def _commit_patiently(self, client: Store, play: Scene, *, partition: str) -> None:
        while True:
            with suppress(Transient):
                assert (await client.commit(play.group, [at(1, partition=partition)]))[0].ok
                return
            await asyncio.sleep(0.01)
