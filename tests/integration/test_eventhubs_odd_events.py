"""Events that the official client stumbles over: they are read all the same, or it is told which one cannot be."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Corrupt, Event, Position
from evenflow.amqp import sections as parts
from evenflow.amqp import types
from evenflow.amqp.performatives import DISPOSITION, FLOW
from evenflow.amqp.types import described
from evenflow.embedded.hub.records import WireEvent, WireSections
from evenflow.sources.eventhubs.source import EventHubsSource
from evenflow.testing import event_hub
from tests.integration.amqp_peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.testing import EventHub

PATIENCE_S = 60.0
CHARACTER = b"\x73\x00\x00\x00A"
DECIMALS = {"short": b"\x74\xb2\x00\x00\x0f", "long": b"\x84\x31\xc0\x00\x00\x00\x00\x00\x07"}
NOTHING = b"\xe0\x02\x00\xa1"
"""An array without elements, which still says of what."""
LONG_NOTHING = b"\xf0\x00\x00\x00\x05\x00\x00\x00\x00\xa1"
BODY = b"b" * 400
"""Longer than any text: what was misread before it may go on inside it."""


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(1) as found:
        yield found


def application(**named: bytes) -> bytes:
    return described(
        parts.APPLICATION_PROPERTIES, types.map_((types.string(name), value) for name, value in named.items())
    )


def send(served: EventHub, messages: Sequence[bytes]) -> None:
    with Peer(served.port) as peer:
        peer.open()
        peer.begin()
        peer.attach_sender("hub/Partitions/0")
        peer.hear_of(FLOW)
        for number, message in enumerate(messages):
            pieces = [message[at : at + 60_000] for at in range(0, len(message), 60_000)]
            for place, piece in enumerate(pieces, 1):
                peer.transfer(piece, number, more=place < len(pieces))
            assert peer.hear_of(DISPOSITION)[4].descriptor == 0x24


async def read(served: EventHub, count: int, **options: Any) -> list[Event]:
    source = EventHubsSource(connection_string=served.connection_string, **options)
    found: list[Event] = []
    try:
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        try:
            while len(found) < count:
                found += (await reader.read(100, 1 << 22, PATIENCE_S)).events
        finally:
            await reader.aclose()
    finally:
        await source.aclose()
    return found


ODD = [
    (application(c=CHARACTER), {"c": "A"}),
    (application(**DECIMALS), {"short": Decimal("-1.5"), "long": Decimal(7)}),
    (application(none=NOTHING), {"none": []}),
    (application(none=NOTHING, after=types.string("here")), {"none": [], "after": "here"}),
    (application(none=LONG_NOTHING, after=types.long(7)), {"none": [], "after": 7}),
    (application(nested=types.list_([NOTHING, CHARACTER])), {"nested": [[], "A"]}),
]


def test_what_the_official_client_cannot_decode_is_read(served: EventHub) -> None:
    plain = parts.data(b"plain")
    send(served, [plain, *(head + parts.data(BODY) for head, _ in ODD), plain])
    for annotated in (False, True):
        first, *odd, last = asyncio.run(read(served, len(ODD) + 2, annotated=annotated))
        assert (first.body, last.body, last.sequence) == (b"plain", b"plain", len(ODD) + 1), f"{annotated=}"
        assert [(event.body, event.properties) for event in odd] == [(BODY, wanted) for _, wanted in ODD], (
            f"{annotated=}"
        )
    official: Any = odd[0]
    assert official.data.properties == {b"c": b"A"}


def test_bodies_and_messages_of_many_frames_are_read_as_well(served: EventHub) -> None:
    large = b"L" * 200_000
    send(
        served,
        [
            described(parts.VALUE, CHARACTER),
            application(c=CHARACTER) + parts.data(large),
            described(parts.VALUE, types.list_([types.long(1), NOTHING])),
            parts.data(large),
            described(parts.VALUE, types.NULL),
        ],
    )
    found = asyncio.run(read(served, 5))
    assert [event.body for event in found] == [b"A", large, b"[1,[]]", large, b""]


def test_an_event_that_nobody_can_decode_is_named_and_not_passed_over(served: EventHub) -> None:
    async def main() -> None:
        await served.hub.send([Event(b"one")], partition="0")
        broken = WireEvent(b"", wire=WireSections(tail=b"\x00\x53\x77\xc1\x02\x01\x40"))
        await served.hub.send([broken], partition="0")
        await served.hub.send([Event(b"three")], partition="0")
        source = EventHubsSource(connection_string=served.connection_string)
        reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
        assert [event.body for event in (await reader.read(9, 1 << 20, PATIENCE_S)).events] == [b"one"]
        with pytest.raises(Corrupt, match=r"partition 0: event 1 is not a valid AMQP message.*--to-offset '#1'"):
            await reader.read(9, 1 << 20, PATIENCE_S)
        await reader.aclose()
        reader = await source.open("0", await source.resolve("0", Position("#1")), epoch=2)
        assert [event.body for event in (await reader.read(9, 1 << 20, PATIENCE_S)).events] == [b"three"]
        await reader.aclose()
        await source.aclose()

    asyncio.run(main())
