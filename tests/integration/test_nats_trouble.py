"""The JetStream source where connections are cut or lead nowhere, and where servers stand still or die."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from nats.aio.client import Client

from evenflow import Event, Misconfigured
from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.signals import Trouble
from evenflow.sources.nats import client as nats_client
from evenflow.sources.nats import connection as nats_connection
from evenflow.sources.nats import reader as nats_reader
from evenflow.sources.nats.source import NatsSource
from tests.integration.nats_scene import LONG_S, Run, managing, texts, until
from tests.servers.nats import NatsServer, shared
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@pytest.fixture
def server() -> NatsServer:
    return shared()


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
    """A loss reaches all pending requests at once, without waiting for silence."""
    monkeypatch.setattr(nats_reader, "SILENT_S", 10 * LONG_S)
    monkeypatch.setattr(nats_client, "ANSWER_S", 10 * LONG_S)

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
                client = await source._client.connection.client()
                assert len(client._subs) <= 3, "one a reader, and one for answers"
            assert [run.bodies("0"), run.bodies("1")] == [texts(0, 12)[0::2], texts(0, 12)[1::2]]

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_question_whose_answer_is_lost_with_the_connection_is_asked_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_client, "ANSWER_S", 10 * LONG_S)

    async def main(proxy: Proxy) -> None:
        async with roundabout(server, proxy) as (source, sender):
            await sender.publish([Event(b"0")], "0")
            client = await source._client.connection.client()
            with proxy.holding():
                asked = asyncio.create_task(source.identity())
                await until(lambda: client._resp_map, "the question to be asked")
            assert (await asyncio.wait_for(asked, LONG_S)).hub == source._client.stream

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_connection_that_leads_nowhere_is_noticed(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a host loses its power: nobody ends the connection, and nothing comes of it."""
    monkeypatch.setattr(nats_connection, "PING_S", 0.5)
    monkeypatch.setattr(nats_client, "ANSWER_S", 1.0)

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
    monkeypatch.setattr(nats_connection, "RECONNECT_S", 1.0)
    close = nats_connection._close

    async def stuck(self: Client) -> None:
        await self._disconnected_cb()  # type: ignore[misc]
        await asyncio.sleep(10 * LONG_S)

    async def main(proxy: Proxy) -> None:
        async with roundabout(server, proxy) as (source, sender):

            async def close_late(client: Client) -> None:
                await until(lambda: source._client.connection.is_up, "the new connection")
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
                await until(lambda: not source._client.connection._closing, "the old connection to be closed")
                assert source._client.connection.is_up, "its end is not the new one's"

    with Proxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_server_that_stands_still_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "PING_S", 0.5)
    monkeypatch.setattr(nats_client, "ANSWER_S", 1.0)
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
                await until(lambda: not source._client.connection.is_up, "the loss to be noticed")
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
            patch.setattr(source._client, "send_request", stuck)
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
            ask = source._client.ask

            async def ask_late(subject: str, question: dict[str, Any]) -> dict[str, Any]:
                if subject.startswith("CONSUMER.INFO"):
                    await manager.purge_stream(stream)
                return await ask(subject, question)

            monkeypatch.setattr(source._client, "ask", ask_late)
            reader._events.clear()
            with pytest.raises(PositionGone, match="the oldest is 10"):
                await reader._empty_batch()
            await source.aclose()

    asyncio.run(main())


def test_a_server_that_is_killed_and_started_again_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "RECONNECT_S", 1.0)

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
                await until(lambda: any(isinstance(one, Trouble) for one in run.signals), "trouble to be told")
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
