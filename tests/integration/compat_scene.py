"""Both consumer clients, the official one and the drop-in one, over one local event hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import azure.eventhub
import azure.eventhub.aio
import pytest

from evenflow import Event
from evenflow.testing import event_hub
from tests.unit.compat.eventhub.scene import GROUP, OURS, OURS_PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.testing import EventHub

OFFICIAL = azure.eventhub.aio.EventHubConsumerClient
OFFICIAL_PLAIN = azure.eventhub.EventHubConsumerClient


def name_of(kind: type) -> str:
    return kind.__module__.split(".", maxsplit=1)[0]


both = pytest.mark.parametrize("kind", [OFFICIAL, OURS], ids=name_of)
both_plain = pytest.mark.parametrize("kind", [OFFICIAL_PLAIN, OURS_PLAIN], ids=name_of)


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(2, groups=[GROUP]) as found:
        yield found


async def fill(served: EventHub, count: int, partition: str = "0", start: int = 0) -> None:
    for number in range(start, start + count):
        await served.hub.send(Event(b"%d" % number, f"key-{number}", {"n": number}), partition=partition)
