"""Redis streams as a source, on real servers, beyond the contract that all sources keep."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Event, HubReplaced, Misconfigured, PartitionHalted, Processor
from evenflow.errors import SourceUnavailable, Transient
from evenflow.hub.keys import partition_of
from evenflow.observe.happenings import Gone, Trouble
from evenflow.observe.ownership import lag_of
from evenflow.sources.redis_streams import Address, RedisStreamsSource, from_url
from evenflow.sources.redis_streams_reader import ROOM_BYTES
from evenflow.stores.memory import MemoryStore
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.redis_streams_scene import RedisStreamsScene
from tests.leaks import lasting
from tests.servers.processes import free_port, standing_still
from tests.servers.redis import RedisServer, packed_program, program_of, skip_unless_counting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from evenflow import OwnedPartition
    from evenflow.observe.happenings import Happening

LONG_S = 60.0
TIMES: dict[str, Any] = {"beat_s": 0.2, "ttl_s": 5.0, "margin_s": 0.5, "refresh_s": 0.5}
SAFE = ("--appendonly", "yes", "--appendfsync", "always")
_numbers = count(1)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), *SAFE).start()
    try:
        skip_unless_counting(server)
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("older"), program=packed_program()).start()
    yield server
    server.kill()


@pytest.fixture(params=["counting", "older"])
def either(request: pytest.FixtureRequest) -> RedisServer:
    """For what depends on it: from 7.0 on a server counts the entries of a stream, which tells what was removed."""
    found: RedisServer = request.getfixturevalue(request.param)
    return found


def opened(
    server: RedisServer, partitions: int | None = 1, name: str | None = None, **options: Any
) -> RedisStreamsSource:
    fresh = name or f"homes{next(_numbers)}"
    return RedisStreamsSource(Address(server.place.address, server.port), fresh, partitions=partitions, **options)


def key(source: RedisStreamsSource, partition: int = 0) -> str:
    return source._key(str(partition))


async def until(look: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(LONG_S):
            while not look():  # noqa: ASYNC110 - what it waits for comes from many sides
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


class Run:
    def __init__(self, source: RedisStreamsSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.handled: list[tuple[str, bytes]] = []
        self.keys: dict[str, str] = {}
        self.happenings: list[Happening] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.store = store or MemoryStore()
        self.processor = Processor(source, self.store, "group", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.happenings.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        await self.may_go_on.wait()
        self.handled += [(partition.id, event.body) for event in events]
        self.keys |= {event.key: partition.id for event in events if event.key is not None}

    def bodies(self, partition: int = 0) -> list[bytes]:
        return [body for name, body in self.handled if name == str(partition)]

    def told(self, kind: type[Happening]) -> list[Any]:
        return [one for one in self.happenings if isinstance(one, kind)]


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def events(start: int, stop: int) -> list[Event]:
    return [Event(body) for body in texts(start, stop)]


def test_many_streams_are_read_over_one_connection_in_order_and_caught_up(counting: RedisServer) -> None:
    async def main() -> None:
        source, sender = opened(counting, 16), None
        try:
            run = Run(source)
            async with run.processor:
                await until(lambda: run.processor.instance_id, "the start")
                sender = opened(counting, 16, source._name)
                for number in range(16):
                    await sender.send(events(0, 300), str(number))
                await until(lambda: len(run.handled) == 16 * 300, "everything")
                # This one's, one that reads, one for questions, the sender's; and one or two that are on their way out.
                listed: bytes = counting.ask("CLIENT", "LIST", "TYPE", "normal")
                assert 2 <= listed.count(b"\n") <= 6, "not one for each of sixteen partitions"
            assert [run.bodies(number) for number in range(16)] == [texts(0, 300)] * 16
            again = Run(source, run.store)
            await again.processor.serve(until="caught_up")
            assert again.handled == []
        finally:
            await source.aclose()
            if sender is not None:
                await sender.aclose()

    asyncio.run(main())


def test_a_slow_partition_does_not_hold_up_the_others_and_is_bounded(counting: RedisServer) -> None:
    async def main() -> None:
        source = opened(counting, 2)
        slow = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        quick = await source.open("1", await source.resolve("1", "earliest"), epoch=1)
        await source.send(events(0, 4000), "0")
        got: list[bytes] = []
        for round_ in range(20):
            await source.send(events(round_, round_ + 1), "1")
            got += [event.body for event in (await quick.read(10, 1 << 20, LONG_S)).events]
        assert got == texts(0, 20)
        assert len(slow._feed.events) < 4000  # type: ignore[attr-defined]
        seen = 0
        while seen < 4000:
            seen += len((await slow.read(1000, 1 << 20, LONG_S)).events)
        await source.aclose()

    asyncio.run(main())


def test_what_was_trimmed_before_it_was_read_halts_the_partition_or_is_passed_over_and_told(
    either: RedisServer,
) -> None:
    async def main() -> None:
        source, store = opened(either), MemoryStore()
        await source.send(events(0, 5), "0")
        await Run(source, store).processor.serve(until="caught_up")
        await asyncio.sleep(0.01)
        await source.send(events(5, 15), "0")
        either.ask("XTRIM", key(source), "MAXLEN", 4)
        with pytest.raises(PartitionHalted, match="were removed before they were read"):
            await Run(source, store).processor.serve(until="caught_up")
        run = Run(source, store, on_gone="earliest")
        await run.processor.serve(until="caught_up")
        assert run.bodies() == texts(11, 15)
        assert len(run.told(Gone)) == 1
        await source.send(events(15, 20), "0")
        either.ask("XTRIM", key(source), "MAXLEN", 1)
        at_the_end = Run(source, store, on_gone="latest")
        await at_the_end.processor.serve(until="caught_up")
        assert at_the_end.bodies() == []
        assert len(at_the_end.told(Gone)) == 1
        await source.aclose()

    asyncio.run(main())


def test_a_reader_that_is_overtaken_by_trimming_says_so(either: RedisServer) -> None:
    """Its handler is slow, what was read ahead is still handled, and then comes the gap."""

    async def main() -> None:
        source = opened(either)
        run = Run(source, on_gone="earliest", prefetch_events=100, batch_events=10)
        async with run.processor:
            await source.send(events(0, 10), "0")
            await until(lambda: run.bodies() == texts(0, 10), "the first")
            run.may_go_on.clear()
            await source.send(events(10, 8010), "0")
            ((feed,),) = (lane.feeds for lane in source._lanes.values())
            await until(lambda: feed.is_full, "as much as there may be to be read ahead")
            either.ask("XTRIM", key(source), "MAXLEN", 5)
            run.may_go_on.set()
            await until(lambda: run.bodies()[-5:] == texts(8005, 8010), "what is left")
        assert len(run.told(Gone)) == 1
        got = [int(body) for body in run.bodies()]
        assert got == sorted(set(got))
        assert len(got) > 500, "what was read ahead was handled"
        await source.aclose()

    asyncio.run(main())


def test_trimming_that_follows_a_reader_at_the_end_is_no_loss(either: RedisServer) -> None:
    """As with MINID, or a short MAXLEN: what was read is gone a moment later."""

    async def main() -> None:
        source = opened(either, maxlen=None)
        run = Run(source)
        async with run.processor:
            for number in range(30):
                await source.send(events(number, number + 1), "0")
                await until(lambda: len(run.handled) == number + 1, "the next")  # noqa: B023
                either.ask("XTRIM", key(source), "MAXLEN", 0)
        assert run.bodies() == texts(0, 30)
        assert run.told(Gone) == []
        await source.aclose()

    asyncio.run(main())


def test_an_entry_that_came_and_went_between_two_questions_is_noticed_by_a_server_that_counts(
    counting: RedisServer,
) -> None:
    async def main() -> None:
        source = opened(counting)
        await source.send(events(0, 3), "0")
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        assert len((await reader.read(10, 1 << 20, LONG_S)).events) == 3
        script = "for i = 1, 3 do redis.call('XADD', KEYS[1], 'MAXLEN', 1, '*', 'body', i) end"
        counting.ask("EVAL", script, 1, key(source))
        with pytest.raises(Exception, match="were removed before they were read"):
            await reader.read(10, 1 << 20, LONG_S)
        await source.aclose()

    asyncio.run(main())


def test_a_newest_entry_that_was_deleted_is_not_waited_for(either: RedisServer) -> None:
    async def main() -> None:
        source = opened(either)
        await source.send(events(0, 3), "0")
        newest = (await source.bounds(["0"]))["0"].newest
        assert newest is not None
        either.ask("XDEL", key(source), newest.offset)
        run = Run(source)
        async with asyncio.timeout(LONG_S):
            await run.processor.serve(until="caught_up")
        assert run.bodies() == texts(0, 2)
        await source.aclose()

    asyncio.run(main())


def test_ids_that_are_no_times_are_read_and_looked_at(counting: RedisServer) -> None:
    async def main() -> None:
        source = opened(counting)
        for number in range(3):
            counting.ask("XADD", key(source), f"1731000000000000{number}-0", "body", number)
        oldest = await source.resolve("0", "earliest")
        assert await source.waiting_since({"0": oldest}) == {}
        run = Run(source)
        await run.processor.serve(until="caught_up")
        assert run.bodies() == texts(0, 3)
        await source.aclose()

    asyncio.run(main())


def test_large_entries_are_read_within_bounds_and_hold_up_no_others(counting: RedisServer) -> None:
    """How large they are nobody knows before: small ones came first."""

    async def main() -> None:
        source = opened(counting, 2)
        await source.send(events(0, 50), "0")
        await source.send([Event(bytes(100_000))] * 200, "0")
        await source.send(events(0, 400), "1")
        large = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        small = await source.open("1", await source.resolve("1", "earliest"), epoch=1)
        got = await small.read(1000, 1 << 20, LONG_S)
        await until(lambda: large._feed.is_full, "as much as there may be")  # type: ignore[attr-defined]
        assert large._feed.size_bytes < ROOM_BYTES + 16 * 100_000  # type: ignore[attr-defined]
        assert len(got.events) > 100
        seen = 0
        while seen < 250:
            seen += len((await large.read(1000, 1 << 20, LONG_S)).events)
        await source.aclose()

    asyncio.run(main())


def test_what_is_no_stream_any_more_holds_up_no_other_partition(
    counting: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.sources.redis_streams_reader.WAIT_S", 0.2)

    async def main() -> None:
        source = opened(counting, 3)
        run = Run(source)
        async with run.processor:
            for number in range(3):
                await source.send(events(0, 3), str(number))
            await until(lambda: len(run.handled) == 9, "the first")
            counting.ask("SET", key(source, 1), "text")
            await until(lambda: run.told(Trouble), "trouble to be told")
            for start in range(3, 30, 3):
                for number in (0, 2):
                    await source.send(events(start, start + 3), str(number))
            await until(lambda: run.bodies(0) == run.bodies(2) == texts(0, 30), "the others to go on")
        assert {one.partition for one in run.told(Trouble)} == {"1"}
        assert "something else than a stream" in str(run.told(Trouble)[0])
        await source.aclose()

    asyncio.run(main())


def test_streams_that_are_made_again_end_the_processor(either: RedisServer) -> None:
    async def main() -> None:
        source = opened(either, 2)
        run = Run(source)
        for number in range(2):
            await source.send(events(0, 5), str(number))
        serving = asyncio.create_task(run.processor.serve())
        await until(lambda: len(run.handled) == 10, "the old streams to be handled")
        either.ask("DEL", key(source, 0), key(source, 1))
        await source.send(events(0, 2), "0")
        with pytest.raises(HubReplaced, match="was deleted and made again"):
            await asyncio.wait_for(serving, LONG_S)
        await source.aclose()

    asyncio.run(main())


def test_streams_that_appear_are_picked_up(counting: RedisServer) -> None:
    async def main() -> None:
        source, sender = opened(counting, None), opened(counting, 3, f"homes{next(_numbers)}")
        source._template = sender._template
        with pytest.raises(Misconfigured, match=r"There is no stream homes\d+:0"):
            await source.partitions()
        await sender.send(events(0, 3), "0")
        run = Run(source)
        async with run.processor:
            await until(lambda: run.bodies(0) == texts(0, 3), "the first")
            await sender.send(events(0, 4), "2")
            await until(lambda: run.bodies(2) == texts(0, 4), "the one that appeared, from its beginning")
        assert [one.id for one in await source.partitions()] == ["0", "1", "2"]
        await source.aclose()
        await sender.aclose()

    asyncio.run(main())


def test_a_stream_beyond_the_partitions_that_were_given_is_warned_of(
    counting: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        source = opened(counting, 2)
        await source.send(events(0, 3))
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        await source.partitions()
        assert not caplog.records
        await source.send(events(0, 1), "2")
        await source.partitions()
        await source.partitions()
        await reader.aclose()
        await source.aclose()

    asyncio.run(main())
    (told,) = [record.getMessage() for record in caplog.records if record.name == "evenflow.redis_streams"]
    assert ":2 at " in told
    assert "nobody reads with partitions=2" in told


def test_keys_go_where_the_embedded_hub_puts_them(counting: RedisServer) -> None:
    async def main() -> None:
        source = opened(counting, 4)
        names = [f"home-{number}" for number in range(40)]
        await source.send([Event(b"x", name) for name in names] + [Event(b"none")] * 4)
        run = Run(source)
        await run.processor.serve(until="caught_up")
        assert run.keys == {name: str(partition_of(name, 4)) for name in names}
        await source.aclose()

    asyncio.run(main())


def test_sending_can_keep_streams_short_and_lag_is_told(counting: RedisServer) -> None:
    async def main() -> None:
        source = opened(counting, maxlen=100)
        for start in range(0, 1000, 100):
            await source.send(events(start, start + 100), "0")
        bounds = (await source.bounds(["0"]))["0"]
        assert bounds.newest is not None
        assert bounds.newest.sequence == 999
        kept = counting.ask("XLEN", key(source))
        assert kept < 1000
        oldest = await source.resolve("0", "earliest")
        assert lag_of(oldest, bounds) == kept
        assert set(await source.waiting_since({"0": oldest})) == {"0"}
        assert await source.waiting_since({"0": bounds.newest}) == {}
        await source.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("find_program", [packed_program, partial(program_of, "valkey")], ids=["older", "valkey"])
def test_who_may_not_and_what_is_no_stream_is_told(tmp_path: Path, find_program: Callable[[], str | None]) -> None:
    async def main(server: RedisServer) -> None:
        for user, password in ((None, None), (None, "wrong"), ("reader", "read"), ("runner", "run")):
            address = Address(server.place.address, server.port, username=user, password=password)
            source = RedisStreamsSource(address, "other", partitions=1)
            with pytest.raises(Misconfigured, match="refuses these credentials"):
                await Run(source).processor.serve()
            await source.aclose()
        own = from_url(f"redis-streams://reader:read@{server.place.address}:{server.port}/homes?partitions=1")
        await own.partitions()
        assert (await own.identity()).made == "", "who may only read leaves no mark"
        server.ask("SET", "homes:0", "text", password="secret")
        with pytest.raises(Misconfigured, match="something else than a stream"):
            await own.resolve("0", "earliest")
        await own.aclose()

    server = RedisServer(tmp_path, "--requirepass", "secret", program=find_program()).start()
    rights = ("on", ">read", "~homes:*", "+@read", "+@scripting", "+@connection")
    server.ask("ACL", "SETUSER", "reader", *rights, password="secret")
    may_run = ("on", ">run", "~*", "+@scripting", "+@connection")  # and nothing that a script does
    server.ask("ACL", "SETUSER", "runner", *may_run, password="secret")
    try:
        asyncio.run(main(server))
    finally:
        server.kill()


def test_rights_that_are_taken_away_for_a_moment_end_nothing(tmp_path: Path) -> None:
    async def main(server: RedisServer) -> None:
        source = opened(server)
        await source.send(events(0, 3), "0")
        server.ask("ACL", "SETUSER", "default", "-@stream")
        with pytest.raises(SourceUnavailable, match=r"refuses these credentials.*served this process before"):
            await source.resolve("0", "latest")
        server.ask("ACL", "SETUSER", "default", "+@all")
        await source.resolve("0", "latest")
        await source.aclose()

    server = RedisServer(tmp_path, program=packed_program()).start()
    try:
        asyncio.run(main(server))
    finally:
        server.kill()


def test_a_server_that_cannot_just_now_is_waited_for(tmp_path: Path) -> None:
    """A start meets a failover, a full memory, a cluster that is being made: none of it ends a program."""

    async def told(server: RedisServer, **options: Any) -> Exception:
        source = RedisStreamsSource(Address(server.place.address, server.port, **options), "homes", partitions=1)
        try:
            with pytest.raises(Transient) as found:
                await source.identity()
        finally:
            await source.aclose()
        return found.value

    alone = RedisServer(tmp_path / "alone").start()
    nodes = RedisServer(tmp_path / "nodes", "--cluster-enabled", "yes").start()
    try:
        alone.ask("REPLICAOF", "127.0.0.1", free_port())
        assert "read only replica" in str(asyncio.run(told(alone)))
        alone.ask("REPLICAOF", "NO", "ONE")
        alone.ask("CONFIG", "SET", "maxmemory", 1)
        assert "no room to write" in str(asyncio.run(told(alone)))
        assert "not served" in str(asyncio.run(told(nodes)))
        assert "does not answer" in str(asyncio.run(told(nodes, cluster=True)))
    finally:
        alone.kill()
        nodes.kill()


def test_a_cluster_that_is_none_and_a_server_that_is_one_is_told(older: RedisServer, tmp_path: Path) -> None:
    async def main(server: RedisServer, *, cluster: bool) -> None:
        address = Address(server.place.address, server.port, cluster=cluster)
        source = RedisStreamsSource(address, "homes", partitions=1)
        try:
            await source.identity()
        finally:
            await source.aclose()

    with pytest.raises(Misconfigured, match="leave cluster=yes out"):
        asyncio.run(main(older, cluster=True))
    one, other = (RedisServer(tmp_path / name, "--cluster-enabled", "yes").start() for name in ("one", "other"))
    try:
        one.take_all_slots()
        other.ask("CLUSTER", "MEET", one.place.address, one.port)
        wait_for(other.knows_every_slot, "it to know who has the slots")
        with pytest.raises(Misconfigured, match="add cluster=yes"):
            asyncio.run(main(other, cluster=False))
    finally:
        one.kill()
        other.kill()


def test_what_is_sent_and_read_in_a_cluster_goes_on_after_a_failover(tmp_path: Path) -> None:
    """Also when the node that dies is the one that the URL names."""

    async def main(master: RedisServer, replica: RedisServer) -> None:
        address = Address(master.place.address, master.port, cluster=True)
        source, sender = (RedisStreamsSource(address, "homes", partitions=2) for _ in range(2))
        run = Run(source)
        async with run.processor:
            await sender.send(events(0, 3), "1")
            await until(lambda: run.bodies(1) == texts(0, 3), "the first")
            await until(lambda: replica.offset >= master.offset, "the replica to have them")
            await asyncio.to_thread(master.kill)
            with pytest.raises(SourceUnavailable) as told:
                await sender.send([Event(b"secret")], "1")
            assert "secret" not in str(told.value)
            replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
            await until(replica.knows_every_slot, "it to be the master")

            async def is_sent() -> bool:
                try:
                    await sender.send(events(3, 6), "1")
                except SourceUnavailable:
                    return False
                return True

            async with asyncio.timeout(LONG_S):
                while not await is_sent():  # noqa: ASYNC110 - nobody else knows
                    await asyncio.sleep(0.1)
            await until(lambda: run.bodies(1) == texts(0, 6), "the others")
        await source.aclose()
        await sender.aclose()

    more = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
    master, replica = (RedisServer(tmp_path / name, *more).start() for name in ("one", "other"))
    try:
        master.take_all_slots()
        replica.ask("CLUSTER", "MEET", master.place.address, master.port)
        wait_for(replica.knows_every_slot, "it to know who has the slots")
        replica.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
        wait_for(lambda: replica.ask("INFO", "replication").get("master_link_status") == "up", "a replica")
        wait_for(lambda: str(replica.port) in str(master.ask("CLUSTER", "SLOTS")), "its master to tell of it")
        asyncio.run(main(master, replica))
    finally:
        master.kill()
        replica.kill()


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        with lasting():  # it is shared by all tests of this file
            server.start()


@pytest.fixture
def scene(counting: RedisServer, tmp_path: Path) -> Iterator[RedisStreamsScene]:
    counting.ask("FLUSHALL")
    scene = RedisStreamsScene(tmp_path / "scene", counting)
    try:
        yield scene
    finally:
        scene.close()


@pytest.mark.process
def test_a_server_that_stands_still_or_is_killed_costs_nothing_but_time(
    scene: RedisStreamsScene, counting: RedisServer
) -> None:
    scene.make_hub(4)
    with scene.load():
        instances = scene.start_even("one", "other")
        scene.wait_for_all_calls(instances)
        epochs = scene.epochs()
        for fault in standing_still, killed:
            reported = [instance.log.count("does not answer") for instance in instances]
            with fault(counting):
                wait_for(
                    lambda: all(
                        instance.log.count("does not answer") > before
                        for instance, before in zip(instances, reported, strict=True)  # noqa: B023
                    ),
                    "both to report the trouble",
                )
            scene.wait_for_all_calls(instances, after_s=boot_s())
    assert scene.epochs() == epochs, "a lease moved although only the source was away"
    assert not repeats(scene.wait_until_handled())
