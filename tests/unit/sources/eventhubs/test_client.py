"""The internals of the official client that are used exist: a release that changes them fails here."""

from __future__ import annotations

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub._pyamqp.aio import AMQPClientAsync, ReceiveClientAsync
from azure.eventhub._pyamqp.aio._connection_async import Connection
from azure.eventhub._pyamqp.aio._management_link_async import ManagementLink
from azure.eventhub._pyamqp.aio._management_operation_async import ManagementOperation
from azure.eventhub._pyamqp.aio._receiver_async import ReceiverLink
from azure.eventhub._pyamqp.aio._transport_async import AsyncTransport
from azure.eventhub._pyamqp.constants import LinkState
from azure.eventhub._pyamqp.message import Header, Message, Properties
from azure.eventhub._pyamqp.performatives import TransferFrame
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.aio._client_base_async import ClientBaseAsync
from azure.eventhub.aio._consumer_async import EventHubConsumer

from evenflow.sources.eventhubs.client import (
    LINK_ATTACHED,
    PAYLOAD,
    HubClient,
    ReceiveLink,
    _read_frames_without_timeout,
)
from evenflow.sources.eventhubs.decode import FIELDS

ROOT = Path(__file__).parents[4]
TRANSFER = 20
CONNECTION_STRING = "Endpoint=sb://host/;SharedAccessKeyName=k;SharedAccessKey=v;EntityPath=sensors"


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (ClientBaseAsync, ["_create_auth_async", "_management_request_async", "_get_eventhub_properties_async"]),
        (EventHubConsumerClient, ["_create_consumer", "get_eventhub_properties", "get_partition_properties"]),
        (EventHubConsumer, ["_create_handler"]),
        (ReceiveClientAsync, ["open_async", "close_async", "client_ready_async", "do_work_async"]),
        (AMQPClientAsync, ["open_async", "close_async", "client_ready_async"]),
        (ManagementOperation, ["open", "ready", "close"]),
        (ManagementLink, ["execute_operation"]),
        (Connection, ["listen", "close"]),
        (ReceiverLink, ["flow", "get_state", "_incoming_transfer", "_process_incoming_message"]),
    ],
)
def test_methods_that_are_used_are_there(owner: type, names: list[str]) -> None:
    assert [name for name in names if not inspect.iscoroutinefunction(getattr(owner, name))] in (
        [],
        ["_create_consumer"],
        ["_create_handler"],
        ["get_state"],
    )


def test_attributes_that_are_used_are_there() -> None:
    client: Any = HubClient.from_connection_string(CONNECTION_STRING, "alerts")
    assert client._auth_uri == "sb://host/sensors/consumergroups/alerts"
    link: Any = ReceiveLink(client, "alerts", "0", after=7, owner_level=3, prefetch=10, arrived=print)
    consumer = link._consumer
    assert consumer._keep_alive == 0
    consumer._create_handler(None)
    handler = consumer._handler
    assert handler._keep_alive_interval == 0
    assert hasattr(handler, "_message_received_callback")
    assert hasattr(handler, "_socket_timeout")
    assert handler._link_credit == 10
    assert consumer._link_properties[b"com.microsoft:epoch"] is not None


def test_a_frame_that_has_arrived_is_taken_without_a_timer() -> None:
    """Whole frames, parts of frames, several at once, and one whose wait timed out."""
    frames = [b"\x00\x00\x00\x08\x02\x00\x00\x00", _transfer(1), _transfer(300), _transfer(2)]

    async def main() -> None:
        transport: Any = AsyncTransport("localhost:1")
        transport.reader = reader = asyncio.StreamReader()
        _read_frames_without_timeout(transport)
        waits = 0
        patiently = transport.read

        async def counted(**options: Any) -> Any:
            nonlocal waits
            waits += 1
            return await patiently(**options)

        transport.read = counted  # used only by a read with a timeout
        reader.feed_data(frames[0] + frames[1] + frames[2][:20])
        assert await transport.receive_frame(timeout=5.0) == (0, (1, b"EMPTY"))
        assert (await transport.receive_frame(timeout=5.0))[1][0] == TRANSFER
        assert waits == 0
        assert await transport.receive_frame(timeout=0.01) == (None, None)
        reader.feed_data(frames[2][20:] + frames[3])
        found = [(await transport.receive_frame(timeout=5.0))[1][1] for _ in range(2)]
        assert [len(fields[11]) for fields in found] == [300, 2]
        assert waits >= 2

    asyncio.run(main())


def _transfer(size: int) -> bytes:
    fields = b"\x43\x43\xa0\x01\x01\x43\x41\x42" + b"\x40" * 5
    body = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 11]) + fields + b"p" * size
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def test_a_message_has_these_parts() -> None:
    """Messages decoded by evenflow are assembled like the client's."""
    assert set(Message._fields) == set(FIELDS.values())
    assert Properties._fields[:7] == (
        *("message_id", "user_id", "to", "subject"),
        *("reply_to", "correlation_id", "content_type"),
    )
    assert Header._fields[:2] == ("durable", "priority")
    assert TransferFrame._fields[PAYLOAD] == "payload"
    taking = inspect.getsource(ReceiverLink._incoming_transfer)
    assert "_received_payload.extend(frame[11])" in taking
    assert "self._received_payload = bytearray()" in taking


def test_this_release_of_the_client_is_one_that_the_extra_allows() -> None:
    """Its internals are used, so a new minor release is allowed only after this suite has passed with it."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["eventhubs"]
    assert "azure-eventhub>=5.15,<5.16" in wanted
    installed = tuple(map(int, version("azure-eventhub").split(".")[:2]))
    assert installed == (5, 15), "try the new release, then raise the bound in pyproject.toml and this line"


def test_an_attached_link_has_this_number() -> None:
    assert LinkState.ATTACHED.value == LINK_ATTACHED


def test_answers_are_passed_with_these_arguments() -> None:
    passed = inspect.getsource(ManagementLink._on_message_received)
    assert "on_execute_operation_complete(" in passed
    assert "mgmt_result, status_code, status_description, message, response_detail" in passed
    made = inspect.getsource(ManagementLink.__init__)
    assert "self._response_link: ReceiverLink" in made
    asked = inspect.getsource(AMQPClientAsync.mgmt_request_async)
    assert "ManagementOperation(self._session, endpoint=node, **kwargs)" in asked
    assert "self._mgmt_links[node] = mgmt_link" in asked


def test_management_requests_use_the_method_that_is_replaced() -> None:
    source = inspect.getsource(ClientBaseAsync._get_partition_properties_async)
    assert "_management_request_async" in source
