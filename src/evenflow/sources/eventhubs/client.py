"""Drives the official client's internals directly. No other module depends on them, or imports the client at its top.

The client's own receive loop sleeps 50 ms after every round, opens a connection for every management request, sleeps
50 ms after every frame while it opens one, and takes up to a second to close one. This module uses the client's
connection, authentication, link and codec without these sleeps; `python -m benchmarks eventhubs` measures the gain.
`tests/unit/sources/eventhubs/test_client.py` lists the internals used, and fails when a new release changes them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from io import SEEK_CUR
from typing import TYPE_CHECKING, Any

from azure.eventhub._pyamqp._decode import decode_empty_frame, decode_frame
from azure.eventhub._pyamqp.aio._management_operation_async import ManagementOperation
from azure.eventhub._pyamqp.message import Header, Message, Properties
from azure.eventhub.aio import EventHubConsumerClient

from evenflow.sources.eventhubs.decode import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN_S = 60.0
"""How long opening a connection may take, authentication and link included."""
ANSWER_S = 30.0
"""How long a round of management requests may take."""
ROUND_MOST = 32
"""The number of management requests in one round."""
MANAGEMENT = "$management"
CLOSE_S = 2.0
UNUSED_S = 30.0
"""A management connection that was idle for longer is replaced: the service may have dropped it."""
WAIT_S = 1.0
"""How long one round waits for a frame. Events end the wait at once, so this is the interval of an idle link."""
GOOD = 400
"""Status codes below this are successes."""
LINK_ATTACHED = 3
PAYLOAD = 11
"""The index of the payload, after the fields of a transfer frame."""
HEADER_BYTES = 8
CONDITIONS = {
    400: "com.microsoft:argument-out-of-range",
    401: "amqp:unauthorized-access",
    404: "amqp:not-found",
    503: "com.microsoft:server-busy",
}
"""The AMQP condition for a status code."""


class HubClient(EventHubConsumerClient):
    """The official client, with one connection for all management requests instead of one for each.

    Requests go in rounds: the first caller sends all pending requests and receives all answers. The client's connection
    cannot be written to while a task listens on it, so single requests would wait for each other.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._round_lock = asyncio.Lock()
        self._waiting: list[ManagementRequest] = []
        self._management: Any = None
        self._management_auth: Any = None
        self._management_links: Any = None
        """The pair of links for requests and answers."""
        self._answered_s = 0.0
        self._closes = 0
        """How often the client was closed: a request from before that opens no new connection."""
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def namespace(self) -> str:
        """In lower case; apart from that as the official checkpoint stores write it."""
        return str(self._address.hostname).lower()

    async def _management_request_async(self, mgmt_msg: Any, op_type: bytes) -> Any:
        request, closes = ManagementRequest(mgmt_msg, op_type.decode()), self._closes
        self._waiting.append(request)
        try:
            async with self._round_lock:
                while not request.is_done:
                    await self._request_round(closes)
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        return request.result()

    async def _request_round(self, closes: int) -> None:
        sent = self._waiting[:ROUND_MOST]
        del self._waiting[:ROUND_MOST]
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._request_with_retry(sent, closes)
        except Exception as error:
            for request in sent:
                request.fail(error)
            await self._close_management()
        except BaseException:
            # This caller was cancelled; the others still wait. A late answer must not reach another request.
            self._waiting[:0] = [request for request in sent if not request.is_done]
            await self._close_management()
            raise

    async def _request_with_retry(self, requests: list[ManagementRequest], closes: int) -> None:
        """Tries the existing connection, which may be broken, and then a new one."""
        if self._management is not None and asyncio.get_running_loop().time() - self._answered_s < UNUSED_S:
            with suppress(Exception):
                await self._send_requests(requests)
                return
        await self._close_management()
        await self._connect_management(closes)
        await self._send_requests([request for request in requests if not request.is_done])

    async def _connect_management(self, closes: int) -> None:
        self._management_auth = await self._create_auth_async()
        management = self._amqp_transport.create_mgmt_client(
            self._address, mgmt_auth=self._management_auth, config=self._config
        )
        try:
            self._management_links = await _open_management_links(management)
            if self._closes != closes:
                raise ConnectionError("The client was closed.")
        except BaseException:
            await self.leave(management)
            raise
        self._management = management

    async def _send_requests(self, requests: list[ManagementRequest]) -> None:
        """Sends all at once. Raises if one of them got neither an answer nor an error of the service."""
        while not await self._management.client_ready_async():
            pass  # its authentication is being renewed
        token = await self._amqp_transport.get_updated_token_async(self._management_auth)
        links = self._management_links._mgmt_link
        for request in requests:
            request.no_answer = None
            request.message.application_properties["security_token"] = token
            await links.execute_operation(request.message, request.on_answer, operation="READ", type=request.kind)
        while not all(request.is_done for request in requests):
            no_answer = [request.no_answer for request in requests if request.no_answer is not None]
            if self._management_links._mgmt_error is not None or no_answer:
                raise self._management_links._mgmt_error or no_answer[0]
            await self._management._connection.listen()
        if links._response_link.current_link_credit < ROUND_MOST:
            await links._response_link.flow()  # the client itself never renews the initial credit
        self._answered_s = asyncio.get_running_loop().time()

    async def _close_management(self) -> None:
        management, self._management = self._management, None
        if management is not None:
            await self.leave(management)

    async def leave(self, client: Any) -> None:
        """Closes a connection, even if the caller is cancelled: no other code holds a reference to it."""
        leaving = asyncio.ensure_future(_closed(client))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def close(self) -> None:
        self._closes += 1
        await self._close_management()
        if self._leaving:
            await asyncio.wait(self._leaving)
        await super().close()


