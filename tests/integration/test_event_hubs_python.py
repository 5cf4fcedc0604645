"""The official Python clients, sync and async and unmodified, against `evenflow hub serve` in another process."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties
from azure.eventhub.exceptions import EventDataSendError, EventHubError

from evenflow.embedded.hub import Hub, partition_of
from evenflow.model import Event
from evenflow.sources.hub.source import HubSource
from tests.integration.event_hub_clients import CLIENTS, AsyncClient, SyncClient, together
from tests.integration.event_hub_scene import Heard, Served, heartbeats_every_second, serving
from tests.integration.programs import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from evenflow.testing import EventHub

    Client: TypeAlias = SyncClient | AsyncClient

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("event-hubs")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    hubs = [f"{kind.__name__}-{name}:4:alerts" for kind in CLIENTS for name in HUBS]
    with serving(folder, *(option for hub in hubs for option in ("--hub", hub))) as found:
        yield found


HUBS = ("send", "read", "epochs", "large", "kinds", "native")
"""A hub for each kind of test, so that they need not wait for each other's servers."""


class Scene(NamedTuple):
    """One of the two clients, and what it may use."""

    kind: type[Client]
    served: Served
    data: Path
    folder: Path
    """For its own servers."""

    def client(self, name: str, **options: Any) -> Client:
        """Of one of the hubs."""
        return self.kind(self.served.connection_string(f"{self.kind.__name__}-{name}"), **options)


def both(test: Callable[[Scene], None]) -> Callable[[Served, Path, Path], None]:
    """With both clients, at the same time: they sleep for most of theirs."""

    def run(served: Served, folder: Path, tmp_path: Path) -> None:
        def one(kind: type[Client]) -> None:
            mine = tmp_path / kind.__name__
            mine.mkdir()
            try:
                test(Scene(kind, served, folder / "data", mine))
            except BaseException as error:
                error.add_note(f"This was the {kind.__name__}.")
                raise

        together(*(partial(one, kind) for kind in CLIENTS))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def from_start(partition: str = "0", **more: Any) -> dict[str, Any]:
    return {"partition_id": partition, "starting_position": "-1", **more}


@both
def test_sent_in_every_way_it_is_where_it_should_be(scene: Scene) -> None:
    client = scene.client("send")
    home = str(partition_of("home-7", 4))
    assert home not in ("2", "3"), "these are for the others"
    *_, told = together(
        lambda: client.send_one(EventData("single"), partition_id="2"),
        lambda: client.send_one(EventData("keyed"), partition_key="home-7"),
        lambda: client.send([EventData("keyed batch")], partition_key="home-7"),
        lambda: client.send([EventData("anywhere")]),
        lambda: client.send_buffered([EventData(f"buffered {n}") for n in range(20)], partition_id="3"),
    )
    client.send([EventData(f"batch {n}") for n in range(3)], partition_id="2")
    assert sum(count for count, _ in told) == 20
    in_second, buffered, at_home, (_, partitions) = together(
        lambda: client.receive(4, **from_start("2")),
        lambda: client.receive(20, **from_start("3")),
        lambda: client.receive(2, **from_start(home)),
        client.facts,
    )
    assert [body for body in in_second.bodies if body != "anywhere"][:3] == ["single", "batch 0", "batch 1"]
    assert [body for body in buffered.bodies if body != "anywhere"][:19] == [f"buffered {n}" for n in range(19)]
    keyed = [found for found in at_home.events if found.body != "anywhere"]
    assert {found.event.partition_key for found in keyed} == {b"home-7"}
    assert sum(one["last_enqueued_sequence_number"] + 1 for one in partitions) == 27


