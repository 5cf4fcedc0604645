"""The part of the store contract that is about checkpoints: seals and commits."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost
from evenflow.model import BEGINNING, Checkpoint, Position, next_epoch
from evenflow.testing.store.scene import Scene, Stage, after, at, granted, scene

LATER = next_epoch(0, 1)
"""The first epoch of the history after the first."""


class SealContract(Stage):
    """A new owner's first act."""

    @scene
    async def test_the_first_seal_makes_the_record_as_the_default(self, play: Scene) -> None:
        default = Checkpoint(partition="0", epoch=0, position=Position("2;opaque"), ordinal=5, notes={"a": [1, None]})
        record = await play.seal(3, default)
        assert structs.replace(record, changed_at=0.0) == structs.replace(default, epoch=3, begun=5)
        assert record.changed_at > 0
        assert await play.other.seal(play.group, "0", 3, at(0)) == record

    @scene
    async def test_a_seal_counts_epochs_that_ended_unplanned_and_got_nowhere(self, play: Scene) -> None:
        async def sealed(epoch: int, *, unplanned: bool) -> tuple[int, int]:
            record = await play.store.seal(play.group, "0", epoch, at(5), unplanned=unplanned)
            return record.begun, record.fruitless

        assert await sealed(1, unplanned=True) == (5, 0), "there was no epoch before it"
        assert await sealed(2, unplanned=True) == (5, 1)
        assert await sealed(2, unplanned=True) == (5, 1), "sealing again only reads"
        assert await sealed(3, unplanned=False) == (5, 1), "a planned end neither counts nor forgives"
        assert await sealed(4, unplanned=True) == (5, 2)
        await play.store.commit(play.group, [at(5, epoch=4, notes={"a": 1}), at(7, epoch=4)])
        assert await sealed(4, unplanned=True) == (5, 2), "a commit changes neither"
        assert await sealed(5, unplanned=True) == (7, 0), "progress forgives"

    @scene
    async def test_a_commit_keeps_when_its_last_event_was_enqueued(self, play: Scene) -> None:
        await play.seal(1)
        await play.store.commit(play.group, [structs.replace(at(1), event_at=1234.5)])
        assert (await play.seal(2)).event_at == 1234.5

    @scene
    async def test_an_existing_record_keeps_its_position(self, play: Scene) -> None:
        await play.seal(1, at(5, notes={"kept": True}))
        for epoch, default in ((2, at(9)), (3, at(2)), (9, at(9, epoch=9))):
            record = await play.seal(epoch, default)
            assert (record.epoch, record.ordinal, record.position) == (epoch, 5, Position("4", 4))
            assert record.notes == {"kept": True}

    @scene
    async def test_a_seal_fences_every_older_epoch(self, play: Scene) -> None:
        await play.seal(1)
        await play.other.seal(play.group, "0", 2, at(0))
        assert (await play.commit(at(5, epoch=1))).why == "epoch"
        with pytest.raises(LeaseLost, match="'0'"):
            await play.seal(1, at(9))
        assert (await play.seal(2)).ordinal == 0

    @scene
    async def test_sealing_again_only_reads(self, play: Scene) -> None:
        await play.seal(LATER, at(1))
        await play.commit(at(4, epoch=LATER))
        once = await play.seal(LATER, at(9))
        assert once.ordinal == 4
        assert await play.other.seal(play.group, "0", LATER, at(9)) == once

    @scene
    async def test_a_record_of_an_older_history_stays_where_it_is(self, play: Scene) -> None:
        """What is remembered is restored by a commit."""
        await play.seal(7, at(5, notes={"old": 1}))
        for offset, known in enumerate((5, 9, 0)):
            record = await play.seal(next_epoch(0, 1 + offset), at(known, notes={"new": 1}))
            assert (record.ordinal, record.notes) == (5, {"old": 1})

    @scene
    async def test_partitions_are_sealed_each_on_its_own(self, play: Scene) -> None:
        await play.seal(1, at(3, partition="0"), "0")
        await play.seal(2, at(4, partition="1"), "1")
        assert (await play.seal(1, partition="0")).ordinal == 3
        assert (await play.seal(2, partition="1")).ordinal == 4

    @scene
    async def test_the_highest_of_eight_seals_stays(self, play: Scene) -> None:
        clients = [play.store, play.other] * 4
        epochs = (5, 1, 8, 3, 7, 2, 6, 4)
        answers = await asyncio.gather(
            *(c.seal(play.group, "0", epoch, at(0)) for c, epoch in zip(clients, epochs, strict=True)),
            return_exceptions=True,
        )
        assert all(isinstance(answer, Checkpoint | LeaseLost) for answer in answers)
        assert isinstance(answers[epochs.index(8)], Checkpoint)
        for epoch in (7, 9):
            assert (await play.commit(at(1, epoch=epoch))).why == "epoch"
        assert (await play.commit(at(1, epoch=8))).ok