async def _open_management_links(management: Any) -> Any:
    """Opens the connection, and on it the pair of links for requests and answers."""
    await management.open_async()
    while not await management.client_ready_async():
        pass
    make_operation: Any = ManagementOperation
    links = make_operation(
        management._session,
        endpoint=MANAGEMENT,
        status_code_field=b"status-code",
        status_description_field=b"status-description",
    )
    management._mgmt_links[MANAGEMENT] = links  # so that it is closed with the client
    await links.open()
    while not await links.ready():
        await management._connection.listen()
    return links


class ManagementRequest:
    """A request for the properties of the hub or a partition, and its result."""

    def __init__(self, message: Any, kind: str) -> None:
        self.message, self.kind = message, kind
        self.is_done = False
        self.no_answer: Exception | None = None
        """Why this connection gave no answer. Another connection may."""
        self._answer: Any = None
        self._error: Exception | None = None

    async def on_answer(self, _: Any, status: int | None, description: Any, answer: Any, error: Any = None) -> None:
        """Called by the client. Without a status, the link was closed or rejected the request."""
        if status is None:
            self.no_answer = error or ConnectionError("The management link rejected the request.")
            return
        self.is_done = True
        if int(status) >= GOOD:
            text = description.decode(errors="replace") if isinstance(description, bytes) else description
            self._error = ManagementError(int(status), text)
        else:
            self._answer = answer

    def fail(self, error: Exception) -> None:
        if not self.is_done:
            self.is_done, self._error = True, error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer


class ManagementError(Exception):
    """The service answered a management request with an error: another connection would get the same answer."""

    def __init__(self, status: int, description: str | None) -> None:
        super().__init__(f"status {status}: {description or 'no description'}")
        self.condition = CONDITIONS.get(status)


