"""What an object store reads and puts for each request, how large it is, and when snapshots are made.

On the driver's own store in memory, which obeys conditions as a server does; what servers do is in the contract suite
and in tests/integration/test_objects_faults.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import json, structs
from obstore.store import MemoryStore

from evenflow.errors import StoreUnavailable
from evenflow.model import Action, Group, Member, Steering
from evenflow.stores.objects import codec as wire
from evenflow.stores.objects.client import BucketClient, ObjectVersion, PutConflict
from evenflow.stores.objects.group_object import OLD_MOST, WRITES_KEPT, GroupObject, GroupObjectFormat
from evenflow.stores.objects.store import ObjectsStore
from evenflow.stores.objects.versioned_object import VersionedObject
from evenflow.testing.store.scene import after, at, first, granted, present

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GROUP = Group("homes.example", "sensors", "alerts")
PARTITIONS, CROWD = 10_000, 100


class Bucket:
    """A bucket, and what its clients have asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = MemoryStore()
        self.asked: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}
        get, put = BucketClient.get, BucketClient.put

        async def counted_get(link: BucketClient, path: str, known: ObjectVersion | None = None) -> Any:
            self.asked[f"get {kind_of(path)}"] += 1
            return await get(link, path, known)

        async def counted_put(link: BucketClient, path: str, data: bytes, known: ObjectVersion | None) -> ObjectVersion:
            self.asked[f"put {kind_of(path)}"] += 1
            self.sizes[path] = len(data)
            return await put(link, path, data, known)

        monkeypatch.setattr(BucketClient, "get", counted_get)
        monkeypatch.setattr(BucketClient, "put", counted_put)

    def client(self) -> ObjectsStore:
        return ObjectsStore(self._store)

    async def count(self, request: Awaitable[object]) -> dict[str, int]:
        before = self.asked.copy()
        await request
        return dict(self.asked - before)

    @property
    def group_object_bytes(self) -> int:
        return self.sizes[wire.group_object_path(GROUP)]

    async def snapshots(self) -> list[str]:
        found = await BucketClient(self._store).paths(wire.snapshots_path(GROUP))
        return sorted(found)


def kind_of(path: str) -> str:
    return path.split("/")[1] if "/" in path else "probe"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(monkeypatch)


def member(name: str) -> Member:
    return Member(
        id=name, nonce=f"nonce of {name}", ttl_s=20.0, heartbeat_s=5.0, host="machine-1", pid=4711, version="1.0"
    )


async def join(store: ObjectsStore, name: str) -> Member:
    return present(await store.heartbeat(GROUP, member(name), None))


async def claim(store: ObjectsStore, owner: Member, partitions: range) -> None:
    changes = [first(str(number), owner.owner, reason="claimed: no owner") for number in partitions]
    assert all(outcome.ok for outcome in await store.swap(GROUP, changes))


# --- what it costs
def test_a_heartbeat_is_one_look_and_one_put_whatever_the_number_of_partitions(bucket: Bucket) -> None:
    async def play() -> None:
        one, two = bucket.client(), bucket.client()
        a, b = await join(one, "a"), await join(two, "b")
        await claim(one, a, range(PARTITIONS))
        for _ in range(100):
            await one.heartbeat(GROUP, a, None)
            await two.heartbeat(GROUP, b, None)
        assert await bucket.count(one.heartbeat(GROUP, a, None)) == {"get group": 1, "put group": 1}
        assert await bucket.count(two.heartbeat(GROUP, b, None)) == {"get group": 1, "put group": 1}

    asyncio.run(play())


def test_who_is_alone_only_puts_and_a_swap_after_a_heartbeat_too(bucket: Bucket) -> None:
    async def play() -> None:
        one = bucket.client()
        a = await join(one, "a")
        await one.heartbeat(GROUP, a, None)
        assert await bucket.count(one.heartbeat(GROUP, a, None)) == {"put group": 1}
        assert await bucket.count(claim(one, a, range(5))) == {"put group": 1}
        await join(bucket.client(), "b")
        assert await bucket.count(one.heartbeat(GROUP, a, None)) == {"put group": 2, "get group": 1}, (
            "not alone any more"
        )
        await join(bucket.client(), "c")
        assert await bucket.count(one.heartbeat(GROUP, a, None)) == {"put group": 1, "get group": 1}

    asyncio.run(play())