@both
def test_read_from_every_kind_of_position(scene: Scene) -> None:
    client = scene.client("read")
    client.send([EventData(f"old {n}") for n in range(5)], partition_id="0")
    client.send([EventData(f"new {n}") for n in range(5)], partition_id="0")
    events = client.receive(10, **from_start()).events
    assert [(found.event.sequence_number, found.event.offset) for found in events] == [(n, str(n)) for n in range(10)]
    second = events[5].event.enqueued_time

    def first_at(position: Any, group: str, *, inclusive: bool = False) -> str:
        where = {"partition_id": "0", "starting_position": position, "starting_position_inclusive": inclusive}
        return str(client.receive(1, group=group, **where).bodies[0])

    found = together(
        lambda: first_at(3, "$Default"),
        lambda: first_at(3, "$Default", inclusive=True),
        lambda: first_at("3", "$Default"),
        lambda: first_at("3", "alerts", inclusive=True),
        lambda: first_at(second - timedelta(milliseconds=1), "alerts"),
        lambda: first_at(second, "alerts", inclusive=True),
        lambda: latest(client),
    )
    assert found == ["old 4", "old 3", "old 4", "old 3", "new 0", "new 0", "news"]


def latest(client: Any) -> str:
    def send() -> None:
        client.send_one(EventData("news"), partition_id="1")

    found = client.receive(1, partition_id="1", starting_position="@latest", when_ready=send)
    return str(found.bodies[0])


@both
def test_groups_are_independent_and_what_cannot_be_is_told(scene: Scene) -> None:
    client = scene.client("read")
    client.send_one(EventData("x"), partition_id="2")
    # The async client of today tries again for ever, and does not say why.
    patience_s = 60.0 if scene.kind is SyncClient else 1.0
    alerts, shouted, nobody, beyond = together(
        lambda: client.receive(1, group="alerts", **from_start("2")),
        lambda: client.receive(1, group="ALERTS", **from_start("2")),
        lambda: client.receive(1, group="nobody", patience_s=patience_s, **from_start("2")),
        lambda: client.receive(1, partition_id="3", starting_position=1_000_000, patience_s=patience_s),
    )
    assert (alerts.bodies, shouted.bodies, nobody.bodies, beyond.bodies) == (["x"], ["x"], [], [])
    if scene.kind is SyncClient:
        assert "amqp:not-found" in str(nobody.errors[0])
        assert "com.microsoft:argument-error" in str(beyond.errors[0])
    with pytest.raises(EventHubError, match="could not be found"):
        scene.client("missing").facts()
    with pytest.raises(EventHubError, match="could not be found"):
        scene.client("missing").send_one(EventData("x"))
    with pytest.raises(EventHubError, match="Invalid partition 9"):
        client.send_one(EventData("x"), partition_id="9")


@both
def test_facts_of_the_hub_of_its_partitions_and_with_each_event(scene: Scene) -> None:
    client = scene.client("native")
    hub, partitions = client.facts()
    assert hub["partition_ids"] == ["0", "1", "2", "3"]
    assert datetime.now(UTC) - hub["created_at"] < timedelta(minutes=5)
    assert partitions[3]["is_empty"]
    assert (partitions[3]["beginning_sequence_number"], partitions[3]["last_enqueued_sequence_number"]) == (0, -1)
    client.send([EventData("x")] * 3, partition_id="2")
    of_two = client.facts()[1][2]
    assert (of_two["last_enqueued_sequence_number"], of_two["last_enqueued_offset"], of_two["is_empty"]) == (
        2,
        "2",
        False,
    )
    assert datetime.now(UTC) - of_two["last_enqueued_time_utc"] < timedelta(minutes=5)
    # And with every event, for a receiver that asks for it.
    client.send([EventData("x")] * 5, partition_id="1")
    found = client.receive(1, **from_start("1", track_last_enqueued_event_properties=True)).events[0].last
    assert found is not None
    assert (found["sequence_number"], found["offset"]) == (4, "4")
    assert found["retrieval_time"] >= found["enqueued_time"]
    assert client.receive(1, **from_start("1")).events[0].event._last_enqueued_event_properties == {}


@both
def test_epochs_decide_who_may_read_a_partition(scene: Scene) -> None:
    """Each with a partition of its own, at the same time."""
    client = scene.client("epochs")
    together(
        lambda: a_higher_epoch_takes_the_partition(client),
        lambda: a_lower_epoch_and_none_are_refused(client),
        lambda: a_receiver_without_epoch_is_disconnected_by_one_with(client),
    )


def a_higher_epoch_takes_the_partition(client: Client) -> None:
    client.send_one(EventData("x"), partition_id="0")
    taken: list[Any] = []
    first = client.receive(
        99,
        when_ready=lambda: taken.append(client.receive(1, **from_start(owner_level=6))),
        **from_start(owner_level=5),
    )
    assert taken[0].bodies == ["x"]
    assert "amqp:link:stolen" in str(first.errors[0])