class ReceiveLink:
    """One receiver of one partition: a connection, a link, and credit for a number of events.

    `arrived` is called with each message, on the event loop, while `work` runs.
    """

    def __init__(
        self,
        client: HubClient,
        group: str,
        partition: str,
        *,
        after: int | str | Any,
        inclusive: bool = False,
        owner_level: int | None,
        prefetch: int,
        track: bool = False,
        arrived: Callable[[Any], None],
    ) -> None:
        self._client, self._partition, self._prefetch, self._arrived = client, partition, prefetch, arrived
        self._consumer: Any = client._create_consumer(
            group,
            partition,
            after,
            self._unused_callback,
            event_position_inclusive=inclusive,
            owner_level=owner_level,
            prefetch=prefetch,
            track_last_enqueued_event_properties=track,
        )
        # The client's keep-alive is a task that sleeps a second at a time, and closing waits for it: `work` replaces it
        # and sends the heartbeats.
        self._consumer._keep_alive = 0
        self._handler: Any = None
        self._error: Exception | None = None
        self._transfer: Any = None
        """The client's handler of transfer frames."""
        self._frame: Any = None
        self._partial = bytearray()
        """The part of the message in earlier frames, to which the client adds the frame."""

    async def attach(self) -> None:
        """Returns when the service has accepted the link. No event arrives before the first `work`."""
        client, consumer = self._client, self._consumer
        async with asyncio.timeout(OPEN_S):
            consumer._create_handler(await client._create_auth_async(auth_uri=client._auth_uri))
            self._handler = handler = consumer._handler
            handler._message_received_callback = self._receive
            await handler.open_async()
            while not await handler.client_ready_async():
                pass
        self._transfer, handler._link._incoming_transfer = handler._link._incoming_transfer, self._take_frame
        _read_frames_without_timeout(handler._connection._transport)
        idle_s = handler._connection._remote_idle_timeout
        handler._socket_timeout = min(WAIT_S, idle_s / 4) if idle_s else WAIT_S

    async def work(self) -> None:
        """Does what is due: give credit, receive frames, renew the authentication, send a heartbeat.

        Returns when half of the credit is used up, so that credit is renewed before it runs out, or when nothing
        arrived for a moment. Raises the service's error if it has closed the link.
        """
        handler = self._handler
        link = handler._link
        if link is not None and link.current_link_credit <= self._prefetch // 2 and link.state.value == LINK_ATTACHED:
            await link.flow(link_credit=self._prefetch)
        if not await handler.do_work_async(batch=max(1, self._prefetch // 2)):
            raise ConnectionError("The connection was closed.")
        if self._error is not None:
            raise self._error
        if link is not None:
            # The client keeps the tag of every delivery to settle it, but here all deliveries arrive settled.
            link._received_delivery_tags.clear()

    async def stay(self) -> None:
        """Sends a heartbeat without giving credit, for a reader whose buffer is full. Raises like `work`."""
        connection, link = self._handler._connection, self._handler._link
        await connection.listen(wait=0.01, batch=max(1, link.current_link_credit))
        link.get_state()

    async def close(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            await self._client.leave(handler)

    async def _take_frame(self, frame: Any) -> None:
        self._frame, self._partial = frame, self._handler._link._received_payload
        try:
            await self._transfer(frame)
        except Exception:
            # Only the client's decoder can fail there. The part that it keeps would become part of the next message.
            self._handler._link._received_payload = bytearray()
            await self._receive(None)

    async def _receive(self, message: Any) -> None:
        """Stores any error: the client would only log it and continue with the next message, skipping an event."""
        if self._error is None:
            try:
                if message is None or (message.data is None and message.value is None and message.sequence is None):
                    # The client may have misread a message without a body: it mistakes the next section for another.
                    message = self._decoded()
                self._arrived(message)
            except Exception as error:
                self._error = error

    def _decoded(self) -> Message:
        fields = fields_of(bytes(self._partial or self._frame[PAYLOAD]), self._partition)
        for name, kind in (("header", Header), ("properties", Properties)):
            if fields.get(name) is not None:
                fields[name] = kind(*fields[name])
        return Message(**fields)

    async def _unused_callback(self, *_: Any) -> None:
        raise AssertionError("messages are delivered by `arrived`")


def _read_frames_without_timeout(transport: Any) -> None:
    """Reads a frame that has arrived completely without a timeout. The client creates a task and a timer for each
    frame, which on Python 3.11 is a third of the cost of an event."""
    reader = getattr(transport, "reader", None)
    arrived: bytearray | None = getattr(reader, "_buffer", None)
    if arrived is None:
        return  # WebSockets, or the stream of another event loop: unchanged
    receive_with_timeout, read, attributes = transport.receive_frame, transport.read, transport.__dict__

    async def receive_frame(timeout: float | None = None, **options: Any) -> Any:
        partial = attributes["_read_buffer"]  # the part of a frame whose wait timed out
        is_there = len(arrived) >= HEADER_BYTES and len(arrived) >= int.from_bytes(arrived[:4], "big")
        if not is_there or partial.seek(0, SEEK_CUR) != partial.getbuffer().nbytes:
            return await receive_with_timeout(timeout=timeout, **options)
        header, channel, payload = await read(**options)
        return channel, decode_frame(payload) if payload else decode_empty_frame(header)

    transport.receive_frame = receive_frame


async def _closed(client: Any) -> None:
    """Closes the socket, too, in any case: the client forgets the socket of a broken connection."""
    connection = client._connection
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await client.close_async()
    if connection is not None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await connection._transport.close()
