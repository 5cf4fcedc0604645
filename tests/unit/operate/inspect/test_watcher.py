"""What `evenflow status` says of members that were not observed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from evenflow.model import Bounds, Checkpoint, Cursor, Group, Lease, Ledger, Member, Owner, Position
from evenflow.operate.inspect.survey import Survey
from evenflow.operate.inspect.watcher import GroupWatcher

NOW_AT = 1_000.0


@pytest.mark.parametrize(
    ("age_s", "member", "partition"),
    [(3.0, "alive", "starting"), (6.0, "unknown", "starting"), (20.0, "silent", "owner silent")],
)
def test_an_owner_that_is_long_silent_is_not_called_fine(age_s: float, member: str, partition: str) -> None:
    ledger = Ledger(
        cursor=Cursor("lineage", 0, 2),
        me=None,
        whole=True,
        leases=(Lease(partition="0", owner=Owner("a", 1), epoch=1, revision=2, ttl_s=8.0),),
        members=(Member(id="a", nonce="n", incarnation=1, ttl_s=8.0, heartbeat_at=NOW_AT - age_s),),
    )
    group = Group("local", "hub", "group")
    survey = Survey(group=group, ledger=ledger, checkpoints=(), moves=(), partitions=("0",), bounds={})
    snapshot = GroupWatcher().observe(survey, 0.0, NOW_AT)
    assert [row.status for row in snapshot.members] == [member]
    assert [row.status for row in snapshot.partitions] == [partition]


def test_who_has_long_been_silent_and_owns_nothing_gets_no_share() -> None:
    ledger = Ledger(
        cursor=Cursor("lineage", 0, 2),
        me=None,
        whole=True,
        leases=tuple(Lease(partition=name, owner=Owner("a", 1), epoch=1, revision=2, ttl_s=8.0) for name in "01"),
        members=(
            Member(id="a", nonce="n", incarnation=1, ttl_s=8.0, heartbeat_at=NOW_AT - 9.0),
            Member(id="b", nonce="m", incarnation=2, ttl_s=8.0, heartbeat_at=NOW_AT - 9.0),
        ),
    )
    group = Group("local", "hub", "group")
    survey = Survey(group=group, ledger=ledger, checkpoints=(), moves=(), partitions=("0", "1"), bounds={})
    snapshot = GroupWatcher().observe(survey, 0.0, NOW_AT)
    assert [(row.id, row.status, row.share) for row in snapshot.members] == [("a", "unknown", 2), ("b", "silent", None)]
    assert snapshot.findings == []


def checkpoint(partition: str, sequence: int, ordinal: int) -> Checkpoint:
    return Checkpoint(partition=partition, epoch=1, position=Position(str(sequence), sequence), ordinal=ordinal)


def test_sums_leave_out_what_is_unknown_and_say_how_much() -> None:
    bounds = {"0": Bounds(newest=Position("9", 9))}
    records = [checkpoint("0", 4, 5), checkpoint("1", 4, 5)]
    group = Group("local", "hub", "group")
    survey = Survey(group=group, ledger=None, checkpoints=records, moves=(), partitions=("0", "1"), bounds=bounds)
    snapshot = GroupWatcher().observe(survey, 0.0, NOW_AT)
    assert (snapshot.lag, snapshot.unknown_lags, snapshot.lag_s, snapshot.status) == (5, 1, None, "no instances")
    # How long they have waited may be known where their number is not, as in Kinesis.
    dated = replace(survey, bounds={}, waiting={"1": datetime.fromtimestamp(NOW_AT - 30.0, UTC)})
    assert (GroupWatcher().observe(dated, 0.0, NOW_AT).lag, GroupWatcher().observe(dated, 0.0, NOW_AT).lag_s) == (
        None,
        30.0,
    )
    nothing = Survey(group=group, ledger=None, checkpoints=(), moves=(), partitions=("0",), bounds={})
    assert (
        GroupWatcher().observe(nothing, 0.0, NOW_AT).lag,
        GroupWatcher().observe(nothing, 0.0, NOW_AT).unknown_lags,
    ) == (
        None,
        1,
    )


def test_what_has_ended_says_nothing_of_the_lag_of_others() -> None:
    leases = tuple(Lease(partition=name, owner=None, epoch=1, revision=2, ended=name == "0") for name in "01")
    ledger = Ledger(cursor=Cursor("lineage", 0, 2), me=None, whole=True, leases=leases, members=())
    group = Group("local", "hub", "group")
    survey = Survey(group=group, ledger=ledger, checkpoints=(), moves=(), partitions=("0", "1"), bounds={})
    snapshot = GroupWatcher().observe(survey, 0.0, NOW_AT)
    assert (snapshot.lag, snapshot.lag_s, snapshot.unknown_lags) == (None, None, 1)
