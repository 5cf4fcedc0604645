"""The JetStream source on a real nats-server, beyond the contract that all sources keep."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client

from evenflow import Event, HubReplaced, Misconfigured, PartitionHalted, Processor
from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.observe.happenings import Trouble
from evenflow.sources import nats_connection, nats_link, nats_reader
from evenflow.sources.nats import NatsSource, from_url
from evenflow.stores.memory import MemoryStore
from tests.servers.kafka import make_certificate
from tests.servers.nats import NatsServer, program, shared
from tests.servers.processes import Program, answers, free_port
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from nats.js.manager import JetStreamManager

    from evenflow import OwnedPartition
    from evenflow.observe.happenings import Happening

LONG_S = 60.0
TIMES: dict[str, Any] = {"beat_s": 0.2, "ttl_s": 5.0, "margin_s": 0.5, "refresh_s": 0.5}


@pytest.fixture
def server() -> NatsServer:
    return shared()


@asynccontextmanager
async def managing(server: NatsServer) -> AsyncIterator[JetStreamManager]:
    client = await nats.connect(f"nats://{server.address}")
    try:
        yield client.jsm()
    finally:
        await client.close()


async def until(look: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(LONG_S):
            while not look():  # noqa: ASYNC110 - what it waits for comes from many sides
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


class Run:
    def __init__(self, source: NatsSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.handled: list[tuple[str, bytes, str | None]] = []
        self.happenings: list[Happening] = []
        self.store = store or MemoryStore()
        self.processor = Processor(source, self.store, "group", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.happenings.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.handled += [(partition.id, event.body, event.key) for event in events]

    def bodies(self, partition: str) -> list[bytes]:
        return [body for name, body, _ in self.handled if name == partition]


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def test_partitions_that_share_a_stream_are_all_handled_in_order_and_caught_up(server: NatsServer) -> None:
    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = from_url(f"nats://{server.address}/{stream}?partitions=4")
            for number in range(40):
                await source.publish([Event(b"%d" % (number // 4))], str(number % 4))
            run = Run(source)
            async with asyncio.timeout(LONG_S):
                await run.processor.serve(until="caught_up")
            assert [run.bodies(str(number)) for number in range(4)] == [texts(0, 10)] * 4
            again = Run(source, run.store)
            await again.processor.serve(until="caught_up")
            assert again.handled == []
            await source.aclose()

    asyncio.run(main())


def test_partitions_that_the_server_maps_have_the_rest_of_the_subject_as_key(tmp_path: Path) -> None:
    settings = tmp_path / "nats.conf"
    settings.write_text('mappings: { "orders.*": "orders.{{partition(2,1)}}.{{wildcard(1)}}" }')

    async def main(own: NatsServer) -> None:
        async with managing(own) as manager:
            await manager.add_stream(name="ORDERS", subjects=["orders.*.*"])
            source = from_url(f"nats://{own.address}/ORDERS?subject=orders.{{partition}}.*")
            client = await nats.connect(f"nats://{own.address}")
            for number in range(40):
                await client.jetstream().publish(f"orders.customer{number % 10}", b"%d" % number)
            await client.close()
            assert [partition.id for partition in await source.partitions()] == ["0", "1"]
            run = Run(source)
            await run.processor.serve(until="caught_up")
            assert sorted(int(body) for _, body, _ in run.handled) == list(range(40))
            assert all(key == f"customer{int(body) % 10}" for _, body, key in run.handled)
            assert len({(name, key) for name, _, key in run.handled}) == 10, "a customer has one partition"
            await source.aclose()

    own = NatsServer("-c", str(settings))
    try:
        asyncio.run(main(own))
    finally:
        own.remove()


def test_what_was_purged_before_it_was_read_halts_the_partition(server: NatsServer) -> None:
    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(server.address, stream, partitions=1)
            store = MemoryStore()
            await source.publish([Event(body) for body in texts(0, 5)], "0")
            await Run(source, store).processor.serve(until="caught_up")
            await source.publish([Event(body) for body in texts(5, 15)], "0")
            await manager.purge_stream(stream, seq=11)
            with pytest.raises(PartitionHalted, match="the oldest is 11 and the newest 15"):
                await Run(source, store).processor.serve(until="caught_up")
            run = Run(source, store, on_gone="earliest")
            await run.processor.serve(until="caught_up")
            assert run.bodies("0") == texts(10, 15)
            await source.aclose()

    asyncio.run(main())


def test_a_reader_that_retention_overtakes_says_so(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself passes over what is gone, without a word."""
    monkeypatch.setattr(nats_reader, "PULL_EVENTS", 10)

    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(server.address, stream, partitions=2)
            await source.publish([Event(body) for body in texts(0, 5)], "0")
            reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
            read = 0
            while read < 5:
                read += len((await reader.read(5, 1 << 20, LONG_S)).events)
            await source.publish([Event(body) for body in texts(5, 100)], "0")
            await source.publish([Event(b"other")], "1")
            await manager.purge_stream(stream, seq=91)
            got: list[bytes] = []

            async def read_on() -> None:
                while True:
                    got.extend(event.body for event in (await reader.read(100, 1 << 20, LONG_S)).events)

            with pytest.raises(PositionGone, match=r"were removed before they were read: the oldest is 91"):
                await asyncio.wait_for(read_on(), LONG_S)
            assert got == texts(5, 5 + len(got)), "what was received before, and nothing from beyond the gap"
            assert len(got) < 50
            await source.aclose()

    asyncio.run(main())


