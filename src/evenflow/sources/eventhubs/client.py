"""The official client, driven by hand. The only file that knows how it works inside, and that imports it at its top.

Its own receive loop rests 50 ms after every round, opens a connection for every question about the hub, rests 50 ms
after every frame while it opens one, and takes up to a second to close one. Here the same connection, log-in, link and
codec are used, without the rests: `python -m benchmarks eventhubs` tells what that brings. What is used of the client's
inside is named in `tests/unit/sources/eventhubs/test_client.py`, which fails when a new release has changed it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.eventhub._pyamqp._decode import decode_empty_frame, decode_frame
from azure.eventhub._pyamqp.aio._management_operation_async import ManagementOperation
from azure.eventhub._pyamqp.message import Header, Message, Properties
from azure.eventhub.aio import EventHubConsumerClient

from evenflow.sources.eventhubs.decode import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN_S = 60.0
"""How long a connection may take to be there, log-in and link included."""
ANSWER_S = 30.0
"""How long a round of questions about the hub may take."""
ROUND_MOST = 32
"""So many questions go at once; more go in the next round."""
MANAGEMENT = "$management"
CLOSE_S = 2.0
UNUSED_S = 30.0
"""A connection for questions that nobody has used for so long is made anew: the service may have dropped it."""
WAIT_S = 1.0
"""How long one round waits for a frame. Events wake it at once; what it decides is how often an idle link looks."""
GOOD = 400
"""Status codes below this are answers."""
LINK_ATTACHED = 3
PAYLOAD = 11
"""Where a frame's part of the message is, after the fields of a transfer."""
HEADER_BYTES = 8
CONDITIONS = {
    400: "com.microsoft:argument-out-of-range",
    401: "amqp:unauthorized-access",
    404: "amqp:not-found",
    503: "com.microsoft:server-busy",
}
"""What a status code of an answer is called elsewhere."""


