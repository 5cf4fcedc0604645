"""Connections that are fed nonsense: whatever comes, there is no mistake of ours: the connection ends, or goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from evenflow.amqp import types
from evenflow.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, framed
from evenflow.amqp.performatives import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_INIT,
    SOURCE,
    TARGET,
    TRANSFER,
)
from evenflow.amqp.sections import data
from evenflow.amqp.types import NULL, described, list_, string, symbol, uint
from evenflow.embedded.hub import Hub
from evenflow.emulators.eventhubs.connection import AmqpConnection
from evenflow.emulators.eventhubs.namespace import Namespace, ServedHub
from evenflow.emulators.eventhubs.service import EventHubsService

if TYPE_CHECKING:
    from collections.abc import Iterator

GREETING = (
    SASL_HEADER
    + framed(0, described(SASL_INIT, list_([symbol("ANONYMOUS"), NULL, NULL])), SASL_FRAME)
    + AMQP_HEADER
    + framed(0, described(OPEN, list_([string("c")])))
    + framed(1, described(BEGIN, list_([NULL, uint(0), uint(9), uint(9)])))
)
ADDRESSES = ["h", "h/Partitions/0", "h/ConsumerGroups/$Default/Partitions/0", "$cbs", "$management", "", "h/x"]
NUMBERS = st.sampled_from([0, 1, 2, 255, 256, 1 << 31, (1 << 32) - 1]).map(uint)
HANDLES = st.sampled_from([0, 0, 1, 2, 255, 256]).map(uint)
ANYTHING = (
    st.just(NULL)
    | NUMBERS
    | st.booleans().map(types.boolean)
    | st.binary(max_size=9).map(types.binary)
    | st.sampled_from([*ADDRESSES, "x" * 300]).map(string)
    | st.just(types.map_([]))
    | st.just(list_([NULL]))
)


def terminus(address: str) -> bytes:
    return described(SOURCE, list_([string(address)]))


TERMINI = st.builds(
    lambda code, address: described(code, list_([string(address)])),
    st.sampled_from([SOURCE, TARGET]),
    st.sampled_from([*ADDRESSES, *ADDRESSES[:3] * 3]),
)
RIGHT = st.builds(
    lambda takes, handle: described(
        ATTACH,
        list_(
            [
                string("n"),
                uint(handle),
                types.boolean(not takes),
                NULL,
                NULL,
                *[terminus(ADDRESSES[2 * (not takes)])] * 2,
            ]
        ),
    ),
    st.booleans(),
    st.integers(0, 3),
)
BODIES = st.one_of(
    RIGHT,
    # What is right but for a field or two.
    st.builds(
        lambda role, handle, source, target, rest: described(
            ATTACH, list_([string("n"), handle, types.boolean(role), NULL, NULL, source, target, *rest])
        ),
        st.booleans(),
        HANDLES,
        TERMINI,
        TERMINI,
        st.just([]) | st.lists(ANYTHING, max_size=7),
    ),
    st.builds(
        lambda handle, number, more, payload: (
            described(TRANSFER, list_([handle, number, NULL, NULL, NULL, types.boolean(more)])) + payload
        ),
        HANDLES,
        NUMBERS,
        st.booleans(),
        st.binary(max_size=40) | st.binary(max_size=9).map(data),
    ),
    st.builds(lambda fields: described(FLOW, list_(fields)), st.lists(NUMBERS, min_size=4, max_size=8)),
    # What is wrong in any way.
    st.builds(
        lambda code, fields: described(code, list_(fields)),
        st.sampled_from([OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, 0x18, 0x40, 0x99]),
        st.lists(ANYTHING | TERMINI, max_size=12),
    ),
    st.binary(max_size=60),
)
FRAMES = st.lists(st.tuples(st.sampled_from([0, *[1] * 12, 2, 60_000]), BODIES), max_size=12)


class Nowhere:
    """A wire without an end."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)

    def buffered_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    with Hub.create(tmp_path_factory.mktemp("fuzz") / "h", 1) as hub:
        asyncio.run(hub.send(b"first"))  # opens its files, which stay open for all tests
        yield Namespace([ServedHub("h", hub)])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=FRAMES)
@example(frames=[(1, described(FLOW, list_([uint(0)] * 6)))])
@example(
    frames=[(1, described(DETACH, list_([uint(0)]))), (1, described(END, list_([]))), (1, described(END, list_([])))]
)
def test_frames_of_every_kind_in_every_order(
    namespace: Namespace, caplog: pytest.LogCaptureFixture, frames: list[tuple[int, bytes]]
) -> None:
    feed_all(namespace, [GREETING, *(framed(channel, body) for channel, body in frames)])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.binary(max_size=80), max_size=5), greeted=st.integers(0, len(GREETING)))
@example(pieces=[b"\xff" * 80], greeted=len(GREETING))
def test_bytes_of_every_kind_after_a_beginning_that_is_right(
    namespace: Namespace, caplog: pytest.LogCaptureFixture, pieces: list[bytes], greeted: int
) -> None:
    feed_all(namespace, [GREETING[:greeted], *pieces])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def feed_all(namespace: Namespace, pieces: list[bytes]) -> None:
    async def act() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        service = EventHubsService(namespace)
        wire = Nowhere()
        connection = AmqpConnection(wire, service, service.connections.discard)
        for piece in pieces:
            connection.feed(piece)
            await asyncio.sleep(0)
        begun = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*begun)
        connection.on_disconnected()
        assert service.receivers._attached == {}, "a closed connection holds no partition"
        assert wire.size_bytes < 1 << 20
        service.threads.shutdown()
        assert problems == []

    asyncio.run(act())