def test_a_read_ends_when_what_it_waited_for_is_removed(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_reader, "PULL_EVENTS", 10)

    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(server.address, stream, partitions=1)
            await source.publish([Event(body) for body in texts(0, 40)], "0")
            reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
            await reader.read(1, 1 << 20, LONG_S)
            await manager.purge_stream(stream)

            async def read_on() -> None:
                while True:
                    await reader.read(100, 1 << 20, 0.1)

            with pytest.raises(PositionGone, match="the oldest is 41"):
                await asyncio.wait_for(read_on(), LONG_S)
            await source.aclose()

    asyncio.run(main())


def test_large_events_come_one_by_one_and_wait_in_a_share_of_the_room(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_reader, "WAITING_BYTES", 200_000)

    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(server.address, stream, partitions=2)
            sizes = [10, 900_000, 900_000, *[30_000] * 20, 5, 150_000]
            await source.publish([Event(bytes(size)) for size in sizes], "0")
            start = await source.resolve("0", "earliest")
            reader, other = [await source.open(name, start, epoch=1) for name in ("0", "1")]
            assert isinstance(reader, nats_reader.NatsReader)
            got: list[int] = []
            async with asyncio.timeout(LONG_S):
                while len(got) < len(sizes):
                    got += [len(event.body) for event in (await reader.read(3, 1 << 20, LONG_S)).events]
                    assert reader._bytes <= 100_000 or len(reader._events) == 1
            assert got == sizes
            assert not reader._is_broken
            await other.aclose()
            await source.aclose()

    asyncio.run(main())


USERS = """authorization: { users: [
  {user: all, password: "p@ss/w,rd"},
  {user: none, password: x, permissions: {publish: ["foo"], subscribe: ["_INBOX.>"]}},
  {user: looks, password: x, permissions:
    {publish: ["$JS.API.STREAM.>", "$JS.API.CONSUMER.CREATE.>"], subscribe: ["_INBOX.>"]}} ] }"""


def test_users_are_let_in_by_their_password_and_what_is_not_allowed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "nats.conf"
    settings.write_text(USERS)
    monkeypatch.setattr(nats_link, "ANSWER_S", 1.0)
    monkeypatch.setattr(nats_reader, "SILENT_S", 1.0)

    async def refused(own: NatsServer, who: str, reason: str) -> None:
        source = from_url(f"nats://{who}{own.address}/HOMES?partitions=1")
        with pytest.raises(Misconfigured, match=reason) as reported:
            await asyncio.wait_for(read_one(source), LONG_S)
        assert "pa55" not in str(reported.value)
        await source.aclose()

    async def read_one(source: NatsSource) -> None:
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        await reader.read(1, 1 << 20, LONG_S)

    async def main(own: NatsServer) -> None:
        hosts = f"127.0.0.1:{free_port()},{own.address}"
        source = from_url(f"nats://all:p%40ss%2Fw%2Crd@{hosts}/HOMES?partitions=1")
        client = await source._link.connection.client()
        await client.jetstream().add_stream(name="HOMES", subjects=["homes.*"])
        with pytest.raises(Misconfigured, match="larger than the server takes"):
            await source.publish([Event(bytes(2_000_000))], "0")
        await source.publish([Event(b"fits")], "0")
        run = Run(source)
        await run.processor.serve(until="caught_up")
        assert run.bodies("0") == [b"fits"]
        await source.aclose()
        for who in ("none:x@", "looks:x@"):
            await refused(own, who, "does not allow this user what is needed")
        for who in ("bob:pa55@", "all:pa55@", ""):
            await refused(own, who, "does not let this client in")

    own = NatsServer("-c", str(settings))
    try:
        asyncio.run(main(own))
    finally:
        own.remove()


