"""The JetStream source on a real nats-server, beyond the contract that all sources keep."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
from typing import TYPE_CHECKING

import nats
import pytest

from evenflow import Event, HubReplaced, Misconfigured, PartitionHalted
from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.sources.nats import client as nats_client
from evenflow.sources.nats import connection as nats_connection
from evenflow.sources.nats import reader as nats_reader
from evenflow.sources.nats.source import NatsSource, from_url
from evenflow.stores.memory import MemoryStore
from tests.integration.nats_scene import LONG_S, Run, managing, texts, until
from tests.servers.kafka import make_certificate
from tests.servers.nats import NatsServer, program, shared
from tests.servers.processes import Program, answers, free_port

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def server() -> NatsServer:
    return shared()


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
    monkeypatch.setattr(nats_reader, "PREFETCH_BYTES", 200_000)

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
    monkeypatch.setattr(nats_client, "ANSWER_S", 1.0)
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
        client = await source._client.connection.client()
        await client.jetstream().add_stream(name="HOMES", subjects=["homes.*"])
        with pytest.raises(Misconfigured, match="larger than the server accepts"):
            await source.publish([Event(bytes(2_000_000))], "0")
        await source.publish([Event(b"fits")], "0")
        run = Run(source)
        await run.processor.serve(until="caught_up")
        assert run.bodies("0") == [b"fits"]
        await source.aclose()
        for who in ("none:x@", "looks:x@"):
            await refused(own, who, "this user lacks a permission")
        for who in ("bob:pa55@", "all:pa55@", ""):
            await refused(own, who, "rejected this client")

    own = NatsServer("-c", str(settings))
    try:
        asyncio.run(main(own))
    finally:
        own.remove()


def test_a_server_without_jetstream_is_reported(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        source = from_url(f"nats://127.0.0.1:{port}/HOMES?partitions=1")
        with pytest.raises(SourceUnavailable, match="JetStream is not enabled on the server"):
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


def test_tls_is_spoken_and_a_certificate_that_is_not_trusted_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, keys = tmp_path / "certificate.pem", tmp_path / "keys.pem"
    make_certificate(certificate, keys)

    async def main(own: NatsServer) -> None:
        trusting = ssl.create_default_context(cafile=str(certificate))
        source = NatsSource(own.address, "HOMES", partitions=1, options={"tls": trusting})
        client = await source._client.connection.client()
        await client.jetstream().add_stream(name="HOMES", subjects=["homes.*"])
        await source.publish([Event(b"safe")], "0")
        run = Run(source)
        await run.processor.serve(until="caught_up")
        assert run.bodies("0") == [b"safe"]
        await source.aclose()
        monkeypatch.setattr(nats_connection, "CONNECT_S", 10 * LONG_S)
        wary = NatsSource(own.address, "HOMES", partitions=1, options={"tls": ssl.create_default_context()})
        with pytest.raises(Misconfigured, match="certificate is not trusted"):
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
