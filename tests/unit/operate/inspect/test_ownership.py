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
    Delay,
    GroupState,
    Lease,
    Ledger,
    Member,
    Owner,
    Position,
    Wish,
)
from evenflow.operate.inspect.lag import lag_of
from evenflow.operate.inspect.members import MemberContext, member_rows
from evenflow.operate.inspect.ownership import PartitionContext, PartitionFailure, partition_rows
from evenflow.operate.inspect.rates import ProgressRate
from evenflow.operate.inspect.survey import HeartbeatTracker
from evenflow.text import natural

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
        (ledger(lease(), members=(member(foreign=True),)), None, "third-party"),
        (ledger(lease(epoch=4), members=(member(foreign=True),)), at(5), "third-party"),
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
        (noted(Notes(gone=3)), "events gone", None),
        (noted(Notes(gone=2)), "ok", None),
        (msgspec.structs.replace(at(5), notes={"stopped": "who knows"}), "ok", None),
    ],
)
def test_a_failure_is_a_status_too(record: Checkpoint, status: str, kind: str | None) -> None:
    (row,) = partition_rows(ledger(lease()), [record], {"0": log(0, 9)})
    assert (row.status, row.failure.kind if row.failure else None) == (status, kind)


def test_a_stop_names_the_event_and_its_error() -> None:
    (row,) = partition_rows(ledger(lease()), [noted(Notes(stopped=POISON, parked={"a": 0, "b": 0}))], {})
    stop = PartitionFailure(kind="stopped", error="ValueError: no", offset="6", attempts=3, by="ada", at=7.0)
    assert (row.failure, row.parked) == (stop, 2)


@pytest.mark.parametrize(
    ("sequence", "event_at", "waiting", "lag_s"),
    [
        (94, 1_000.0, 1_050.0, 50.0),  # the oldest event that waits, where the source knows it
        (94, 1_000.0, None, 100.0),  # else the last handled one, which is older
        (94, 0.0, None, None),
        (98, 1_000.0, None, 20.0),  # the only one that waits is the newest
        (99, 1_000.0, None, 0.0),
        (None, 1_000.0, None, None),
        (94, 1_000.0, 2_000.0, 0.001),  # a clock that is ahead
    ],
)
def test_lag_in_seconds_is_how_long_events_wait_and_zero_only_where_none_does(
    sequence: int | None, event_at: float, waiting: float | None, lag_s: float | None
) -> None:
    record = msgspec.structs.replace(at(sequence), event_at=event_at)
    bounds = msgspec.structs.replace(log(0, 99), newest_at=datetime.fromtimestamp(1_080.0, UTC))
    moments = {"0": datetime.fromtimestamp(waiting, UTC)} if waiting is not None else {}
    (row,) = partition_rows(
        ledger(lease()), [record], {"0": bounds}, known=PartitionContext(waiting=moments, wall_s=1_100.0)
    )
    assert row.lag_s == lag_s


def test_what_looks_before_have_taught_is_in_the_row() -> None:
    rate = ProgressRate(per_s=4.0, trend="grows", still_s=60.0)
    (row,) = partition_rows(
        ledger(lease()), [at(5)], {}, known=PartitionContext(silences={ADA: 2.0}, rates={"0": rate})
    )
    assert (row.status, row.per_s, row.trend, row.expires_s) == ("stalled", 4.0, "grows", 6.0)


@pytest.mark.parametrize(("seconds", "status"), [(5.0, "held back"), (4.9, "stalled")])
def test_who_waits_for_a_writer_is_not_called_stalled_once_that_takes_long(seconds: float, status: str) -> None:
    known = PartitionContext(
        rates={"0": ProgressRate(still_s=60.0)}, held={"0": Delay(seconds, "3 changes wait for process 7")}
    )
    (row,) = partition_rows(ledger(lease()), [at(5)], {"0": log(0, 9)}, known=known)
    assert (row.status, row.held) == (status, "3 changes wait for process 7" if seconds == 5.0 else None)


def test_who_was_asked_to_retire_is_leaving_before_it_has_heard() -> None:
    seen = msgspec.structs.replace(ledger(lease()), state=GroupState(retired={"ada#1": Wish()}))
    assert [row.status for row in member_rows(seen, MemberContext(silences={ADA: 0.1}))] == ["leaving"]
    assert [row.status for row in partition_rows(seen, [at(5)], {})] == ["moving"]