def test_a_server_without_jetstream_is_told(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        source = from_url(f"nats://127.0.0.1:{port}/HOMES?partitions=1")
        with pytest.raises(SourceUnavailable, match="JetStream is not on there"):
            await source.identity()
        await source.aclose()

    found = program()
    assert found is not None
    port = free_port()
    plain = Program([found, "-a", "127.0.0.1", "-p", str(port)], tmp_path / "log", farewell=signal.SIGKILL)
    try:
        plain.wait_until_ready(lambda: answers(port))
        asyncio.run(main(port))
    finally:
        plain.stop(signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_source_serves_one_loop_after_another(server: NatsServer) -> None:
    stream = server.fresh()
    source = NatsSource(server.address, stream, subject=f"{stream}.{{partition}}", partitions=1)
    store = MemoryStore()

    async def make() -> None:
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])

    async def once(body: bytes) -> list[bytes]:
        await source.publish([Event(body)], "0")
        run = Run(source, store)
        await asyncio.wait_for(run.processor.serve(until="caught_up"), LONG_S)
        return run.bodies("0")

    asyncio.run(make())
    assert [asyncio.run(once(body)) for body in (b"one", b"two")] == [[b"one"], [b"two"]]
    asyncio.run(source.aclose())
    gc.collect()  # here, where it may be said that nobody closed the connections


def test_tls_is_spoken_and_a_certificate_that_is_not_trusted_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, keys = tmp_path / "certificate.pem", tmp_path / "keys.pem"
    make_certificate(certificate, keys)

    async def main(own: NatsServer) -> None:
        trusting = ssl.create_default_context(cafile=str(certificate))
        source = NatsSource(own.address, "HOMES", partitions=1, options={"tls": trusting})
        client = await source._link.connection.client()
        await client.jetstream().add_stream(name="HOMES", subjects=["homes.*"])
        await source.publish([Event(b"safe")], "0")
        run = Run(source)
        await run.processor.serve(until="caught_up")
        assert run.bodies("0") == [b"safe"]
        await source.aclose()
        monkeypatch.setattr(nats_connection, "CONNECT_S", 10 * LONG_S)
        wary = NatsSource(own.address, "HOMES", partitions=1, options={"tls": ssl.create_default_context()})
        with pytest.raises(Misconfigured, match="is not trusted here"):
            await asyncio.wait_for(wary.identity(), LONG_S)
        await wary.aclose()

    own = NatsServer("--tls", "--tlscert", str(certificate), "--tlskey", str(keys))
    try:
        asyncio.run(main(own))
    finally:
        own.remove()


def test_a_stream_that_is_made_again_ends_the_processor(server: NatsServer) -> None:
    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(server.address, stream, partitions=1)
            await source.publish([Event(body) for body in texts(0, 5)], "0")
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) == 5, "the old stream to be handled")
            await manager.delete_stream(stream)
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            with pytest.raises(HubReplaced, match="was deleted and made again"):
                await asyncio.wait_for(serving, LONG_S)
            await source.aclose()

    asyncio.run(main())


# --- connections that are cut, or lead nowhere
@asynccontextmanager
async def roundabout(server: NatsServer, proxy: Proxy) -> AsyncIterator[tuple[NatsSource, NatsSource]]:
    """A stream: one source reads it through the proxy, the other writes to it directly."""
    stream = server.fresh()
    async with managing(server) as manager:
        await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
    source = NatsSource(f"127.0.0.1:{proxy.port}", stream, partitions=2)
    sender = NatsSource(server.address, stream, partitions=2)
    try:
        yield source, sender
    finally:
        await sender.aclose()
        await source.aclose()


