"""What is the Redis store's own: that it decides as `rules` do, wide numbers, what a heartbeat costs, layouts,
eviction.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.errors import LeaseLost, Misconfigured, Superseded
from evenflow.model import (
    EPOCH_HISTORY_BITS,
    Action,
    Change,
    Checkpoint,
    Cursor,
    Group,
    Member,
    Position,
    Steering,
)
from evenflow.stores.memory import MemoryStore
from evenflow.stores.redis.store import RedisStore
from evenflow.testing.store.scene import PATIENCE_S, after, at, first, granted, present
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from evenflow.model import Ledger, Outcome
    from evenflow.ports import Store
    from tests.servers.redis import RedisServer

GROUP = Group("homes.example", "sensors", "alerts")
WIDE = (1 << 54) + (5 << EPOCH_HISTORY_BITS)
"""A double cannot distinguish this number from the next one."""


def play(url: str, scenario: Callable[[RedisStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = RedisStore(url)
        try:
            await scenario(store)
        finally:
            await store.aclose()

    asyncio.run(run())


# --- wide numbers
def test_the_number_is_too_wide_for_a_double() -> None:
    assert float(WIDE) == float(WIDE + 1)


def test_neighbouring_epochs_above_2_to_the_53_are_distinguished(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        assert (await store.seal(GROUP, "0", WIDE, at(0))).epoch == WIDE
        assert (await store.commit(GROUP, [at(1, epoch=WIDE)]))[0].ok
        for wrong in (WIDE - 1, WIDE + 1):
            assert (await store.commit(GROUP, [at(2, epoch=wrong)]))[0].why == "epoch"
        with pytest.raises(LeaseLost):
            await store.seal(GROUP, "0", WIDE - 1, at(0))
        assert (await store.seal(GROUP, "0", WIDE + 1, at(0))).epoch == WIDE + 1
        assert (await store.commit(GROUP, [at(3, epoch=WIDE)]))[0].why == "epoch"
        assert [record.epoch for record in await store.checkpoints(GROUP)] == [WIDE + 1]

    play(redis_url, scenario)


def test_neighbouring_ordinals_above_2_to_the_53_are_distinguished(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        await store.seal(GROUP, "0", 1, at(WIDE))
        assert (await store.commit(GROUP, [at(WIDE + 1)]))[0].ok
        assert (await store.commit(GROUP, [at(WIDE)]))[0].ok, "overtaken"
        assert (await store.seal(GROUP, "0", 2, at(0), unplanned=True)).ordinal == WIDE + 1
        assert (await store.seal(GROUP, "0", 3, at(0), unplanned=True)).fruitless == 1

    play(redis_url, scenario)


def test_neighbouring_incarnations_above_2_to_the_53_are_distinguished(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        old = Member(id="a", nonce="1", ttl_s=8.0, incarnation=WIDE)
        assert present(await store.heartbeat(GROUP, old, None)).incarnation == WIDE
        newer = present(await store.heartbeat(GROUP, structs.replace(old, nonce="2", incarnation=WIDE + 1), None))
        assert newer.incarnation == WIDE + 1
        with pytest.raises(Superseded):
            await store.heartbeat(GROUP, old, None)
        fresh = present(await store.heartbeat(GROUP, Member(id="b", nonce="1", ttl_s=8.0), None))
        assert fresh.incarnation == WIDE + 2
        (outcome,) = await store.swap(GROUP, [first("0", old.owner, epoch=WIDE)])
        assert outcome.why == "owner"
        (outcome,) = await store.swap(GROUP, [first("0", newer.owner, epoch=WIDE + 1)])
        assert (granted(outcome).epoch, granted(outcome).owner) == (WIDE + 1, newer.owner)
        assert (await store.heartbeat(GROUP, structs.replace(newer, leaving=True), None)).me is not None

    play(redis_url, scenario)


def test_a_count_of_32_bits_carries_into_the_high_half(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        last = (7 << EPOCH_HISTORY_BITS) + (1 << EPOCH_HISTORY_BITS) - 1
        await store.heartbeat(GROUP, Member(id="a", nonce="1", ttl_s=8.0, incarnation=last), None)
        joined = await store.heartbeat(GROUP, Member(id="b", nonce="1", ttl_s=8.0), None)
        assert present(joined).incarnation == last + 1
        assert not (await store.heartbeat(GROUP, present(joined), joined.cursor)).roster, "it is the same one"

    play(redis_url, scenario)


def test_what_a_script_does_not_look_at_passes_through_it_unharmed(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        notes = {"wide": WIDE + 1, "exact": 1763227000.1234567, "text": "naïve\n家", "nested": [None, {"a": True}]}
        position = Position("a\nb", WIDE + 1)
        record = Checkpoint(
            partition="0", epoch=1, position=position, ordinal=5, notes=notes, event_at=1763227000.1234567, effects=True
        )
        await store.seal(GROUP, "0", 1, at(0))
        await store.commit(GROUP, [record])
        (kept,) = await store.checkpoints(GROUP)
        assert structs.replace(kept, changed_at=0.0) == record

    play(redis_url, scenario)


def test_commits_of_one_partition_in_one_call_follow_each_other(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        await store.seal(GROUP, "0", 1, at(0))
        assert [one.ok for one in await store.commit(GROUP, [at(5), at(4)])] == [True, True]
        assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 5

    play(redis_url, scenario)


def test_the_floor_of_a_deleted_group_is_above_wide_epochs_of_partitions_with_odd_names(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        me = present(await store.heartbeat(GROUP, Member(id='a"],1,[', nonce="1", ttl_s=8.0), None))
        changes = [first(name, me.owner, epoch=WIDE + 2) for name in ('"', "\\", '",null,9', "家")]
        assert all(outcome.ok for outcome in await store.swap(GROUP, changes))
        lease = granted((await store.swap(GROUP, [first("free", None, epoch=WIDE + 3)]))[0])
        await store.delete(GROUP)
        assert (await store.heartbeat(GROUP, me, None)).epoch_floor == lease.epoch + 1
        await store.heartbeat(GROUP, structs.replace(me, leaving=True), None)
        assert await store.find_damage(GROUP) is None

    play(redis_url, scenario)


def test_a_group_of_the_former_layout_goes_on(redis_server: RedisServer, redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        ledger = await store.heartbeat(GROUP, Member(id="a", nonce="1", ttl_s=8.0), None)
        me = present(ledger)
        lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
        await store.seal(GROUP, "0", lease.epoch, at(5))
        key = f"{redis_url.partition('prefix=')[2]}:{{homes.example/sensors/alerts}}"
        record = redis_server.ask("HGET", f"{key}:records", "0").split(b"\n")
        redis_server.ask("HSET", f"{key}:records", "0", b"\n".join(record[:6] + record[7:]))
        redis_server.ask("HDEL", f"{key}:group", "began")
        redis_server.ask("DEL", f"{key}:trail")
        fresh = RedisStore(redis_url)
        found = await fresh.heartbeat(GROUP, me, None)
        assert (found.cursor.history, found.began, found.epoch_floor, found.leases) == (0, 0, 0, (lease,))
        (kept,) = await fresh.checkpoints(GROUP)
        assert (kept.ordinal, kept.edition) == (5, 0)
        assert (await fresh.commit(GROUP, [structs.replace(at(5, notes={"new": 1}), edition=1)]))[0].ok
        assert (await fresh.seal(GROUP, "0", lease.epoch, at(0))).notes == {"new": 1}
        assert (await fresh.seal(GROUP, "0", lease.epoch + 1, at(0))).ordinal == 5
        await fresh.aclose()

    play(redis_url, scenario)


# --- wake-ups
def test_a_pass_wakes_the_heir_alone_and_steering_wakes_everybody(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        me, heir = [present(await store.heartbeat(GROUP, Member(id=id, nonce="1", ttl_s=8.0), None)) for id in "ab"]
        lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
        calls: list[str] = []
        ends = [store.watch(GROUP, id, partial(calls.append, id)) for id in ("a", "b", "c")]
        await _until(lambda: sorted(calls) == ["a", "b", "c"])  # each is woken once when it has begun to listen
        calls.clear()
        await store.swap(GROUP, [after(lease, heir.owner)])
        await _until(lambda: calls == ["b"])
        await store.steer(GROUP, Steering(pause=("0",)), Action(kind="pause", by="", why="", what=""))
        await _until(lambda: sorted(calls) == ["a", "b", "b", "c"])
        for end in ends:
            end()

    play(redis_url, scenario)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# --- it decides as the rules do
class Twin:
    """A Redis store and a memory store that are asked the same."""

    def __init__(self, store: RedisStore) -> None:
        self.stores: Sequence[Store] = store, MemoryStore()
        self.cursors: list[list[Cursor]] = [[], []]
        self.leases: list[dict[str, Any]] = [{}, {}]
        self.marks: list[dict[Any, int]] = [{}, {}]
        self.floor = 0
        self.epochs: list[int] = []

    async def both(self, ask: Callable[[int, Store], Awaitable[Any]]) -> list[Any]:
        answers = []
        for number, store in enumerate(self.stores):
            try:
                answers.append(await ask(number, store))
            except (Superseded, LeaseLost) as error:
                answers.append(error)
        return answers

    async def heartbeat(self, member: Member, since: int | None, *, foreign: int | None = None) -> Member | None:
        async def ask(number: int, store: Store) -> Ledger:
            cursor = self.cursors[number][since] if since is not None and self.cursors[number] else None
            if foreign is not None:
                cursor = Cursor("another", foreign, 1)
            return await store.heartbeat(GROUP, member, cursor)

        ledgers = await self.both(ask)
        if isinstance(ledgers[0], Exception):
            assert str(ledgers[0]) == str(ledgers[1])
            return None
        seen = [self._seen(ledger) for ledger in ledgers]
        assert seen[0] == seen[1]
        for number, ledger in enumerate(ledgers):
            self.cursors[number] = [*self.cursors[number][-4:], ledger.cursor]
            for lease in ledger.leases:
                self.leases[number][lease.partition] = lease
            for row in ledger.members:
                self.marks[number][row.owner] = row.mark
        self.floor = ledgers[0].epoch_floor
        me: Member | None = ledgers[0].me
        return me and structs.replace(me, mark=0, heartbeat_at=0.0)

    def _seen(self, ledger: Ledger) -> Any:
        leases = {one.partition: structs.replace(one, revision=0, changed_at=0.0) for one in ledger.leases}
        members = {one.id: structs.replace(one, mark=0, heartbeat_at=0.0) for one in ledger.members}
        protocol = ledger.cursor.history, ledger.began, ledger.epoch_floor
        return protocol, ledger.whole, ledger.roster, leases, members, ledger.state, ledger.me is None

    async def swap(self, makers: Sequence[Callable[[int], Change]]) -> None:
        answers = await self.both(lambda number, store: store.swap(GROUP, [make(number) for make in makers]))
        seen = [[self._outcome(outcome) for outcome in answer] for answer in answers]
        assert seen[0] == seen[1]
        for number, answer in enumerate(answers):
            for outcome in answer:
                if outcome.lease is not None:
                    self.leases[number][outcome.partition] = outcome.lease

    def _outcome(self, outcome: Outcome) -> Any:
        lease = outcome.lease and structs.replace(outcome.lease, revision=0, changed_at=0.0)
        return outcome.partition, outcome.ok, outcome.why, lease

    async def same(self, ask: Callable[[Store], Awaitable[Any]]) -> None:
        answers = await self.both(lambda _, store: ask(store))
        one, other = (_timeless(answer) for answer in answers)
        assert one == other


def _timeless(answer: Any) -> Any:
    if isinstance(answer, LeaseLost):
        return str(answer), answer.lowest_epoch
    return structs.replace(answer, changed_at=0.0) if isinstance(answer, Checkpoint) else answer


@pytest.mark.parametrize("seed", range(8))
def test_it_decides_as_the_rules_do(redis_url: str, seed: int) -> None:
    """Some hundred random steps, with small numbers and with wide ones, sent to this store and to one of Python."""

    async def scenario(store: RedisStore) -> None:
        chance, twin = random.Random(seed), Twin(store)
        base = chance.choice((0, WIDE))
        members = [Member(id=name, nonce="1", ttl_s=8.0) for name in "abc"]
        if base:
            members[0] = structs.replace(members[0], incarnation=base)
        for _ in range(250):
            step = chance.randrange(12)
            if step < 4:
                number = chance.randrange(len(members))
                member = members[number]
                if chance.random() < 0.15:
                    member = structs.replace(member, nonce=str(chance.random()), incarnation=0)
                elif chance.random() < 0.1:
                    member = structs.replace(member, weight=chance.choice((1.0, 2.0)))
                leaving = chance.random() < 0.1
                foreign = chance.choice((0, 1, base >> 60)) if chance.random() < 0.05 else None
                since = chance.choice((None, -1, 0))
                me = await twin.heartbeat(structs.replace(member, leaving=leaving), since, foreign=foreign)
                if me is not None:
                    members[number] = me
                elif chance.random() < 0.7:
                    members[number] = structs.replace(member, nonce=str(chance.random()), incarnation=0)
            elif step < 7:
                await twin.swap([_change(chance, twin, members, base) for _ in range(chance.choice((1, 3)))])
            elif step == 7:
                partition, epoch = chance.choice("01"), _epoch(chance, twin, base)
                default = structs.replace(at(base + chance.randrange(4)), effects=chance.random() < 0.1)
                unplanned = chance.random() < 0.5
                await twin.same(
                    lambda one: one.seal(GROUP, partition, epoch, default, unplanned=unplanned)  # noqa: B023
                )
            else:
                records = [_checkpoint(chance, twin, base) for _ in range(2)]
                await twin.same(lambda one: one.commit(GROUP, records))  # noqa: B023
            await twin.same(_records)
            if chance.random() < 0.02:
                await twin.same(_delete)

    play(redis_url, scenario)


async def _records(store: Any) -> list[Checkpoint]:
    found = [_timeless(record) for record in await store.checkpoints(GROUP)]
    return sorted(found, key=lambda record: record.partition)


async def _delete(store: Any) -> None:
    await store.delete(GROUP)


def _epoch(chance: random.Random, twin: Twin, base: int) -> int:
    """Around the group's floor, or of any history; or one that was used before."""
    if twin.epochs and chance.random() < 0.6:
        return chance.choice(twin.epochs[-3:])
    count = chance.choice((base, twin.floor)) + chance.randrange(-1, 3)
    epoch = max(0, count) + (chance.randrange(3) << EPOCH_HISTORY_BITS)
    twin.epochs.append(epoch)
    return epoch