def test_an_owner_is_silent_after_its_own_time_to_live_and_not_before() -> None:
    rows = [
        partition_rows(ledger(lease()), [at(5)], {}, known=PartitionContext(silences={ADA: silent_s}))
        for silent_s in (None, 7.9, 8.0)
    ]
    assert [row[0].status for row in rows] == ["ok", "ok", "owner silent"]


def test_members_count_what_this_very_incarnation_owns() -> None:
    seen = ledger(
        lease("0"),
        lease("1", Owner("ada", 2)),
        lease("2"),
        lease("3", ended=True),
        members=(member(), member("bo", retiring=True)),
    )
    ada, bo = member_rows(seen, MemberContext(silences={ADA: 0.5}))
    assert (ada.id, ada.partitions, ada.status, ada.silent_s) == ("ada", 2, "alive", 0.5)
    assert (bo.id, bo.partitions, bo.status, bo.silent_s) == ("bo", 0, "leaving", None)


def test_an_unobserved_member_is_neither_alive_nor_silent() -> None:
    assert [row.status for row in member_rows(ledger())] == ["unknown"]
    assert [row.status for row in member_rows(ledger(), MemberContext(silences={ADA: 9.0}))] == ["silent"]
    assert member_rows(None) == []


@pytest.mark.parametrize(
    ("heartbeat_at", "status", "by_wall_clock"),
    [(999.0, "alive", True), (995.6, "alive", True), (995.0, "unknown", False), (1_060.0, "unknown", False)],
)
def test_wall_clocks_show_a_recent_heartbeat(heartbeat_at: float, status: str, by_wall_clock: bool) -> None:
    seen = ledger(members=(member(heartbeat_at=heartbeat_at, heartbeat_s=2.0),))
    (row,) = member_rows(seen, MemberContext(wall_s=1_000.0))
    assert (row.status, row.by_wall_clock) == (status, by_wall_clock)
    (watched,) = member_rows(seen, MemberContext(silences={ADA: 0.1}, wall_s=1_000.0))
    assert (watched.status, watched.by_wall_clock) == ("alive", False)


def test_loads_are_shown_for_partitions_and_for_members_against_the_mean() -> None:
    seen = ledger(lease("0"), lease("1"), lease("2", Owner("bo", 1)), members=(member(), member("bo", weight=2.0)))
    loads = {"0": 0.75, "1": 0.25, "2": 0.5}
    ada, bo = member_rows(seen, MemberContext(loads=loads))
    assert [(row.load, row.load_of_mean) for row in (ada, bo)] == [(1.0, 2.0), (0.5, 0.5)]
    assert [row.load for row in partition_rows(seen, [], {}, known=PartitionContext(loads=loads))] == [0.75, 0.25, 0.5]
    assert {row.load for row in member_rows(seen)} == {None}


def test_rows_come_in_the_order_that_people_count_in() -> None:
    names = ["10", "2", "0", "home-10", "home-9", "", "a1b2", "a1b10"]
    assert sorted(names, key=natural) == ["", "0", "2", "10", "a1b2", "a1b10", "home-9", "home-10"]
    rows = partition_rows(ledger(lease("10")), [at(1, "2")], {"11": Bounds()}, ["9"])
    assert [row.partition for row in rows] == ["2", "9", "10", "11"]


def test_a_heartbeat_is_judged_only_after_it_was_seen_to_move_or_to_stand_still_for_long() -> None:
    heartbeats = HeartbeatTracker()
    assert heartbeats.observe([member(mark=4)], 100.0) == {ADA: None}
    assert heartbeats.observe([member(mark=4)], 107.0) == {ADA: None}
    assert heartbeats.observe([member(mark=4)], 108.5) == {ADA: 8.5}
    assert heartbeats.observe([member(mark=5)], 109.0) == {ADA: 0.0}
    assert heartbeats.observe([member(mark=5)], 110.0) == {ADA: 1.0}
    assert heartbeats.observe([member(mark=9, incarnation=2)], 111.0) == {Owner("ada", 2): None}
