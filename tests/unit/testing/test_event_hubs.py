"""The local Event Hubs for tests, as a test of an application would use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

from evenflow.testing import event_hub as serve
from evenflow.testing.fixtures import event_hub

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.testing import EventHub

__all__ = ["event_hub"]


def send(connection_string: str, *texts: str, **options: Any) -> None:
    with EventHubProducerClient.from_connection_string(connection_string) as producer:
        batch = producer.create_batch(**options)
        for text in texts:
            batch.add(EventData(text))
        producer.send_batch(batch)


def received(connection_string: str, count: int) -> list[tuple[str, str]]:
    """So many events from the beginning: their partitions and bodies."""
    found: list[tuple[str, str]] = []
    consumer = EventHubConsumerClient.from_connection_string(connection_string, "$Default", load_balancing_interval=0.3)

    def on_event(partition: Any, event: Any) -> None:
        found.append((partition.partition_id, event.body_as_str()))
        if len(found) >= count:
            consumer.close()

    consumer.receive(on_event, starting_position="-1")
    return found


def test_what_is_sent_is_received() -> None:
    with serve(partitions=2) as hub:
        send(hub.connection_string, "open", "closed", partition_id="1")
        assert received(hub.connection_string, 2) == [("1", "open"), ("1", "closed")]


def test_the_fixture_is_such_a_hub(event_hub: EventHub) -> None:
    send(event_hub.connection_string, "open", partition_id="3")
    assert event_hub.hub.info().partitions[3].count == 1
    assert event_hub.url == f"hub:{event_hub.hub.path}"


def test_a_hub_that_is_given_a_path_is_there_again(tmp_path: Path) -> None:
    with serve(partitions=2, path=tmp_path) as hub:
        send(hub.connection_string, "open", partition_id="0")
    with serve(partitions=2, path=tmp_path) as hub:
        assert received(hub.connection_string, 1) == [("0", "open")]