def _checkpoint(chance: random.Random, twin: Twin, base: int) -> Checkpoint:
    record = at(base + chance.randrange(6), epoch=_epoch(chance, twin, base), notes={"n": chance.random()})
    return structs.replace(
        record,
        partition=chance.choice("01"),
        edition=chance.randrange(3),
        begun=base + chance.randrange(3),
        fruitless=chance.randrange(3),
        effects=chance.random() < 0.1,
    )


def _change(chance: random.Random, twin: Twin, members: Sequence[Member], base: int) -> Callable[[int], Change]:
    partition = chance.choice("0123")
    owner = chance.choice([None, *(member.owner for member in members)])
    still = chance.choice([None, None, *(member.owner for member in members)])
    stale, unknown, epoch = chance.random() < 0.15, chance.random() < 0.3, max(base, twin.floor) + chance.randrange(9)
    history = chance.random() < 0.05

    def make(number: int) -> Change:
        lease = twin.leases[number].get(partition)
        now = twin.cursors[number][-1].history if twin.cursors[number] else 0
        mark = None if unknown or still is None else twin.marks[number].get(still)
        return Change(
            partition=partition,
            revision=(lease.revision if lease else 0) + stale,
            history=now + history,
            owner=owner,
            epoch=epoch,
            ttl_s=8.0,
            reason="why not",
            still=None if still is None else (still, mark),
        )

    return make