def test_events_come_on_at_once_however_often_connections_are_cut(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits until it is silent for long: a loss is told to all who wait."""
    monkeypatch.setattr(nats_reader, "SILENT_S", 10 * LONG_S)
    monkeypatch.setattr(nats_link, "ANSWER_S", 10 * LONG_S)

    async def main(proxy: Proxy) -> None:
        async with roundabout(server, proxy) as (source, sender):
            run = Run(source)
            async with run.processor:
                for number in range(12):
                    await sender.publish([Event(b"%d" % number)], str(number % 2))
                    if number % 3 == 0:
                        await until(lambda: len(run.handled) == number + 1, "the next event")  # noqa: B023
                    await asyncio.to_thread(proxy.cut)
                await until(lambda: len(run.handled) == 12, "all events")
                client = await source._link.connection.client()
                assert len(client._subs) <= 3, "one a reader, and one for answers"
            assert [run.bodies("0"), run.bodies("1")] == [texts(0, 12)[0::2], texts(0, 12)[1::2]]

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_question_whose_answer_is_lost_with_the_connection_is_asked_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "ANSWER_S", 10 * LONG_S)

    async def main(proxy: Proxy) -> None:
        async with roundabout(server, proxy) as (source, sender):
            await sender.publish([Event(b"0")], "0")
            client = await source._link.connection.client()
            with proxy.holding():
                asked = asyncio.create_task(source.identity())
                await until(lambda: client._resp_map, "the question to be asked")
            assert (await asyncio.wait_for(asked, LONG_S)).hub == source._link.stream

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_connection_that_leads_nowhere_is_noticed(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a host loses its power: nobody ends the connection, and nothing comes of it."""
    monkeypatch.setattr(nats_connection, "PING_S", 0.5)
    monkeypatch.setattr(nats_link, "ANSWER_S", 1.0)

    async def main(proxy: Proxy) -> None:
        async with roundabout(server, proxy) as (source, sender):
            run = Run(source)
            async with run.processor:
                await sender.publish([Event(b"0")], "0")
                await until(lambda: run.bodies("0") == texts(0, 1), "the first event")
                with proxy.holding_old():
                    await sender.publish([Event(b"1")], "0")
                    await until(lambda: run.bodies("0") == texts(0, 2), "the second one")

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_connection_that_does_not_come_back_by_itself_is_given_up(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_connection, "BACK_S", 1.0)
    close = nats_connection._close

    async def stuck(self: Client) -> None:
        await self._disconnected_cb()  # type: ignore[misc]
        await asyncio.sleep(10 * LONG_S)

    async def main(proxy: Proxy) -> None:
        async with roundabout(server, proxy) as (source, sender):

            async def close_late(client: Client) -> None:
                await until(lambda: source._link.connection.is_up, "the new connection")
                await close(client)

            run = Run(source)
            async with run.processor:
                await sender.publish([Event(b"0")], "0")
                await until(lambda: run.bodies("0") == texts(0, 1), "the first event")
                with monkeypatch.context() as patch:
                    patch.setattr(Client, "_attempt_reconnect", stuck)
                    patch.setattr(nats_connection, "_close", close_late)
                    await asyncio.to_thread(proxy.cut)
                    await sender.publish([Event(b"1")], "0")
                    await until(lambda: run.bodies("0") == texts(0, 2), "the second one")
                await until(lambda: not source._link.connection._closing, "the old connection to be closed")
                assert source._link.connection.is_up, "its end is not the new one's"

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_server_that_stands_still_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "PING_S", 0.5)
    monkeypatch.setattr(nats_link, "ANSWER_S", 1.0)
    monkeypatch.setattr(nats_connection, "CONNECT_S", LONG_S)  # the driver does not close what it tried for too long

    async def main(own: NatsServer) -> None:
        stream = own.fresh()
        async with managing(own) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
        source = NatsSource(own.address, stream, partitions=2)
        run = Run(source)
        async with run.processor:
            await source.publish([Event(b"0")], "0")
            await until(lambda: run.bodies("0") == texts(0, 1), "the first event")
            own.pause()
            try:
                await until(lambda: not source._link.connection.is_up, "the loss to be noticed")
            finally:
                own.resume()
            await publish_patiently(source, [Event(b"1")], "0")
            await until(lambda: run.bodies("0") == texts(0, 2), "the second one")
        await source.aclose()

    own = NatsServer()
    try:
        asyncio.run(main(own))
    finally:
        own.remove()


async def publish_patiently(source: NatsSource, events: Sequence[Event], partition: str) -> None:
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                await source.publish(events, partition)
                return
            except SourceUnavailable:
                await asyncio.sleep(0.1)


