"""Fixtures for pytest. In a `conftest.py`: `pytest_plugins = ["evenflow.testing.fixtures"]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.testing.event_hubs import event_hub as serve_event_hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.testing.cosmos import Cosmos
    from evenflow.testing.event_hubs import EventHub


@pytest.fixture
def event_hub() -> Iterator[EventHub]:
    """A separate local Event Hubs for each test, with one hub of four partitions."""
    with serve_event_hub(partitions=4) as hub:
        yield hub


@pytest.fixture
def cosmos() -> Iterator[Cosmos]:
    """A separate local Cosmos DB for each test, whose containers have two ranges."""
    # Imported here because it needs an extra that tests of Event Hubs do not.
    from evenflow.testing.cosmos import cosmos as serve_cosmos

    with serve_cosmos(ranges=2) as served:
        yield served