# --- what a heartbeat costs
def test_a_heartbeat_of_a_large_quiet_group_is_one_round_trip_and_small(
    redis_server: RedisServer, redis_url: str
) -> None:
    async def scenario(store: RedisStore) -> None:
        members = [
            present(
                await store.heartbeat(
                    GROUP, Member(id=f"instance-{number}", nonce="n" * 32, ttl_s=8.0, host="h" * 20), None
                )
            )
            for number in range(100)
        ]
        me = members[0]
        for block in range(0, 10_000, 1_000):
            changes = [first(str(number), members[number % 100].owner) for number in range(block, block + 1_000)]
            assert all(outcome.ok for outcome in await store.swap(GROUP, changes))
        since = (await store.heartbeat(GROUP, me, None)).cursor
        for member in members[1:]:
            await store.heartbeat(GROUP, member, since)
        with Proxy(redis_server.port) as proxy:
            near = RedisStore(redis_url.replace(str(redis_server.port), str(proxy.port)))
            try:
                since = (await near.heartbeat(GROUP, me, since)).cursor
                for member in members[1:]:
                    await store.heartbeat(GROUP, member, since)
                before = proxy.count
                ledger = await near.heartbeat(GROUP, me, since)
                cost = proxy.count - before
                assert (ledger.whole, ledger.leases, ledger.roster, ledger.members) == (False, (), False, ())
                assert cost.round_trips == 1
                assert cost.sent_bytes + cost.answered_bytes < 4_096
            finally:
                await near.aclose()

    play(redis_url, scenario)