def a_lower_epoch_and_none_are_refused(client: Client) -> None:
    client.send_one(EventData("x"), partition_id="1")
    others: list[Any] = []

    def come() -> None:
        others.extend(
            together(
                lambda: client.receive(1, **from_start("1", owner_level=4)),
                lambda: client.receive(1, **from_start("1")),
            )
        )

    client.receive(99, when_ready=come, until=lambda: len(others) == 2, **from_start("1", owner_level=5))
    assert [other.bodies for other in others] == [[], []]
    assert ["amqp:link:stolen" in str(other.errors[0]) for other in others] == [True, True]
    # When the holder has gone, everybody may come.
    assert client.receive(1, **from_start("1")).bodies == ["x"]


def a_receiver_without_epoch_is_disconnected_by_one_with(client: Client) -> None:
    client.send_one(EventData("x"), partition_id="2")
    first = client.receive(
        99, when_ready=lambda: client.receive(1, **from_start("2", owner_level=0)), **from_start("2")
    )
    assert "amqp:link:stolen" in str(first.errors[0])


@both
def test_a_message_of_a_megabyte_and_one_that_is_too_large(scene: Scene) -> None:
    client = scene.client("large")
    body = "L" * 1_048_000
    client.send_one(EventData(body), partition_id="0")
    assert client.receive(1, **from_start()).bodies == [body]
    with pytest.raises(EventDataSendError, match="exceeds the limit"):
        client.send_one(EventData("L" * 1_050_000), partition_id="0")
    with pytest.raises(ValueError, match="size limit"):
        client.send([EventData("L" * 1_050_000)], partition_id="0")
    client.send_one(EventData("after"), partition_id="0")
    assert client.receive(2, **from_start()).bodies[1] == "after"


@both
def test_nothing_of_a_message_is_lost_on_the_way(scene: Scene) -> None:
    client = scene.client("kinds")
    event = EventData(b"body")
    event.properties = {"n": 1, "text": "x", "right": True, "part": 2.5, "raw": b"\x00", "id": UUID(int=7)}
    event.message_id, event.correlation_id, event.content_type = "message-1", "correlation-1", "text/plain"
    client.send_one(event, partition_id="0")
    client.send_one(
        AmqpAnnotatedMessage(
            value_body={"a": [1, None, {"b": b"c"}]},
            header=AmqpMessageHeader(priority=3, durable=True),  # type: ignore[no-untyped-call]
            properties=AmqpMessageProperties(  # type: ignore[no-untyped-call]
                subject="subject", group_id="group", creation_time=1_000
            ),
            annotations={"own": "note"},
            footer={"end": 1},
        ),
        partition_id="0",
    )
    client.send_one(AmqpAnnotatedMessage(sequence_body=[[1, 2], ["three"]]), partition_id="0")
    client.send_one(AmqpAnnotatedMessage(data_body=[b"first", b"second"]), partition_id="0")
    plain, value, sequence, several = [found.event for found in client.receive(4, **from_start()).events]

    assert plain.body_as_str() == "body"
    assert plain.properties == {
        b"n": 1,
        b"text": b"x",
        b"right": True,
        b"part": 2.5,
        b"raw": b"\x00",
        b"id": UUID(int=7),
    }
    assert (plain.message_id, plain.correlation_id, plain.content_type) == ("message-1", "correlation-1", "text/plain")
    raw = value.raw_amqp_message
    assert value.body_type == AmqpMessageBodyType.VALUE
    assert value.body == {b"a": [1, None, {b"b": b"c"}]}
    assert (raw.header.priority, raw.header.durable) == (3, True)
    assert (raw.properties.subject, raw.properties.group_id, raw.properties.creation_time) == (
        b"subject",
        b"group",
        1_000,
    )
    assert raw.annotations[b"own"] == b"note"
    assert raw.footer == {b"end": 1}
    assert list(sequence.body) == [[1, 2], [b"three"]]
    assert list(several.body) == [b"first", b"second"]


