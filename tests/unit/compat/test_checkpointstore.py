"""What our checkpoint store adds to azure-eventhub's own: fencing, operator requests, and migration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from evenflow import LeaseLost, Misconfigured, StoreUnavailable
from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore
from evenflow.core.notes import Notes, Stopped
from evenflow.errors import UnknownScheme
from evenflow.model import Change, Checkpoint, Member, Position, epoch_parts
from evenflow.operate.inspect.survey import survey
from evenflow.operate.steer import Operator, pause, plan_seek, resume, retire, seek
from evenflow.signals import PartitionStarted, PartitionStopped
from evenflow.stores.memory import MemoryStore
from tests.unit.compat.officials import EXPIRY_S, INTERVAL_S, NAMES, Official, checkpoint, entry, store_of
from tests.unit.runtime.stage import GROUP, Seen, Stage, at, until

ANNA = Operator("anna", "a wrong price")


async def members(stage: Stage) -> list[str]:
    ledger = await stage.store.peek(GROUP)
    return [member.id for member in ledger.members] if ledger is not None else []


async def owners(stage: Stage) -> dict[str, str | None]:
    return {name: lease.owner.id if lease.owner else None for name, lease in sorted((await stage.leases()).items())}


# --- owners as members
async def test_an_owner_is_a_member_with_the_expiry_of_its_client(stage: Stage) -> None:
    store = EvenflowCheckpointStore(stage.store, clock=stage.clock(), load_balancing_interval=5)
    await store.claim_ownership([entry("0", "a")])
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    ((member,), (lease,)) = ledger.members, ledger.leases
    assert (member.id, member.ttl_s, member.heartbeat_s) == ("a", 30.0, 5.0)
    assert member.version.startswith("azure-eventhub 5.")
    assert (lease.owner, lease.ttl_s, lease.late) == (member.owner, 30.0, False)


async def test_a_renewal_of_all_is_one_write(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    before = dict(stage.store.asked)
    await official.cycle()
    after = dict(stage.store.asked)
    assert {kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] != before.get(kind, 0)} == {
        "heartbeat": 1
    }
    assert len(await stage.store.moves(GROUP)) == 2, "renewals are no moves"


async def test_people_see_who_owns_what(stage: Stage) -> None:
    stage.fill(10)
    official = Official(stage, "a")
    await official.cycle()
    await official.handled("0", 3)
    seen = await survey(stage.store, GROUP, stage.source)
    rows = {row.partition: row for row in seen.partition_rows()}
    assert (rows["0"].owner, rows["0"].lag, rows["0"].status) == ("a", 6, "ok")
    assert (rows["1"].owner, rows["1"].lag, rows["1"].status) == ("a", None, "starting")
    assert rows["0"].reason == "claimed: it had no owner yet"
    (member,) = seen.member_rows()
    assert (member.id, member.partitions) == ("a", 2)


async def test_who_has_let_go_of_everything_is_gone(stage: Stage) -> None:
    first, second = Official(stage, "a"), Official(stage, "b")
    await first.cycle()
    await second.cycle()
    await first.cycle()
    await first.stop()
    assert await members(stage) == ["b"]
    await second.cycle()
    assert await owners(stage) == {"0": "b", "1": "b"}
    await first.cycle()
    assert sorted(await members(stage)) == ["a", "b"], "it may come back"


async def test_a_row_that_could_not_be_removed_does_no_harm(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    stage.store.away = {"heartbeat"}
    await official.stop()
    assert await owners(stage) == {"0": None, "1": None}
    assert await members(stage) == ["a"]


async def test_what_was_handed_over_to_one_that_stops_is_let_go_too(stage: Stage) -> None:
    """It learns of it in its next cycle, which never comes."""
    stage.source.grow(2)
    official = Official(stage, "a")
    (mine, _) = await official.checkpoints.claim_ownership([entry("0", "a"), entry("1", "a")])
    other = await stage.store.heartbeat(GROUP, Member(id="ours", nonce="1", ttl_s=8.0), None)
    heir = next(member.owner for member in other.members if member.id == "a")
    given = Change(partition="2", revision=0, history=0, owner=heir, epoch=1, ttl_s=EXPIRY_S)
    assert [outcome.ok for outcome in await stage.store.swap(GROUP, [given])] == [True]
    await official.checkpoints.claim_ownership([{**mine, "owner_id": ""}])
    assert await owners(stage) == {"0": None, "1": "a", "2": "a"}, "it has one left, and goes on"
    (listed,) = [
        one for one in await official.checkpoints.list_ownership(*NAMES.values()) if one["partition_id"] == "1"
    ]
    await official.checkpoints.claim_ownership([{**listed, "owner_id": ""}])
    assert await owners(stage) == {"0": None, "1": None, "2": None}
    assert await members(stage) == ["ours"]


async def test_a_store_that_is_closed_lets_go_of_what_its_owner_knows_nothing_of(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.checkpoints.claim_ownership([entry("0", "a")])
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    given = Change(partition="1", revision=0, history=0, owner=ledger.members[0].owner, epoch=1, ttl_s=EXPIRY_S)
    await stage.store.swap(GROUP, [given])
    await official.checkpoints.close()
    assert await owners(stage) == {"0": "a", "1": "a"}, "it was not closed well: what it handles is its own"
    idle = Official(stage, "b")
    assert await idle.checkpoints.claim_ownership([entry("0", "b")]) == []
    await idle.checkpoints.close()
    assert await members(stage) == ["a"]


# --- checkpoints are fenced
async def test_who_lost_a_partition_cannot_move_its_checkpoint(stage: Stage) -> None:
    first, second = Official(stage, "a"), Official(stage, "b")
    await first.cycle()
    await first.handled("0", 5)
    await first.handled("1", 5)
    await second.cycle()  # it takes one of the two
    (lost,) = second.owned
    assert second.started == [(lost, "5")]
    with pytest.raises(LeaseLost, match=f"Partition '{lost}' was claimed by another owner"):
        await first.handled(lost, 6)
    await second.handled(lost, 7)
    with pytest.raises(LeaseLost):
        await first.handled(lost, 6)
    (kept,) = {"0", "1"} - second.owned
    await first.handled(kept, 6)
    assert await stage.positions() == {lost: 7, kept: 6}


async def test_a_claim_makes_no_checkpoint(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    assert await stage.records() == {}
    assert official.started == [("0", None), ("1", None)]


async def test_a_first_checkpoint_of_an_old_owner_gives_way(stage: Stage) -> None:
    """Nothing was there to be fenced; what the owner says later counts, also if it is less."""
    first, second = store_of(stage), store_of(stage)
    (mine,) = await first.claim_ownership([entry("0", "a")])
    await second.claim_ownership([{**mine, "owner_id": "b"}])
    await first.update_checkpoint(checkpoint("0", 9))
    await second.update_checkpoint(checkpoint("0", 3))
    assert await stage.positions() == {"0": 3}
    with pytest.raises(LeaseLost):
        await first.update_checkpoint(checkpoint("0", 10))


async def test_ordinals_count_events_and_always_grow(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    ordinals = []
    for sequence in (9, 19, 4, 4):
        await official.handled("0", sequence)
        ordinals.append((await stage.records())["0"].ordinal)
    assert ordinals == [1, 11, 12, 13]


async def test_checkpoints_of_one_partition_are_written_in_order(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    seal, delays_s = stage.store.seal, iter((1.0, 5.0, 3.0, 0.0))

    async def slow(*args: Any, **options: Any) -> Checkpoint:
        await asyncio.sleep(next(delays_s, 0.0))
        return await seal(*args, **options)

    stage.store.seal = slow  # type: ignore[method-assign]
    await asyncio.gather(*(official.handled("0", sequence) for sequence in range(3)))
    assert await stage.positions() == {"0": 2}


async def test_a_checkpoint_without_an_answer_is_overtaken_by_the_next(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    await official.handled("0", 1)
    stage.store.away = {"commit"}
    with pytest.raises(StoreUnavailable):
        await official.handled("0", 5)
    stage.store.away = set()
    await official.handled("0", 3)
    assert await stage.positions() == {"0": 3}


async def test_what_was_noted_of_another_place_is_dropped(stage: Stage) -> None:
    stopped = Stopped(ordinal=1, position=at(1), error="bad")
    notes = Notes(stopped=stopped, parked={"home-1": 1}, redriven=2)
    record = Checkpoint(partition="0", epoch=1, position=at(0), ordinal=1, notes=notes.as_dict(), event_at=5.0)
    await stage.store.seal(GROUP, "0", 1, record)
    official = Official(stage, "a")
    await official.cycle()
    await official.handled("0", 1)
    found = (await stage.records())["0"]
    assert (found.notes, found.event_at) == (Notes(parked={"home-1": 1}, redriven=2).as_dict(), 0.0)


async def test_a_seal_that_failed_is_made_up_for_before_anything_is_received(stage: Stage) -> None:
    first, second = Official(stage, "a"), Official(stage, "b")
    await first.cycle()
    await first.handled("0", 5)
    await first.handled("1", 5)
    stage.store.away = {"seal"}
    with pytest.raises(StoreUnavailable):
        await second.cycle()
    assert second.started == []
    await first.handled("0", 6)  # nothing fences it yet, and no other owner has started after 5
    stage.store.away = set()
    await second.cycle()
    ((taken, offset),) = second.started
    assert offset == {"0": "6", "1": "5"}[taken]
    with pytest.raises(LeaseLost):
        await first.handled(taken, 8)


async def test_an_unreachable_store_is_reported(stage: Stage) -> None:
    official = Official(stage, "a")
    stage.store.away = {"heartbeat"}
    with pytest.raises(StoreUnavailable):
        await official.cycle()
    stage.store.away = set()
    await official.cycle()
    assert official.owned == {"0", "1"}


# --- what people ask for
async def test_a_paused_partition_is_released_and_cannot_be_claimed(stage: Stage) -> None:
    first, second = Official(stage, "a"), Official(stage, "b")
    await first.cycle()
    await pause(stage.store, GROUP, ["0"], ANNA)
    await first.cycle()
    assert (first.owned, await owners(stage)) == ({"1"}, {"0": None, "1": "a"})
    assert (await stage.leases())["0"].reason == "released: paused by anna: a wrong price"
    await second.cycle()
    await first.cycle()
    assert await owners(stage) in ({"0": None, "1": "a"}, {"0": None, "1": "b"})
    await resume(stage.store, GROUP, ["0"], ANNA, stage.clock())
    await first.cycle()
    await second.cycle()
    assert None not in (await owners(stage)).values()


async def test_nothing_is_claimed_in_a_paused_group(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    await official.stop()
    await pause(stage.store, GROUP, None, ANNA)
    await official.cycle()
    assert official.owned == set()
    assert await store_of(stage).claim_ownership([entry("7", "b")]) == []


async def test_a_seek_moves_a_group_that_runs(stage: Stage) -> None:
    stage.fill(10)
    official = Official(stage, "a")
    official.run()
    await until(lambda: official.owned == {"0", "1"})
    await official.handled("0", 8)
    plans = await plan_seek(stage.store, stage.source, GROUP, at(2), ["0"])
    await seek(stage.store, stage.source, GROUP, plans, ANNA, stage.clock())
    with pytest.raises(LeaseLost):
        await official.handled("0", 9)  # a handler that was still at it
    await until(lambda: ("0", "2") in official.started)
    assert await stage.positions() == {"0": 2}
    official.kill()


async def test_who_is_asked_to_retire_lets_go_of_all(stage: Stage) -> None:
    first, second = Official(stage, "a"), Official(stage, "b")
    await first.cycle()
    await retire(stage.store, GROUP, "a", ANNA)
    for _ in range(2):
        await first.cycle()
        assert first.owned == set()
    await second.cycle()
    assert await owners(stage) == {"0": "b", "1": "b"}
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    assert {member.id: member.retiring for member in ledger.members} == {"a": True, "b": False}


# --- together with evenflow's Processor, and over to it
async def test_a_processor_goes_on_where_official_ones_have_stopped(stage: Stage) -> None:
    stage.fill(10)
    official = Official(stage, "a")
    await official.cycle()
    await official.handled("0", 4)
    await official.stop()
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert (seen.of("0"), seen.of("1")) == ([5, 6, 7, 8, 9], list(range(10)))


async def test_without_a_checkpoint_a_processor_starts_at_its_start_position(stage: Stage) -> None:
    stage.fill(10)
    official = Official(stage, "a")
    await official.cycle()
    await official.stop()
    seen = Seen()
    async with stage.processor(seen, start=at(6)):
        await until(lambda: len(seen) == 6)
    assert (seen.of("0"), seen.of("1")) == ([7, 8, 9], [7, 8, 9])


async def test_official_ones_go_on_where_a_processor_has_stopped(stage: Stage) -> None:
    stage.fill(10)
    await stage.processor(Seen()).serve(until="caught_up")
    official = Official(stage, "a")
    await official.cycle()
    assert official.started == [("0", "9"), ("1", "9")]
    assert list(await official.checkpoints.list_checkpoints(*NAMES.values())) == [
        checkpoint("0", 9),
        checkpoint("1", 9),
    ]


async def test_a_processor_waits_for_the_expiry_of_one_that_was_killed(stage: Stage) -> None:
    stage.fill(10)
    official = Official(stage, "a")
    await official.cycle()
    await official.handled("0", 4)
    began_s, seen = stage.now_s, Seen()
    async with stage.processor(seen):
        await until(lambda: len(seen) == 5 + 10)
    assert EXPIRY_S <= stage.now_s - began_s < EXPIRY_S + 10
    assert seen.of("0") == [5, 6, 7, 8, 9]


async def test_a_processor_hands_over_to_official_ones_and_nothing_is_taken_from_it(stage: Stage) -> None:
    stage.fill(10)
    seen = Seen()
    async with stage.processor(seen, instance_id="ours"):
        await until(lambda: len(seen) == 20)
        official = Official(stage, "a")
        await official.cycle()
        assert official.owned == set(), "it would take one at once"
        await until(lambda: bool([one for one in stage.told(PartitionStopped) if one.reason == "handed over"]))
        await official.cycle()
        ((taken, offset),) = official.started
        assert offset == "9"
        moves = await stage.store.moves(GROUP)
        assert moves[0].kind == "handed over"
        stage.fill(1)
        await until(lambda: len(seen) == 21)
        await official.handled(taken, 10)
        official.kill()
    assert seen.of(taken) == list(range(10))


async def test_a_dead_processor_is_taken_over_after_its_time_to_live(stage: Stage) -> None:
    stage.fill(10)
    process, seen = stage.new_process(), Seen()
    process.start(stage.processor(seen, loop=process, ttl_s=300.0, heartbeat_s=2.0, longest_ttl_s=300.0).serve())
    await until(lambda: len(seen) == 20)
    await asyncio.sleep(5.0)
    process.dead = True
    official, killed_s = Official(stage, "a"), stage.now_s
    official.run()
    await until(lambda: official.owned == {"0", "1"})
    assert stage.now_s - killed_s >= 300.0 - 2.0, "azure-eventhub alone would have waited for 180 s"
    assert official.started == [("0", "9"), ("1", "9")]
    official.kill()


@pytest.mark.parametrize("first", ["ours", "officials"])
async def test_a_mixed_fleet_settles_and_stays_so(stage: Stage, first: str) -> None:
    stage.source.grow(6)
    stage.fill(20)
    seen, officials = Seen(), [Official(stage, "a"), Official(stage, "b")]
    if first == "officials":
        for official in officials:
            official.run()
        await asyncio.sleep(10 * INTERVAL_S)
    async with stage.processor(seen, instance_id="ours-1"), stage.processor(seen, instance_id="ours-2"):
        if first == "ours":
            await until(lambda: len(seen) == 8 * 20)
            for official in officials:
                official.run()
        await asyncio.sleep(4 * INTERVAL_S)
        settled = await owners(stage)
        assert sorted(list(settled.values()).count(name) for name in ("ours-1", "ours-2", "a", "b")) == [2, 2, 2, 2]
        await asyncio.sleep(20 * INTERVAL_S)
        assert await owners(stage) == settled
        for official in officials:
            official.kill()
            assert official.owned == {name for name, owner in settled.items() if owner == official.name}


async def test_nothing_is_given_to_who_was_not_seen_to_heartbeat(stage: Stage) -> None:
    official = Official(stage, "a")
    await stage.store.heartbeat(GROUP, Member(id="killed", nonce="1", ttl_s=600.0), None)
    for _ in range(3):
        await official.cycle()
        assert official.owned == {"0", "1"}
        await asyncio.sleep(1.0)


async def test_official_ones_that_stop_one_after_the_other_are_replaced(stage: Stage) -> None:
    stage.source.grow(6)
    stage.fill(10)
    officials = [Official(stage, "a"), Official(stage, "b")]
    for _ in range(10):
        for official in officials:
            await official.cycle()
    for official in officials:
        for partition in official.owned:
            await official.handled(partition, 4)
    seen = Seen()
    async with stage.processor(seen):
        await asyncio.sleep(5.0)
        assert seen == [], "nothing is taken from the living"
        await officials[0].stop()
        await until(lambda: len(seen) == 4 * 5)
        await officials[1].stop()
        await until(lambda: len(seen) == 8 * 5)
    assert {sequence for _, sequence in seen} == {5, 6, 7, 8, 9}


async def test_a_checkpoint_from_outside_is_refused_where_a_processor_writes_them(stage: Stage) -> None:
    stage.fill(3)
    async with stage.processor(Seen(), instance_id="ours"):
        await until(lambda: len(stage.told(PartitionStarted)) == 2)
        with pytest.raises(LeaseLost, match="'ours', an instance of evenflow's Processor"):
            await store_of(stage).update_checkpoint(checkpoint("0", 1))
    await store_of(stage).update_checkpoint(checkpoint("0", 1))
    assert (await stage.positions())["0"] == 1


# --- lost writes
async def test_lost_writes_are_made_up_for_from_memory(stage: Stage) -> None:
    official = Official(stage, "a")
    await official.cycle()
    await official.handled("0", 3)
    snapshot = stage.store.snapshot()
    await official.handled("0", 9)
    stage.store.restore(snapshot)
    assert await stage.positions() == {"0": 3}
    await official.cycle()
    assert official.owned == {"0", "1"}
    assert await stage.positions() == {"0": 9}
    assert {epoch_parts(lease.epoch)[0] for lease in (await stage.leases()).values()} == {1}
    await official.handled("0", 10)
    assert await stage.positions() == {"0": 10}


async def test_old_etags_are_invalid_in_an_emptied_store(stage: Stage) -> None:
    store, other = EvenflowCheckpointStore(stage.store, clock=stage.clock()), Official(stage, "b")
    (mine,) = await store.claim_ownership([entry("0", "a")])
    stage.store.empty()
    await other.cycle()
    assert await store.claim_ownership([mine]) == []
    assert {name for name in (await owners(stage)).values() if name} <= {"b"}


# --- bad input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partition_id": None}, "partition_id=None: give a string"),
        ({"partition_id": 3}, "partition_id=3: give a string"),
        ({"owner_id": None}, "owner_id=None: give a string"),
        ({"consumer_group": ""}, "The group name is empty"),
    ],
)
async def test_an_invalid_claim_is_rejected(stage: Stage, change: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        await store_of(stage).claim_ownership([{**entry("0", "a"), **change}])
    with pytest.raises(Misconfigured, match="has no 'owner_id'"):
        await store_of(stage).claim_ownership([{**NAMES, "partition_id": "0"}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": None}, "has no offset"),
        ({"sequence_number": "x"}, "give an integer"),
        ({"partition_id": None}, "give a string"),
    ],
)
async def test_an_invalid_checkpoint_is_rejected(stage: Stage, change: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        await store_of(stage).update_checkpoint({**checkpoint("0", 1), **change})


async def test_a_checkpoint_may_have_no_sequence_number(stage: Stage) -> None:
    await store_of(stage).update_checkpoint({**checkpoint("0", 1), "offset": 4711, "sequence_number": None})
    assert (await stage.records())["0"].position == Position("4711", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_balancing_interval": 0}, "load_balancing_interval=0"),
        ({"load_balancing_interval": "30"}, "load_balancing_interval='30'"),
        ({"partition_ownership_expiration_interval": -1}, "partition_ownership_expiration_interval=-1"),
        ({"partition_ownership_expiration_interval": 10}, "is less than load_balancing_interval=30"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        EvenflowCheckpointStore("memory:", **settings)


async def test_an_object_that_is_no_store_is_rejected() -> None:
    with pytest.raises(UnknownScheme, match="unknown scheme"):
        EvenflowCheckpointStore("s4://bucket")
    wrong: Any = object()
    with pytest.raises(Misconfigured, match="give a store"):
        await EvenflowCheckpointStore(wrong).list_ownership(*NAMES.values())


async def test_a_store_must_be_one_that_can_be_listed() -> None:
    class Bare:
        def __init__(self, store: MemoryStore) -> None:
            self.heartbeat, self.swap, self.seal, self.commit, self.aclose = (
                store.heartbeat, store.swap, store.seal, store.commit, store.aclose
            )  # fmt: skip

    with pytest.raises(Misconfigured, match="Bare cannot list its groups"):
        await EvenflowCheckpointStore(Bare(MemoryStore())).list_ownership(*NAMES.values())


async def test_a_silent_store_is_given_up(stage: Stage) -> None:
    class Silent(MemoryStore):
        async def peek(self, group: Any) -> Any:
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable, match="has not answered for 30 s"):
        await EvenflowCheckpointStore(Silent(), clock=stage.clock()).list_ownership(*NAMES.values())


async def test_ended_partitions_are_not_listed(stage: Stage) -> None:
    await Official(stage, "a").cycle()
    leases = await stage.leases()
    stage.store._stored[GROUP].leases["0"] = replace(leases["0"], ended=True)
    listed = await store_of(stage).list_ownership(*NAMES.values())
    assert [found["partition_id"] for found in listed] == ["1"]