class CommitContract(Stage):
    """Progress, under the epoch that sealed it."""

    @scene
    async def test_a_commit_moves_the_record(self, play: Scene) -> None:
        await play.seal(1)
        wanted = Checkpoint(
            partition="0", epoch=1, position=Position("2;opaque", 77), ordinal=5, notes={"tries": {"77": 2}}
        )
        outcome = await play.commit(wanted)
        assert (outcome.partition, outcome.ok, outcome.why) == ("0", True, "")
        record = await play.other.seal(play.group, "0", 1, at(0))
        assert structs.replace(record, changed_at=0.0) == wanted
        assert record.changed_at > 0

    @scene
    async def test_no_lease_is_asked_for(self, play: Scene) -> None:
        """Only the record counts: an owner's commit and the takeover of its lease are in no order."""
        me, heir = await play.join("a"), await play.join("b")
        lease = await play.claim(me)
        await play.seal(lease.epoch)
        taken = granted(await play.swap(after(lease, heir.owner)))
        assert (await play.commit(at(1, epoch=lease.epoch))).ok, "the heir has not sealed yet"
        assert (await play.commit(at(9, epoch=taken.epoch))).why == "epoch"
        assert (await play.seal(taken.epoch)).ordinal == 1

    @scene
    async def test_another_epoch_or_no_record_refuses(self, play: Scene) -> None:
        assert (await play.commit(at(1))).why == "epoch"
        await play.seal(2)
        for epoch in (1, 3, LATER):
            outcome = await play.commit(at(1, epoch=epoch))
            assert (outcome.ok, outcome.why) == (False, "epoch")
        assert (await play.seal(2)).ordinal == 0

    @scene
    async def test_a_late_commit_changes_nothing_and_is_ok(self, play: Scene) -> None:
        await play.seal(1)
        await play.commit(at(5, notes={"five": True}))
        before = await play.seal(1)
        assert (await play.commit(at(4, notes={"four": True}))).ok
        assert await play.seal(1) == before

    @scene
    async def test_an_equal_ordinal_brings_new_notes(self, play: Scene) -> None:
        """A position moves over what is no event to the application, and attempts at the next event are counted."""
        await play.seal(1, at(5))
        moved = structs.replace(at(5, notes={"attempts": 2}), position=Position("9", 9))
        assert (await play.commit(moved)).ok
        record = await play.seal(1)
        assert (record.notes, record.position) == ({"attempts": 2}, Position("9", 9))

    @scene
    async def test_many_are_committed_each_on_its_own(self, play: Scene) -> None:
        for partition in "02":
            await play.seal(1, at(0, partition=partition), partition)
        outcomes = await play.store.commit(
            play.group, [at(3, partition="0"), at(3, partition="1"), at(4, partition="2"), at(9, epoch=2)]
        )
        assert [(o.partition, o.ok, o.why) for o in outcomes] == [
            ("0", True, ""),
            ("1", False, "epoch"),
            ("2", True, ""),
            ("0", False, "epoch"),
        ]
        assert [(await play.seal(1, partition=partition)).ordinal for partition in "02"] == [3, 4]

    @scene
    async def test_what_the_caller_does_with_its_notes_stays_its_own(self, play: Scene) -> None:
        notes = {"parked": ["k"]}
        await play.seal(1, at(0, notes=notes))
        notes["parked"].append("later")
        record = await play.seal(1)
        assert record.notes == {"parked": ["k"]}
        record.notes["parked"].append("mine")
        committed = at(1, notes=notes)
        await play.commit(committed)
        notes.clear()
        assert (await play.seal(1)).notes == {"parked": ["k", "later"]}

    @scene
    async def test_a_seal_races_commits(self, play: Scene) -> None:
        """After a seal is answered, nothing of before moves the record any more."""
        for epoch in range(1, 11):
            await play.seal(epoch, at(0))
            base = (await play.seal(epoch)).ordinal
            racing = [play.store.commit(play.group, [at(base + step, epoch=epoch)]) for step in (1, 2, 3)]
            commits, sealed = await asyncio.gather(
                asyncio.gather(*racing), play.other.seal(play.group, "0", epoch + 1, at(0))
            )
            done = [base + step for step, outcomes in enumerate(commits, 1) if outcomes[0].ok]
            assert sealed.ordinal == max(done, default=base)

    @scene
    async def test_the_beginning_is_a_position(self, play: Scene) -> None:
        assert (await play.seal(1, at(0))).position == BEGINNING
