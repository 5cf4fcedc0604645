"""The ownership table from plain records: no store, no source, no clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from evenflow.core.notes import Failing, Notes, Stopped, Tripped
from evenflow.model import (
    BEGINNING,
    EVERYTHING,
    Bounds,
    Checkpoint,
    Cursor,
    GroupState,
    Lease,
    Ledger,
    Member,
    Owner,
    Position,
    Wish,
)
from evenflow.observe.motion import Motion
from evenflow.observe.ownership import Failure, lag_of, lag_s_of, member_rows, natural, partition_rows
from evenflow.observe.survey import Beats

ADA = Owner("ada", 1)
PAUSED = GroupState(pauses={EVERYTHING: Wish()})


def member(name: str = "ada", incarnation: int = 1, **facts: Any) -> Member:
    return Member(id=name, nonce=f"{name}{incarnation}", incarnation=incarnation, **{"ttl_s": 8.0, **facts})


def lease(partition: str = "0", owner: Owner | None = ADA, epoch: int = 3, **facts: Any) -> Lease:
    return Lease(partition=partition, owner=owner, epoch=epoch, revision=1, ttl_s=8.0, reason="claimed", **facts)


def ledger(*leases: Lease, members: tuple[Member, ...] = (member(),), paused: bool = False) -> Ledger:
    return Ledger(
        cursor=Cursor("x", 0, 1),
        me=None,
        whole=True,
        leases=leases,
        members=members,
        state=PAUSED if paused else GroupState(),
    )


def at(sequence: int | None, partition: str = "0", epoch: int = 3) -> Checkpoint:
    offset = "?" if sequence is None else str(sequence)
    return Checkpoint(partition=partition, epoch=epoch, position=Position(offset, sequence), ordinal=1, changed_at=5.0)


def log(oldest: int, newest: int) -> Bounds:
    return Bounds(Position(str(oldest), oldest), Position(str(newest), newest))


def test_a_row_has_who_how_far_and_why() -> None:
    (row,) = partition_rows(ledger(lease(changed_at=7.0)), [at(41)], {"0": log(0, 99)})
    assert (row.partition, row.owner, row.epoch, row.reason, row.status) == ("0", "ada", 3, "claimed", "ok")
    assert (row.offset, row.sequence, row.newest, row.lag) == ("41", 41, 99, 58)
    assert (row.changed_at, row.checkpoint_at) == (7.0, 5.0)


def test_what_is_not_known_is_none_and_never_zero() -> None:
    (row,) = partition_rows(None, [], {}, ["0"])
    assert row.status == "unowned"
    assert {row.owner, row.epoch, row.offset, row.sequence, row.newest, row.lag, row.changed_at, row.reason} == {None}


@pytest.mark.parametrize(
    ("position", "bounds", "lag"),
    [
        (Position("41", 41), log(0, 99), 58),
        (Position("99", 99), log(0, 99), 0),
        (Position("120", 120), log(0, 99), 0),
        (BEGINNING, log(0, 99), 100),
        (BEGINNING, Bounds(Position("0", 0), BEGINNING), 0),
        (Position("3", 3), log(50, 99), 50),
        (Position("3", 3), log(100, 99), 0),
        (Position("3", 3), Bounds(newest=Position("9", 9)), 6),
        (Position("a"), log(0, 99), None),
        (Position("3", 3), Bounds(), None),
        (Position("3", 3), Bounds(newest=Position("b")), None),
        (Position("3", 3), None, None),
        (None, log(0, 99), None),
    ],
)
def test_lag_counts_what_can_still_be_read(position: Position | None, bounds: Bounds | None, lag: int | None) -> None:
    assert lag_of(position, bounds) == lag


@pytest.mark.parametrize(
    ("seen", "record", "status"),
    [
        (ledger(lease()), at(5), "ok"),
        (ledger(lease()), None, "starting"),
        (ledger(lease(epoch=4)), at(5), "starting"),
        (ledger(lease(), members=(member(retiring=True),)), at(5), "moving"),
        (ledger(lease(owner=None)), at(5), "unowned"),
        (ledger(), at(5), "unowned"),
        (ledger(lease(), members=()), at(5), "owner gone"),
        (ledger(lease(), members=(member(incarnation=2),)), at(5), "owner gone"),
        (ledger(lease()), at(1), "events gone"),
        (ledger(lease(), paused=True), at(5), "paused"),
        (ledger(lease(ended=True), paused=True), at(5), "ended"),
    ],
)
def test_the_status_is_a_word(seen: Ledger, record: Checkpoint | None, status: str) -> None:
    (row,) = partition_rows(seen, [record] if record else [], {"0": log(3, 9)})
    assert row.status == status


def noted(notes: Notes, *, ordinal: int = 1, fruitless: int = 0) -> Checkpoint:
    return msgspec.structs.replace(at(5), notes=notes.as_dict(), ordinal=ordinal, fruitless=fruitless)


POISON = Stopped(1, Position("6", 6), "ValueError: no", attempts=3, by="ada", at=7.0)


@pytest.mark.parametrize(
    ("record", "status", "kind"),
    [
        (noted(Notes(stopped=POISON)), "stopped", "stopped"),
        (noted(Notes(tripped=Tripped("E", at=7.0))), "tripped", "tripped"),
        (noted(Notes(failing=Failing(1, 2, "E"))), "retrying", "retrying"),
        (noted(Notes(failing=Failing(1, 2, "E")), ordinal=2), "ok", None),
        (noted(Notes(), fruitless=3), "careful", None),
        (noted(Notes(), fruitless=2), "ok", None),
        (msgspec.structs.replace(at(5), notes={"stopped": "who knows"}), "ok", None),
    ],
)
def test_a_failure_is_a_status_too(record: Checkpoint, status: str, kind: str | None) -> None:
    (row,) = partition_rows(ledger(lease()), [record], {"0": log(0, 9)})
    assert (row.status, row.failure.kind if row.failure else None) == (status, kind)


def test_a_stop_tells_the_event_and_its_error() -> None:
    (row,) = partition_rows(ledger(lease()), [noted(Notes(stopped=POISON, parked={"a": 0, "b": 0}))], {})
    stop = Failure(kind="stopped", error="ValueError: no", offset="6", attempts=3, by="ada", at=7.0)
    assert (row.failure, row.parked) == (stop, 2)


@pytest.mark.parametrize(
    ("lag", "event_at", "newest_at", "lag_s"),
    [
        (5, 100.0, 107.5, 7.5),
        (0, 100.0, 107.5, 0.0),
        (0, 0.0, None, 0.0),
        (5, 0.0, 107.5, None),
        (5, 100.0, None, None),
        (None, 100.0, 107.5, None),
        (5, 100.0, 100.0, 0.001),
        (5, 200.0, 100.0, 0.001),
    ],
)
def test_lag_in_seconds_is_zero_only_where_there_is_none(
    lag: int | None, event_at: float, newest_at: float | None, lag_s: float | None
) -> None:
    moment = datetime.fromtimestamp(newest_at, UTC) if newest_at is not None else None
    assert lag_s_of(lag, event_at, Bounds(newest_at=moment)) == lag_s


def test_what_looks_before_have_taught_is_in_the_row() -> None:
    motion = Motion(per_s=4.0, trend="grows", still_s=60.0)
    (row,) = partition_rows(ledger(lease()), [at(5)], {}, silences={ADA: 2.0}, motions={"0": motion})
    assert (row.status, row.per_s, row.trend, row.expires_s) == ("stalled", 4.0, "grows", 6.0)


def test_who_was_asked_to_retire_is_leaving_before_it_has_heard() -> None:
    seen = msgspec.structs.replace(ledger(lease()), state=GroupState(retired={"ada#1": Wish()}))
    assert [row.status for row in member_rows(seen, {ADA: 0.1})] == ["leaving"]
    assert [row.status for row in partition_rows(seen, [at(5)], {})] == ["moving"]


def test_an_owner_is_silent_after_its_own_time_to_live_and_not_before() -> None:
    rows = [partition_rows(ledger(lease()), [at(5)], {}, silences={ADA: silent_s}) for silent_s in (None, 7.9, 8.0)]
    assert [row[0].status for row in rows] == ["ok", "ok", "owner silent"]


def test_members_count_what_this_very_incarnation_owns() -> None:
    seen = ledger(
        lease("0"),
        lease("1", Owner("ada", 2)),
        lease("2"),
        lease("3", ended=True),
        members=(member(), member("bo", retiring=True)),
    )
    ada, bo = member_rows(seen, {ADA: 0.5})
    assert (ada.id, ada.partitions, ada.status, ada.silent_s) == ("ada", 2, "alive", 0.5)
    assert (bo.id, bo.partitions, bo.status, bo.silent_s) == ("bo", 0, "leaving", None)


def test_a_member_that_nobody_watched_is_neither_alive_nor_silent() -> None:
    assert [row.status for row in member_rows(ledger())] == ["unknown"]
    assert [row.status for row in member_rows(ledger(), {ADA: 9.0})] == ["silent"]
    assert member_rows(None) == []


def test_rows_come_in_the_order_that_people_count_in() -> None:
    names = ["10", "2", "0", "home-10", "home-9", "", "a1b2", "a1b10"]
    assert sorted(names, key=natural) == ["", "0", "2", "10", "a1b2", "a1b10", "home-9", "home-10"]
    rows = partition_rows(ledger(lease("10")), [at(1, "2")], {"11": Bounds()}, ["9"])
    assert [row.partition for row in rows] == ["2", "9", "10", "11"]


def test_a_beat_is_judged_only_after_it_was_seen_to_move_or_to_stand_still_for_long() -> None:
    beats = Beats()
    assert beats.look([member(mark=4)], 100.0) == {ADA: None}
    assert beats.look([member(mark=4)], 107.0) == {ADA: None}
    assert beats.look([member(mark=4)], 108.5) == {ADA: 8.5}
    assert beats.look([member(mark=5)], 109.0) == {ADA: 0.0}
    assert beats.look([member(mark=5)], 110.0) == {ADA: 1.0}
    assert beats.look([member(mark=9, incarnation=2)], 111.0) == {Owner("ada", 2): None}