@both
def test_what_clients_send_is_read_from_the_hub_itself_and_the_other_way(scene: Scene) -> None:
    client = scene.client("native")
    event = EventData("by a client")
    event.properties = {"n": 1, "text": "x"}
    client.send([event], partition_key="home-1")
    path = scene.data / f"{scene.kind.__name__}-native"
    number = partition_of("home-1", 4)

    async def read_and_send() -> Event:
        hub = Hub(path)
        source = HubSource(hub)
        reader = await source.open(str(number), await source.resolve(str(number), "earliest"), epoch=1)
        batch = await reader.read(100, 1 << 20, 5.0)
        await reader.aclose()
        await source.aclose()
        await hub.send([Event(b"by the hub", "home-1", {"n": 2, "nested": {"a": [1]}})])
        await hub.aclose()
        return next(event for event in batch.events if event.key == "home-1")

    found = asyncio.run(read_and_send())
    assert (found.body, found.key, found.properties) == (b"by a client", "home-1", {"n": 1, "text": "x"})
    came = [
        one.event
        for one in client.receive(
            found.sequence + 2 if found.sequence is not None else 2, **from_start(str(number))
        ).events
    ]
    assert came[-1].body_as_str() == "by the hub"
    assert came[-1].partition_key == b"home-1"
    assert came[-1].properties == {b"n": 2, b"nested": {b"a": [1]}}


@both
def test_a_receiver_outlives_the_server_and_so_does_what_was_sent(scene: Scene) -> None:
    kind, tmp_path = scene.kind, scene.folder
    with ExitStack() as stack:
        first = stack.enter_context(serving(tmp_path, "--hub", "homes:1:alerts"))
        client = kind(first.connection_string(), retry_total=20, retry_backoff_max=0.5)
        client.send([EventData("before")], partition_id="0")

        def restart() -> None:
            assert first.stop() == ""
            assert json.loads((tmp_path / "data" / "groups.json").read_bytes()) == {"homes": ["alerts"]}
            again = stack.enter_context(serving(tmp_path, port=first.port))
            assert again.facts["hubs"] == [{"name": "homes", "partitions": 1, "groups": ["$Default", "alerts"]}]
            kind(again.connection_string()).send([EventData("after")], partition_id="0")

        outcome = client.receive(2, group="alerts", when_ready=restart, **from_start())
        assert outcome.bodies == ["before", "after"]


@both
def test_a_slow_receiver_gets_all_of_it_and_the_server_keeps_little(scene: Scene) -> None:
    """18 MB, sent at once and taken a few events at a time."""
    with serving(scene.folder, "--hub", "homes:1") as served:
        client = scene.kind(served.connection_string())
        before = served.memory_bytes()
        together(*[partial(client.send, [EventData(b"s" * 300_000)] * 3, partition_id="0") for _ in range(20)])
        outcome = client.receive(60, pause_s=0.02, prefetch=4, **from_start())
        assert [len(body) for body in outcome.bodies] == [300_000] * 60
        assert [found.event.sequence_number for found in outcome.events] == list(range(60))
        assert served.memory_bytes() - before < 60 * 1024 * 1024


CLIENT_IDLE_S = 12.0
"""The client hangs up when it hears nothing for so long; the server sends a heartbeat after a quarter of it. The rest
is for a machine that is busy."""


def test_a_receiver_stays_when_there_is_nothing_but_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends heartbeats when the server asks for them, and the server when the client does."""
    for kind in CLIENTS:
        with monkeypatch.context() as patches, heartbeats_every_second(patches) as (hub, heard):
            client = kind(hub.connection_string, idle_timeout=CLIENT_IDLE_S)
            asyncio.run(hub.hub.send([Event(b"one")], partition="0"))
            connections: list[int] = []

            def send_later(hub: EventHub = hub, heard: Heard = heard, counted: list[int] = connections) -> None:
                wait_for(heard.one_stays, "heartbeats of both sides")
                counted.append(len(heard.connections))
                asyncio.run(hub.hub.send([Event(b"two")], partition="0"))

            sending = Thread(target=send_later)
            outcome = client.receive(2, when_ready=sending.start, **from_start())
            sending.join()
            assert (outcome.bodies, outcome.errors) == (["one", "two"], []), kind
            assert connections == [len(heard.connections)], kind