def test_a_commit_is_one_put_and_a_seal_a_look_and_a_put(bucket: Bucket) -> None:
    async def play() -> None:
        one = bucket.client()
        await join(one, "a")
        assert await bucket.count(one.seal(GROUP, "0", 1, at(0))) == {
            "get checkpoints": 1, "put checkpoints": 1, "get group": 1,
        }, "the first one: whether the group is still there"  # fmt: skip
        assert await bucket.count(one.seal(GROUP, "0", 2, at(0))) == {"get checkpoints": 1, "put checkpoints": 1}
        assert await bucket.count(one.commit(GROUP, [at(1, epoch=2)])) == {"put checkpoints": 1}
        assert await bucket.count(one.seal(GROUP, "0", 2, at(0))) == {"get checkpoints": 1}
        assert await bucket.count(bucket.client().commit(GROUP, [at(2, epoch=2)])) == {
            "get checkpoints": 1, "put checkpoints": 1, "put probe": 4, "get group": 1,
        }  # fmt: skip
        assert await bucket.count(one.commit(GROUP, [at(3, epoch=2)])) == {"put checkpoints": 2, "get checkpoints": 1}

    asyncio.run(play())


def test_a_quiet_heart_is_small(bucket: Bucket) -> None:
    async def play() -> None:
        store = bucket.client()
        crowd = [await join(store, f"one-of-many-{number}") for number in range(CROWD)]
        await claim(store, crowd[0], range(PARTITIONS))
        for _ in range(6):
            for number, one in enumerate(crowd):
                crowd[number] = present(await store.heartbeat(GROUP, one, None))
        assert bucket.group_object_bytes < 1_800
        ledger = await bucket.client().peek(GROUP)
        assert ledger is not None
        assert (len(ledger.leases), list(ledger.members)) == (PARTITIONS, crowd)

    asyncio.run(play())


# --- snapshots
def test_who_heartbeats_needs_no_snapshot_and_who_comes_needs_one(bucket: Bucket) -> None:
    async def play() -> None:
        one, two = bucket.client(), bucket.client()
        a, b = await join(one, "a"), await join(two, "b")
        for number in range(3 * OLD_MOST):
            await claim(one, a, range(number, number + 1))
            await one.heartbeat(GROUP, a, None)
            await two.heartbeat(GROUP, b, None)
        assert bucket.asked["put snapshots"] > 1
        assert bucket.asked["get snapshots"] == 0
        assert len(await bucket.snapshots()) <= 2, "old ones are removed"
        newcomer = bucket.client()
        await newcomer.groups()
        assert await bucket.count(newcomer.peek(GROUP)) == {"get group": 1, "get snapshots": 1}
        ledger = await newcomer.peek(GROUP)
        assert ledger is not None
        assert len(ledger.leases) == 3 * OLD_MOST
        assert len(await newcomer.moves(GROUP, 1_000)) == 3 * OLD_MOST

    asyncio.run(play())


def test_who_was_away_for_long_reads_the_snapshot(bucket: Bucket) -> None:
    async def play() -> None:
        one, away = bucket.client(), bucket.client()
        a = await join(one, "a")
        await claim(one, a, range(3))
        b = await join(away, "b")
        ledger = await away.heartbeat(GROUP, b, None)
        (outcome,) = await one.swap(GROUP, [after(ledger.leases[0], b.owner)])
        for _ in range(100):
            await one.heartbeat(GROUP, a, None)
        assert (await bucket.count(away.heartbeat(GROUP, b, ledger.cursor)))["get snapshots"] == 1
        seen = await away.heartbeat(GROUP, b, ledger.cursor)
        assert (seen.whole, seen.leases) == (False, (granted(outcome),)), "it gets the changes, all the same"

    asyncio.run(play())


