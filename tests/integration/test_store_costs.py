"""What stores cost by their reference pages, for 32 partitions and 4 instances: counted on real servers, in runs."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from evenflow import Processor
from evenflow.model import Change, Checkpoint, Group, Member, Position
from evenflow.observe.survey import operable
from evenflow.testing.fakes import FakeSource
from evenflow.urls import open_store
from tests.servers import azurite, moto, postgres
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from evenflow.ports import Store

pytestmark = pytest.mark.process

PARTITIONS, INSTANCES = 32, 4
SHARE = PARTITIONS // INSTANCES
MONTH_S = 30 * 24 * 3600
PATIENCE_S = 60.0
BEATS = 3
"""Of each instance, that are counted."""
DOCS = Path(__file__).parents[2] / "docs" / "reference"


class Place(NamedTuple):
    """A server behind a proxy that counts requests."""

    proxy: Proxy
    url: str
    beat_s: float
    writes: Callable[[], int] | None = None
    """How many the server has done, where it can tell."""


@contextmanager
def azblob(folder: Path) -> Iterator[Place]:
    server = azurite.Azurite(folder / "log", tells=True).start()
    try:
        with Proxy(server.port) as proxy:
            # Who does not answer in time is asked again, which would be counted: on a busy machine it may take long.
            yield Place(proxy, server.url(port=proxy.port, more="&timeout_s=30"), 1.0, server.puts)
    finally:
        server.stop()


@contextmanager
def s3(_: Path) -> Iterator[Place]:
    server = moto.shared()
    with Proxy(server.port) as proxy:
        yield Place(proxy, server.url(server.fresh(), port=proxy.port, more="&poll_s=0"), 0.7, server.puts)


@contextmanager
def redis(folder: Path) -> Iterator[Place]:
    server = RedisServer(folder / "redis").start()
    try:
        with Proxy(server.port) as proxy:
            yield Place(proxy, f"redis://127.0.0.1:{proxy.port}", 0.4)
    finally:
        server.stop()


@contextmanager
def postgresql(_: Path) -> Iterator[Place]:
    server = postgres.shared_or_skip()
    with Proxy(server.port) as proxy:
        yield Place(proxy, f"{server.url(server.make_database(), port=proxy.port)}?listen=off", 0.4)


class Beats:
    """Counts those of all stores of a kind, and knows when none is under way."""

    def __init__(self, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = self._open = 0
        beat = kind.beat

        async def counted(store: Any, *arguments: Any) -> Any:
            self._open += 1
            try:
                return await beat(store, *arguments)
            finally:
                self._open -= 1
                self.done += 1

        monkeypatch.setattr(kind, "beat", counted)

    async def more(self, number: int) -> None:
        """Until there were so many more, and none is under way."""
        wanted = self.done + number
        await until(lambda: self.done >= wanted and not self._open)


async def until(look: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("open_place", "requests", "writes", "room"),
    [
        pytest.param(azblob, SHARE + 2, SHARE + 1, 1.0, id="azblob: a row, a renewal a partition, a listing"),
        pytest.param(s3, 2, 1, 1.5, id="s3: a get and a put, and some more of those who were too late"),
        pytest.param(redis, 1, None, 1.0, id="redis: a script"),
        pytest.param(postgresql, 1, None, 1.0, id="postgresql: a function"),
    ],
)
def test_a_settled_group_costs_so_many_requests_a_beat(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_place: Any,
    requests: int,
    writes: int | None,
    room: float,
) -> None:
    async def run(place: Place) -> None:
        source = FakeSource(PARTITIONS)
        beats = Beats(type(open_store(place.url)), monkeypatch)
        async with AsyncExitStack() as running:
            for number in range(INSTANCES):
                processor = Processor(
                    source, place.url, "alerts", beat_s=place.beat_s, ttl_s=60.0, instance_id=f"i{number}"
                )
                processor.on_event(_nothing)
                await running.enter_async_context(processor)
            await settled(place.url)
            await beats.more(3 * INSTANCES)
            before = place.proxy.count.round_trips, place.writes() if place.writes else 0, beats.done
            await beats.more(BEATS * INSTANCES)
            after = place.proxy.count.round_trips, place.writes() if place.writes else 0, beats.done
        asked, written, beaten = (there - here for here, there in zip(before, after, strict=True))
        assert requests <= asked / beaten <= requests * room
        if writes is not None:
            assert writes <= written / beaten <= writes * room

    with open_place(tmp_path) as place:
        asyncio.run(run(place))


async def _nothing(event: object, partition: object) -> None: ...


async def settled(url: str) -> None:
    """Everybody has its share."""
    store = open_store(url)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            groups = await operable(store).groups()
            ledger = await operable(store).peek(groups[0]) if groups else None
            owners = [lease.owner.id for lease in ledger.leases if lease.owner] if ledger else []
            if sorted(owners.count(owner) for owner in set(owners)) == [SHARE] * INSTANCES:
                return
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.2)
    finally:
        await store.aclose()


@pytest.mark.parametrize(("open_place", "requests"), [(azblob, SHARE), (s3, SHARE), (redis, 1), (postgresql, 1)])
def test_a_commit_costs_a_write_a_partition_or_one_for_all(tmp_path: Path, open_place: Any, requests: int) -> None:
    group = Group("homes.example", "sensors", "alerts")
    names = [str(number) for number in range(SHARE)]

    def records(ordinal: int) -> list[Checkpoint]:
        position = Position(str(ordinal), ordinal)
        return [Checkpoint(partition=name, epoch=1, position=position, ordinal=ordinal) for name in names]

    async def run(store: Store, place: Place) -> None:
        me = (await store.beat(group, Member(id="me", nonce="1", ttl_s=20.0), None)).me
        assert me is not None
        changes = [
            Change(partition=name, revision=0, history=0, owner=me.owner, epoch=1, ttl_s=20.0, reason="claimed")
            for name in names
        ]
        assert all(outcome.ok for outcome in await store.swap(group, changes))
        for record in records(0):
            await store.seal(group, record.partition, 1, record)
        await store.commit(group, records(1))
        before = place.proxy.count.round_trips
        await store.commit(group, records(2))
        assert place.proxy.count.round_trips - before == requests
        await store.aclose()

    with open_place(tmp_path) as place:
        asyncio.run(run(open_store(place.url), place))


def a_month(every_s: float, each: int = 1) -> str:
    return f"{INSTANCES * each * MONTH_S / every_s / 1e6:.1f} million"


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("azblob", [("| renewals |", 10, SHARE), ("| rows |", 10, 1), ("| listings |", 10, 1)]),
        ("azblob", [("| renewals |", 2, SHARE), ("| rows |", 2, 1), ("| listings |", 2, 1)]),
        ("azblob", [("| all of it |", 10, SHARE + 2), ("| all of it |", 2, SHARE + 2)]),
        ("azblob", [("`Every(seconds=30)` at most", 30, SHARE)]),
        (
            "objects",
            [("| beats, every 5 s |", 5, 1), ("| looks, every 2 s", 2, 1), ("| commits, every 30 s", 30, SHARE)],
        ),
        ("redis", [("| beats |", 2, 1), ("| commits, at most |", 1, 1)]),
        ("postgresql", [("| beats |", 2, 1), ("| commits, at most |", 1, 1)]),
    ],
)
def test_the_months_in_the_reference_follow_from_what_is_counted(page: str, figures: list[Any]) -> None:
    lines = (DOCS / f"stores-{page}.md").read_text().splitlines()
    for begins, every_s, each in figures:
        (line,) = [line for line in lines if begins in line]
        assert a_month(every_s, each) in line