def test_a_read_that_is_cancelled_while_it_asks_for_more_loses_nothing(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_reader, "PULL_EVENTS", 2)
    monkeypatch.setattr(nats_reader, "SILENT_S", 1.5)

    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
        source = NatsSource(server.address, stream, partitions=1)
        await source.publish([Event(body) for body in texts(0, 6)], "0")
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        assert isinstance(reader, nats_reader.NatsReader)
        await until(lambda: len(reader._events) == 2, "the first two")
        asking = asyncio.Event()

        async def stuck(*args: object) -> None:
            asking.set()
            await asyncio.sleep(10 * LONG_S)

        with monkeypatch.context() as patch:
            patch.setattr(source._link, "tell", stuck)
            reading = asyncio.create_task(reader.read(2, 1 << 20, LONG_S))
            await asyncio.wait_for(asking.wait(), LONG_S)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        got: list[bytes] = []
        async with asyncio.timeout(LONG_S):
            while len(got) < 6:
                got += [event.body for event in (await reader.read(2, 1 << 20, 0.1)).events]
        assert got == texts(0, 6)
        await source.aclose()

    asyncio.run(main())


def test_a_slow_reader_does_not_take_its_own_slowness_for_silence(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_reader, "PULL_EVENTS", 2)
    monkeypatch.setattr(nats_reader, "SILENT_S", LONG_S)
    begin, begun = nats_reader.NatsReader.begin, 0

    async def counted(self: nats_reader.NatsReader) -> None:
        nonlocal begun
        begun += 1
        await begin(self)

    monkeypatch.setattr(nats_reader.NatsReader, "begin", counted)

    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
        source = NatsSource(server.address, stream, partitions=1)
        await source.publish([Event(body) for body in texts(0, 6)], "0")
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        assert isinstance(reader, nats_reader.NatsReader)
        got: list[bytes] = []
        while len(got) < 6:
            await until(lambda: len(reader._events) == 2, "the next two")
            reader._heard_s -= 10 * nats_reader.SILENT_S  # so long ago it is that they came
            got += [event.body for event in (await reader.read(2, 1 << 20, LONG_S)).events]
        assert not (await reader.read(2, 1 << 20, 0.1)).events
        assert got == texts(0, 6)
        assert begun == 1
        await source.aclose()

    asyncio.run(main())


def test_what_is_removed_while_it_is_looked_whether_there_is_more_is_not_passed_over(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_reader, "PULL_EVENTS", 2)

    async def main() -> None:
        stream = server.fresh()
        async with managing(server) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(server.address, stream, partitions=1)
            await source.publish([Event(body) for body in texts(0, 9)], "0")
            reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
            assert isinstance(reader, nats_reader.NatsReader)
            await until(lambda: len(reader._events) == 2, "the first two")
            ask = source._link.ask

            async def ask_late(subject: str, question: dict[str, Any]) -> dict[str, Any]:
                if subject.startswith("CONSUMER.INFO"):
                    await manager.purge_stream(stream)
                return await ask(subject, question)

            monkeypatch.setattr(source._link, "ask", ask_late)
            reader._events.clear()
            with pytest.raises(PositionGone, match="the oldest is 10"):
                await reader._nothing()
            await source.aclose()

    asyncio.run(main())


def test_a_server_that_is_killed_and_started_again_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "BACK_S", 1.0)

    async def main(own: NatsServer) -> None:
        stream = own.fresh()
        async with managing(own) as manager:
            await manager.add_stream(name=stream, subjects=[f"{stream}.*"])
            source = NatsSource(own.address, stream, partitions=2)
            await source.publish([Event(body) for body in texts(0, 20)], "0")
            run = Run(source)
            async with run.processor:
                await until(lambda: len(run.handled) == 20, "the first events")
                await asyncio.to_thread(own.kill)
                await until(lambda: any(isinstance(one, Trouble) for one in run.happenings), "trouble to be told")
                await asyncio.to_thread(own.start)
                sender = NatsSource(own.address, stream, partitions=2)
                await sender.publish([Event(body) for body in texts(20, 40)], "0")
                await until(lambda: run.bodies("0") == texts(0, 40), "the others")
                await sender.aclose()
            await source.aclose()

    own = NatsServer()
    try:
        asyncio.run(main(own))
    finally:
        own.remove()


def test_a_server_that_does_not_greet_leaves_no_sockets_behind(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt has its own, and the driver forgets them. They are found by `_nothing_is_left_open`."""
    monkeypatch.setattr(nats_connection, "CONNECT_S", LONG_S)

    async def main(proxy: Proxy) -> None:
        stream = server.fresh()
        source = NatsSource(f"127.0.0.1:{proxy.port}", stream, options={"connect_timeout": 0.5})
        with pytest.raises(Misconfigured, match=f"stream {stream} at .* does not exist"):
            await Run(source).processor.serve()
        before = proxy.count.connections
        with proxy.losing_answers():
            proxy.cut()
            await until(lambda: proxy.count.connections >= before + 3, "two attempts more")
        await source.aclose()

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))