def test_a_commit_of_many_partitions_is_one_round_trip(redis_server: RedisServer, redis_url: str) -> None:
    async def scenario(_: RedisStore) -> None:
        with Proxy(redis_server.port) as proxy:
            near = RedisStore(redis_url.replace(str(redis_server.port), str(proxy.port)))
            try:
                for number in range(64):
                    await near.seal(GROUP, str(number), 1, at(0))
                await near.commit(GROUP, [at(1, partition="0")])
                before = proxy.count
                outcomes = await near.commit(GROUP, [at(2, partition=str(number)) for number in range(64)])
                assert all(outcome.ok for outcome in outcomes)
                assert (proxy.count - before).round_trips == 1
            finally:
                await near.aclose()

    play(redis_url, scenario)


# --- the keys
def test_every_key_has_the_prefix_and_the_tag_of_its_group(redis_server: RedisServer, redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        group = Group("a{b}c", "x:y", "}{")
        me = present(await store.heartbeat(group, Member(id="a", nonce="1", ttl_s=8.0), None))
        lease = granted((await store.swap(group, [first("0", me.owner)]))[0])
        await store.swap(group, [after(lease, None)])
        await store.seal(group, "0", 1, at(0))
        prefix = redis_url.partition("prefix=")[2]
        keys = {key.decode() for key in redis_server.ask("KEYS", f"{prefix}:*")}
        keys.remove(f"{prefix}:groups")
        assert len(keys) > 5
        assert {key.rpartition(":")[0] for key in keys} == {f"{prefix}:{{a%7Bb%7Dc/x%3Ay/%7D%7B}}"}
        assert await store.groups() == [group]

    play(redis_url, scenario)


# --- a first look
def test_a_newer_layout_is_refused(redis_server: RedisServer, redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        me = present(await store.heartbeat(GROUP, Member(id="a", nonce="1", ttl_s=8.0), None))
        prefix = redis_url.partition("prefix=")[2]
        redis_server.ask("HSET", f"{prefix}:{{homes.example/sensors/alerts}}:group", "layout", "2")
        for request in (
            store.heartbeat(GROUP, me, None),
            store.swap(GROUP, [first("0", me.owner)]),
            store.seal(GROUP, "0", 1, at(0)),
            store.commit(GROUP, [at(0)]),
            store.peek(GROUP),
            store.checkpoints(GROUP),
            store.delete(GROUP),
        ):
            with pytest.raises(Misconfigured, match="newer evenflow"):
                await request
        redis_server.ask("HSET", f"{prefix}:groups", "layout", "2")
        again = RedisStore(redis_url)
        with pytest.raises(Misconfigured, match="newer evenflow"):
            await again.groups()
        await again.aclose()

    play(redis_url, scenario)


def test_who_only_looks_gets_an_error_if_there_is_nothing(redis_url: str) -> None:
    async def scenario(store: RedisStore) -> None:
        looker = RedisStore(redis_url, create=False)
        with pytest.raises(Misconfigured, match="prefix"):
            await looker.groups()
        await store.heartbeat(GROUP, Member(id="a", nonce="1", ttl_s=8.0), None)
        assert await looker.groups() == [GROUP]
        await looker.delete(GROUP)
        assert await looker.groups() == []
        await looker.aclose()

    play(redis_url, scenario)


def test_a_server_that_may_evict_checkpoints_is_refused(tmp_path: Path) -> None:
    from tests.servers.redis import RedisServer

    server = RedisServer(tmp_path / "server", "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru").start()

    async def refused(store: RedisStore) -> None:
        with pytest.raises(Misconfigured, match="allkeys-lru"):
            await store.groups()

    async def accepted(store: RedisStore) -> None:
        assert await store.groups() == []

    try:
        play(server.url, refused)
        play(f"{server.url}?eviction=accept", accepted)
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        play(server.url, accepted)
    finally:
        server.stop()
