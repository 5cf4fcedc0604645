"""Redis streams as a source, on real servers, beyond the contract that all sources keep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow import Event, HubReplaced, Misconfigured, PartitionHalted
from evenflow.embedded.hub.keys import partition_of
from evenflow.operate.inspect.lag import lag_of
from evenflow.signals import Gone, Trouble
from evenflow.sources.redis_streams.reader import BUFFER_BYTES
from evenflow.stores.memory import MemoryStore
from tests.integration.redis_streams_run import LONG_S, SAFE, Run, events, key, opened, texts, until
from tests.servers.redis import RedisServer, packed_program, skip_unless_counting

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        assert len(slow._buffer.events) < 4000  # type: ignore[attr-defined]
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
            ((buffer,),) = (poller.buffers for poller in source._pollers.values())
            await until(lambda: buffer.is_full, "as much as there may be to be read ahead")
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
        await until(lambda: large._buffer.is_full, "as much as there may be")  # type: ignore[attr-defined]
        assert large._buffer.size_bytes < BUFFER_BYTES + 16 * 100_000  # type: ignore[attr-defined]
        assert len(got.events) > 100
        seen = 0
        while seen < 250:
            seen += len((await large.read(1000, 1 << 20, LONG_S)).events)
        await source.aclose()

    asyncio.run(main())


def test_what_is_no_stream_any_more_holds_up_no_other_partition(
    counting: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.sources.redis_streams.reader.WAIT_S", 0.2)

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
        assert "holds another type" in str(run.told(Trouble)[0])
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
        source, sender = opened(counting, None), opened(counting, 3)
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
    assert "is not read with partitions=2" in told


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
