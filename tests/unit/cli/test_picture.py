"""What `evenflow status` calls things that nobody has watched."""

from __future__ import annotations

import pytest

from evenflow.cli.picture import Picture
from evenflow.model import Cursor, Group, Lease, Ledger, Member, Owner
from evenflow.observe.survey import Survey

NOW_AT = 1_000.0


@pytest.mark.parametrize(
    ("age_s", "member", "partition"), [(3.0, "unknown", "starting"), (20.0, "silent", "owner silent")]
)
def test_an_owner_that_is_long_silent_is_not_called_fine(age_s: float, member: str, partition: str) -> None:
    ledger = Ledger(
        cursor=Cursor("lineage", 0, 2),
        me=None,
        whole=True,
        leases=(Lease(partition="0", owner=Owner("a", 1), epoch=1, revision=2, ttl_s=8.0),),
        members=(Member(id="a", nonce="n", incarnation=1, ttl_s=8.0, beat_at=NOW_AT - age_s),),
    )
    group = Group("local", "hub", "group")
    survey = Survey(group=group, ledger=ledger, checkpoints=(), moves=(), partitions=("0",), bounds={})
    picture = Picture(survey, {}, NOW_AT)
    assert [row.status for row in picture.members] == [member]
    assert [row.status for row in picture.partitions] == [partition]
