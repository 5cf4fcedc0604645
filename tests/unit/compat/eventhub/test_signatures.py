"""The drop-in client has the official one's face: what a release adds or changes there is noticed here."""

from __future__ import annotations

import inspect
from typing import Any

import azure.eventhub
import azure.eventhub.aio
import pytest

import evenflow.compat.eventhub
import evenflow.compat.eventhub.aio
from evenflow.compat.eventhub import contexts
from evenflow.compat.eventhub.options import ReceiveOptions
from evenflow.sources.eventhubs.options import CLIENT_OPTIONS

PAIRS = [
    (azure.eventhub.EventHubConsumerClient, evenflow.compat.eventhub.EventHubConsumerClient),
    (azure.eventhub.aio.EventHubConsumerClient, evenflow.compat.eventhub.aio.EventHubConsumerClient),
]
pairs = pytest.mark.parametrize(("official", "ours"), PAIRS, ids=["plain", "aio"])
TAKEN_CARE_OF = {
    *("checkpoint_store", "load_balancing_interval", "partition_ownership_expiration_interval"),
    *("load_balancing_strategy", "eventhub_name"),
    "uamqp_transport",  # there is one transport: the official client gives up the other
}


def parameters(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {one.name: (one.kind, one.default) for one in found if one.name not in ("self", "cls")}


@pytest.mark.parametrize(
    ("official", "ours"),
    [(azure.eventhub, evenflow.compat.eventhub), (azure.eventhub.aio, evenflow.compat.eventhub.aio)],
    ids=["plain", "aio"],
)
def test_every_public_name_is_there(official: Any, ours: Any) -> None:
    assert set(ours.__all__) == set(official.__all__)
    same = [name for name in official.__all__ if getattr(ours, name) is getattr(official, name)]
    assert set(official.__all__) - set(same) == {"EventHubConsumerClient"}


@pairs
def test_every_method_takes_the_same(official: Any, ours: Any) -> None:
    names = [name for name, _ in inspect.getmembers(official, inspect.isroutine) if not name.startswith("_")]
    assert {"close", "from_connection_string", "receive", "receive_batch", "get_partition_ids"} <= set(names)
    for name in (*names, "__init__"):
        assert parameters(getattr(ours, name)) == parameters(getattr(official, name)), name


@pytest.mark.parametrize(
    ("official", "ours"),
    [
        (azure.eventhub.PartitionContext, contexts.PlainContext),
        (azure.eventhub.aio.PartitionContext, contexts.AsyncContext),
    ],
    ids=["plain", "aio"],
)
def test_a_partition_context_has_the_same_face(official: Any, ours: Any) -> None:
    assert issubclass(ours, official)
    names = [name for name, _ in inspect.getmembers(official, inspect.isfunction) if not name.startswith("_")]
    assert names == ["update_checkpoint"]
    for name in (*names, "__init__"):
        assert parameters(getattr(ours, name)) == parameters(getattr(official, name)), name
        assert inspect.iscoroutinefunction(getattr(ours, name)) == inspect.iscoroutinefunction(getattr(official, name))
    assert ours.last_enqueued_event_properties is official.last_enqueued_event_properties


@pairs
def test_every_option_of_the_constructor_goes_somewhere(official: Any, ours: Any) -> None:
    options = [
        name
        for name, (kind, _) in parameters(official.from_connection_string).items()
        if kind is inspect.Parameter.KEYWORD_ONLY
    ]
    assert [name for name in options if name not in CLIENT_OPTIONS | TAKEN_CARE_OF] == []


@pairs
def test_every_option_of_receive_goes_somewhere(official: Any, ours: Any) -> None:
    """`receive` and `receive_batch` are the official ones: both end in the one method that is replaced."""
    for name in ("receive", "receive_batch"):
        assert getattr(ours, name) is getattr(official, name)
    given = {name for name in parameters(official._receive) if name not in ("on_event", "kwargs")}
    assert given == set(ReceiveOptions.__struct_fields__) - {"handler"}