class HubClient(EventHubConsumerClient):
    """The official client, with one connection for all questions about the hub instead of one for each.

    Questions go in rounds: whoever comes first asks for all that wait, and then hears all the answers. A connection of
    the client's cannot be written to while somebody listens, so that questions on their own would queue up.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asking = asyncio.Lock()
        self._waiting: list[Question] = []
        self._questions: Any = None
        self._questions_auth: Any = None
        self._desk: Any = None
        """The pair of links that questions and answers take."""
        self._asked_s = 0.0
        self._closes = 0
        """How often it was closed: who asked before then gets no new connection."""
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def namespace(self) -> str:
        """As the official checkpoint stores write it, but for its case, which has no meaning."""
        return str(self._address.hostname).lower()

    async def _management_request_async(self, mgmt_msg: Any, op_type: bytes) -> Any:
        question, closes = Question(mgmt_msg, op_type.decode()), self._closes
        self._waiting.append(question)
        try:
            async with self._asking:
                while not question.is_done:
                    await self._ask_round(closes)
        finally:
            if question in self._waiting:
                self._waiting.remove(question)
        return question.result()

    async def _ask_round(self, closes: int) -> None:
        asked = self._waiting[:ROUND_MOST]
        del self._waiting[:ROUND_MOST]
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._ask_twice(asked, closes)
        except Exception as error:
            for question in asked:
                question.fail(error)
            await self._hang_up()
        except BaseException:
            # Who asked for all no longer waits; the others do. Nor may an answer that comes late find somebody else.
            self._waiting[:0] = [question for question in asked if not question.is_done]
            await self._hang_up()
            raise

    async def _ask_twice(self, questions: list[Question], closes: int) -> None:
        """A connection that was used before may be gone by now; a new one tells the truth."""
        if self._questions is not None and asyncio.get_running_loop().time() - self._asked_s < UNUSED_S:
            with suppress(Exception):
                await self._ask(questions)
                return
        await self._hang_up()
        await self._call(closes)
        await self._ask([question for question in questions if not question.is_done])

    async def _call(self, closes: int) -> None:
        self._questions_auth = await self._create_auth_async()
        questions = self._amqp_transport.create_mgmt_client(
            self._address, mgmt_auth=self._questions_auth, config=self._config
        )
        try:
            self._desk = await _desk_of(questions)
            if self._closes != closes:
                raise ConnectionError("The client was closed.")
        except BaseException:
            await self.leave(questions)
            raise
        self._questions = questions

    async def _ask(self, questions: list[Question]) -> None:
        """All at once. Raises when one of them has had no answer, not even a refusal."""
        while not await self._questions.client_ready_async():
            pass  # its log-in is being renewed
        token = await self._amqp_transport.get_updated_token_async(self._questions_auth)
        links = self._desk._mgmt_link
        for question in questions:
            question.trouble = None
            question.message.application_properties["security_token"] = token
            await links.execute_operation(question.message, question.heard, operation="READ", type=question.kind)
        while not all(question.is_done for question in questions):
            trouble = [question.trouble for question in questions if question.trouble is not None]
            if self._desk._mgmt_error is not None or trouble:
                raise self._desk._mgmt_error or trouble[0]
            await self._questions._connection.listen()
        if links._response_link.current_link_credit < ROUND_MOST:
            await links._response_link.flow()  # the client itself never gives more than the first
        self._asked_s = asyncio.get_running_loop().time()

    async def _hang_up(self) -> None:
        questions, self._questions = self._questions, None
        if questions is not None:
            await self.leave(questions)

    async def leave(self, client: Any) -> None:
        """Close a connection, also where whoever waits for that is cancelled: nobody else knows of it."""
        leaving = asyncio.ensure_future(_closed(client))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def close(self) -> None:
        self._closes += 1
        await self._hang_up()
        if self._leaving:
            await asyncio.wait(self._leaving)
        await super().close()


async def _desk_of(questions: Any) -> Any:
    """Opens the connection, and on it the pair of links that questions and answers take."""
    await questions.open_async()
    while not await questions.client_ready_async():
        pass
    make_desk: Any = ManagementOperation
    desk = make_desk(
        questions._session,
        endpoint=MANAGEMENT,
        status_code_field=b"status-code",
        status_description_field=b"status-description",
    )
    questions._mgmt_links[MANAGEMENT] = desk  # what is in there is closed with the client
    await desk.open()
    while not await desk.ready():
        await questions._connection.listen()
    return desk


class Question:
    """About the hub or a partition, and what became of it."""

    def __init__(self, message: Any, kind: str) -> None:
        self.message, self.kind = message, kind
        self.is_done = False
        self.trouble: Exception | None = None
        """Why there is no answer, though perhaps over another connection."""
        self._answer: Any = None
        self._error: Exception | None = None

    async def heard(self, _: Any, status: int | None, said: Any, answer: Any, error: Any = None) -> None:
        """Called by the client. Without a status nobody has answered: the link was closed, or does not take it."""
        if status is None:
            self.trouble = error or ConnectionError("The question was not taken.")
            return
        self.is_done = True
        if int(status) >= GOOD:
            said = said.decode(errors="replace") if isinstance(said, bytes) else said
            self._error = Refused(int(status), said)
        else:
            self._answer = answer

    def fail(self, error: Exception) -> None:
        if not self.is_done:
            self.is_done, self._error = True, error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer


class Refused(Exception):
    """The service answered a question with an error: asking again over another connection brings no other answer."""

    def __init__(self, status: int, said: str | None) -> None:
        super().__init__(f"status {status}: {said or 'nothing more was said'}")
        self.condition = CONDITIONS.get(status)


class ReceiveLink:
    """One receiver of one partition: a connection, a link, and credit for so many events.

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
            self._never,
            event_position_inclusive=inclusive,
            owner_level=owner_level,
            prefetch=prefetch,
            track_last_enqueued_event_properties=track,
        )
        # Its keep-alive is a task that sleeps a second at a time, and closing waits for it. `work` does the same.
        self._consumer._keep_alive = 0
        self._handler: Any = None
        self._failed: Exception | None = None
        self._transfer: Any = None
        """How the client takes a frame of a message."""
        self._frame: Any = None
        self._begun = bytearray()
        """What came of the message before that frame; the client adds the frame to it."""

    async def attach(self) -> None:
        """Until the service has accepted the link; no event is sent before the first `work`."""
        client, consumer = self._client, self._consumer
        async with asyncio.timeout(OPEN_S):
            consumer._create_handler(await client._create_auth_async(auth_uri=client._auth_uri))
            self._handler = handler = consumer._handler
            handler._message_received_callback = self._receive
            await handler.open_async()
            while not await handler.client_ready_async():
                pass
        self._transfer, handler._link._incoming_transfer = handler._link._incoming_transfer, self._take_frame
        _hasten(handler._connection._transport)
        idle_s = handler._connection._remote_idle_timeout
        handler._socket_timeout = min(WAIT_S, idle_s / 4) if idle_s else WAIT_S

    async def work(self) -> None:
        """Give credit, take what comes, renew the log-in, send a sign of life: whatever is due.

        Returns when half of the credit is used up, so that the rest is given before it is needed, or when nothing came
        for a moment. Raises what the service said when it ended the link.
        """
        handler = self._handler
        link = handler._link
        if link is not None and link.current_link_credit <= self._prefetch // 2 and link.state.value == LINK_ATTACHED:
            await link.flow(link_credit=self._prefetch)
        if not await handler.do_work_async(batch=max(1, self._prefetch // 2)):
            raise ConnectionError("The connection was closed.")
        if self._failed is not None:
            raise self._failed
        if link is not None:
            # The client keeps the tag of every delivery, to settle it; here all arrive settled.
            link._received_delivery_tags.clear()

    async def stay(self) -> None:
        """A sign of life without giving credit, for a reader that has enough for now. Raises as `work` does."""
        connection, link = self._handler._connection, self._handler._link
        await connection.listen(wait=0.01, batch=max(1, link.current_link_credit))
        link.get_state()

    async def close(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            await self._client.leave(handler)

    async def _take_frame(self, frame: Any) -> None:
        self._frame, self._begun = frame, self._handler._link._received_payload
        try:
            await self._transfer(frame)
        except Exception:
            # All that can fail in there is its decoder. What it keeps of the message would become part of the next.
            self._handler._link._received_payload = bytearray()
            await self._receive(None)

    async def _receive(self, message: Any) -> None:
        """The client only logs what this raises, and goes on with the next message: nothing may be skipped so."""
        if self._failed is None:
            try:
                if message is None or (message.data is None and message.value is None and message.sequence is None):
                    # Without a body it may have been misread: it then takes what follows for something else.
                    message = self._decoded()
                self._arrived(message)
            except Exception as error:
                self._failed = error

    def _decoded(self) -> Message:
        fields = fields_of(bytes(self._begun or self._frame[PAYLOAD]), self._partition)
        for name, kind in (("header", Header), ("properties", Properties)):
            if fields.get(name) is not None:
                fields[name] = kind(*fields[name])
        return Message(**fields)

    async def _never(self, *_: Any) -> None:
        raise AssertionError("messages come by `arrived`")


def _hasten(transport: Any) -> None:
    """A frame that has arrived is taken at once. The client makes a task and a timer for each, in case it has not, and
    on Python 3.11 that is a third of what an event costs."""
    reader = getattr(transport, "reader", None)
    arrived: bytearray | None = getattr(reader, "_buffer", None)
    if arrived is None:
        return  # WebSockets, or another event loop's stream: then as it was
    patiently, read, left_over = transport.receive_frame, transport.read, transport.__dict__

    async def receive_frame(timeout: float | None = None, **options: Any) -> Any:
        begun = left_over["_read_buffer"]  # of a frame that was waited for in vain
        is_there = len(arrived) >= HEADER_BYTES and len(arrived) >= int.from_bytes(arrived[:4], "big")
        if not is_there or begun.tell() != begun.getbuffer().nbytes:
            return await patiently(timeout=timeout, **options)
        header, channel, payload = await read(**options)
        return channel, decode_frame(payload) if payload else decode_empty_frame(header)

    transport.receive_frame = receive_frame


async def _closed(client: Any) -> None:
    """However broken its connection is: the client forgets the socket of one that is."""
    connection = client._connection
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await client.close_async()
    if connection is not None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await connection._transport.close()
