"""What the plan would be with more or fewer instances, and why a partition is where it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenflow.errors import Misconfigured
from evenflow.model import (
    BEGINNING,
    Checkpoint,
    Cursor,
    Group,
    GroupState,
    Lease,
    Ledger,
    Member,
    Move,
    Owner,
    Wish,
)
from evenflow.operate.inspect.explanation import explain
from evenflow.operate.inspect.forecast import forecast_plan
from evenflow.operate.inspect.survey import Survey
from evenflow.operate.inspect.watcher import GroupWatcher

GROUP = Group("local", "homes", "alerts")
NOW_AT = 1_000.0


def member(name: str, number: int, **facts: Any) -> Member:
    known: dict[str, Any] = {"ttl_s": 8.0, "started_at": 900.0 + number}
    return Member(id=name, nonce=name, incarnation=number, **(known | facts))


def scene(owners: str, *members: Member, state: GroupState | None = None) -> Survey:
    """A partition for each letter, owned by the member whose name begins with it; "." has no owner."""
    names = {one.id[0]: one.owner for one in members} | {"x": Owner("xeno", 99)}
    leases = tuple(
        Lease(
            partition=str(number),
            owner=names.get(dead_letter),
            epoch=2,
            revision=1,
            ttl_s=8.0,
            reason="handed over: bo had 4, its share is 2",
            changed_at=NOW_AT - 12,
        )
        for number, dead_letter in enumerate(owners)
    )
    ledger = Ledger(
        cursor=Cursor("x", 0, 1), me=None, whole=True, leases=leases, members=members, state=state or GroupState()
    )
    record = Checkpoint(partition="0", epoch=2, position=BEGINNING, ordinal=0, changed_at=NOW_AT - 3)
    move = Move(partition="0", before="bo", after="ada", epoch=2, reason="handed over: ...", at=NOW_AT)
    other = Move(partition="1", before="bo", after="ada", epoch=2, reason="handed over: ...", at=NOW_AT)
    return Survey(group=GROUP, ledger=ledger, checkpoints=[record], moves=[move, other], partitions=(), bounds={})


ADA, BO = member("ada", 1), member("bo", 2)


def test_with_those_there_are_it_is_the_next_plan() -> None:
    seen = forecast_plan(scene("aaab", ADA, BO), {})
    assert [(move.before, move.after, move.reason) for move in seen.plan.moves] == [
        ("ada", "bo", "ada had 3, its share is 2")
    ]
    assert (seen.added, seen.removed, seen.plan.shares) == ((), (), {"ada": 2, "bo": 2})


def test_those_that_are_added_get_names_that_are_free() -> None:
    seen = forecast_plan(scene("aabb", ADA, BO, member("new-1", 3)), {}, 5)
    assert seen.added == ("new-2", "new-3")
    assert sorted(seen.plan.shares.values()) == [0, 1, 1, 1, 1]


def test_the_youngest_are_removed_first() -> None:
    seen = forecast_plan(scene("aabb", BO, ADA), {}, 1)
    assert seen.removed == ("bo",)
    assert {move.after for move in seen.plan.moves} == {"ada"}
    empty = forecast_plan(scene("aabb", ADA, BO), {}, 0)
    assert (empty.removed, set(empty.plan.owners.values())) == (("ada", "bo"), {None})


def test_who_is_silent_gone_or_leaves_has_no_seat() -> None:
    members = (ADA, BO, member("cy", 3, retiring=True), member("di", 4))
    state = GroupState(retired={"di#4": Wish()})
    seen = forecast_plan(scene("abcdx", *members, state=state), {BO.owner: 8.0})
    assert [seat.id for seat in seen.seats] == ["ada"]
    assert set(seen.plan.owners.values()) == {"ada"}
    reasons = {move.partition: move.reason for move in seen.plan.moves}
    assert reasons == {"1": "nobody owned it", "2": "cy leaves", "3": "di leaves", "4": "nobody owned it"}


def test_where_all_publish_their_loads_it_is_by_load() -> None:
    heavy, light = member("ada", 1, load={"0": 0.9, "1": 0.3}), member("bo", 2, load={"2": 0.3, "3": 0.3})
    seen = forecast_plan(scene("aabb", heavy, light), {})
    assert [(move.partition, move.after) for move in seen.plan.moves] == [("1", "bo")]
    mixed = forecast_plan(scene("aabb", heavy, BO), {})
    assert mixed.plan.moves == ()


def test_a_paused_partition_is_not_assigned() -> None:
    seen = forecast_plan(scene("a.", ADA, state=GroupState(pauses={"1": Wish()})), {})
    assert (seen.paused, dict(seen.plan.owners)) == (("1",), {"0": "ada"})


def shown(found: Survey, partition: str = "0") -> Any:
    return explain(GroupWatcher().observe(found, 0.0, NOW_AT), partition)


def test_a_partition_is_explained_in_sentences() -> None:
    found = shown(scene("aaab", ADA, BO))
    assert found.where == (
        "ada owns it (epoch 2): it was handed over to ada 12s ago, because bo had 4, its share is 2."
    )
    assert found.progress == "Its checkpoint is at -1, written 3.0s ago; its lag is unknown."
    assert [move.partition for move in found.moves] == ["0"]
    moved = [found for name in "012" if "moves it to bo" in (found := shown(scene("aaab", ADA, BO), name)).next]
    assert [one.next for one in moved] == [
        "The next plan moves it to bo, because ada had 3, its share is 2. bo has 1 partition; its fair share is 2 of 4."
    ]
    assert [one.next_owner for one in moved] == ["bo"]


@pytest.mark.parametrize(
    ("owner", "reason", "sentence"),
    [
        ("a", "claimed: nobody owned it", "ada owns it (epoch 2): ada claimed it 12s ago, because nobody owned it."),
        (".", "released: paused by eve", "It has no owner (epoch 2): it was released 12s ago, because it was paused"),
        (".", "seek: to 41 by eve", "It has no owner (epoch 2): its checkpoint was moved 12s ago to 41 by eve."),
        ("a", "taken again: it had stopped", "ada reclaimed it 12s ago, because it had stopped."),
        ("a", "something new", "ada owns it (epoch 2): something new 12s ago."),
    ],
)
def test_every_reason_becomes_a_sentence(owner: str, reason: str, sentence: str) -> None:
    found = scene(owner, ADA)
    assert found.ledger is not None
    leases = tuple(msgspec.structs.replace(lease, reason=reason) for lease in found.ledger.leases)
    ledger = msgspec.structs.replace(found.ledger, leases=leases)
    assert sentence in shown(msgspec.structs.replace(found, ledger=ledger)).where


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (scene("aabb", ADA, BO), "No move planned; it stays with ada. ada has 2 partitions; its fair share is 2 of 4."),
        (scene("a.", ADA, state=GroupState(pauses={"0": Wish()})), "It is paused: no plan assigns it"),
        (scene(".."), "leaves it without an owner: there are no live instances."),
        (
            scene("..", member("ada", 1, max_partitions=0)),
            "leaves it without an owner: all instances are at max_partitions",
        ),
    ],
)
def test_the_next_plan_is_explained(found: Survey, sentence: str) -> None:
    assert sentence in shown(found).next


def test_a_partition_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(Misconfigured, match=r"has no partition '9'. It has: 0 and 1."):
        shown(scene("aa", ADA), "9")