def test_a_reader_who_is_too_late_for_a_snapshot_takes_the_next(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        one = bucket.client()
        a = await join(one, "a")
        await claim(one, a, range(3))

        async def make_a_snapshot() -> None:
            (outcome,) = await one.swap(GROUP, [after((await one.heartbeat(GROUP, a, None)).leases[0], a.owner)])
            assert outcome.ok
            made = bucket.asked["put snapshots"]
            while bucket.asked["put snapshots"] == made:
                await one.heartbeat(GROUP, a, None)

        await make_a_snapshot()
        get = BucketClient.get
        meanwhile: list[Callable[[], Awaitable[None]]] = [make_a_snapshot, make_a_snapshot]

        async def slow_get(link: BucketClient, path: str, known: ObjectVersion | None = None) -> Any:
            while "snapshots" in path and meanwhile:
                await meanwhile.pop()()
            return await get(link, path, known)

        monkeypatch.setattr(BucketClient, "get", slow_get)
        ledger = await bucket.client().peek(GROUP)
        assert ledger is not None
        assert ledger.leases == (await one.heartbeat(GROUP, a, None)).leases
        assert ledger.cursor.history == 0, "nothing was lost"

    asyncio.run(play())


def test_a_group_that_is_made_again_has_nothing_of_the_old_ones_snapshots(bucket: Bucket) -> None:
    async def play() -> None:
        one = bucket.client()
        a = await join(one, "a")
        await claim(one, a, range(3))
        for _ in range(60):
            await one.heartbeat(GROUP, a, None)
        assert await bucket.snapshots()
        await one.delete(GROUP)
        assert await bucket.snapshots() == []
        for _ in range(60):
            ledger = await one.heartbeat(GROUP, a, None)
        assert ledger.leases == ()
        seen = await bucket.client().peek(GROUP)
        assert seen is not None
        assert (seen.leases, seen.members) == ((), ledger.members)

    asyncio.run(play())


# --- contention
def test_many_who_want_the_same_at_once_all_come_their_way(bucket: Bucket) -> None:
    async def play() -> None:
        stores = [bucket.client() for _ in range(12)]
        await asyncio.gather(*(join(store, f"m{number}") for number, store in enumerate(stores)))
        ledger = await stores[0].peek(GROUP)
        assert ledger is not None
        assert len({one.incarnation for one in ledger.members}) == 12

    asyncio.run(play())


class Refusing:
    """A client of a bucket on which another client is always faster."""

    def __init__(self, certain: bool) -> None:
        self.options = BucketClient(MemoryStore(), timeout_s=0.05).options
        self._certain = certain

    def name(self, path: str) -> str:
        return path

    async def get(self, path: str, known: ObjectVersion | None = None) -> None:
        return None

    async def put(self, path: str, data: bytes, known: ObjectVersion | None) -> ObjectVersion:
        raise PutConflict(ValueError("retries: 0," if self._certain else "retries: 1,"))


def test_who_never_comes_its_way_gives_up_in_time() -> None:
    async def play() -> None:
        link: Any = Refusing(certain=True)
        cell = VersionedObject(link, "group", GroupObjectFormat(link, GROUP, lambda: 0.0))
        with pytest.raises(StoreUnavailable, match="write contention"):
            await cell.change(lambda current: (current.after(_heartbeat), None))

    asyncio.run(play())


# --- in doubt
def _heartbeat(current: GroupObject, stored: Any) -> None:
    stored.heartbeat(member("a"), None, 0, 1.0)


def test_a_put_is_known_by_its_name_for_as_long_as_that_is_kept() -> None:
    shape = GroupObjectFormat(BucketClient(MemoryStore()), GROUP, lambda: 0.0)
    base = GroupObject("lineage", 0, 0, 0).after(_heartbeat)
    mine, other = base.after(_heartbeat), base.after(_heartbeat)
    assert shape.landed(mine, mine) is True
    assert shape.landed(mine, other) is False, "the same revision, made by another client"
    assert shape.landed(mine, base) is False
    later, others = mine, other
    for _ in range(WRITES_KEPT - 1):
        later, others = later.after(_heartbeat), others.after(_heartbeat)
    assert shape.landed(mine, later) is True
    assert shape.landed(mine, others) is False
    assert shape.landed(mine, later.after(_heartbeat)) is None, "it can no longer be determined"


# --- for display
def test_what_is_kept_can_be_read_by_people(bucket: Bucket) -> None:
    async def play() -> None:
        store = bucket.client()
        a = await join(store, "a")
        await claim(store, a, range(1))
        await store.steer(GROUP, Steering(pause=("0",)), Action(kind="pause", by="anna", why="disk", what="0"))
        link = BucketClient(bucket._store)
        found = await link.get(wire.group_object_path(GROUP))
        assert found is not None
        seen = json.decode(found.data)
        assert (seen["evenflow"], seen["group"]["name"]) == (wire.LAYOUT, "alerts")
        assert seen["state"]["pauses"]["0"]["by"] == "anna"
        assert seen["leases"][0]["owner"]["id"] == "a"

    asyncio.run(play())


def test_no_two_names_are_one_object() -> None:
    odd = [
        "0",
        "00",
        "x.0",
        "a/b",
        "a b",
        "A",
        "a",
        "..",
        "x" * 64,
        "x" * 65,
        "",
        "naïve",
        wire.record_path(GROUP, "a/b"),
    ]
    assert len({wire.record_path(GROUP, name) for name in odd}) == len(odd)
    groups = [structs.replace(GROUP, **{part: name}) for part in ("namespace", "hub", "name") for name in odd if name]
    groups += [Group("a/b", "c", "d"), Group("a", "b/c", "d"), Group("a", "b", "c/d")]
    assert len({wire.folder(group) for group in groups}) == len(groups)
    assert len(wire.folder(Group("n" * 1024, "h" * 256, "ü" * 256))) < 120
