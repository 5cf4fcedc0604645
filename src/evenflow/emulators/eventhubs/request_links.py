"""Request-response links: `$cbs`, which accepts tokens, and `$management`, which describes hubs.

A request names its reply address; otherwise the response goes to the reply link on the same session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from evenflow.amqp.conditions import INTERNAL, AmqpError, DecodeError
from evenflow.amqp.sections import AmqpRequest, reply, request_of
from evenflow.emulators.eventhubs.links import IncomingLink, OutgoingLink
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.amqp.performatives import Attach, Flow, Transfer
    from evenflow.emulators.eventhubs.connection import AmqpConnection
    from evenflow.emulators.eventhubs.session import AmqpSession

    RequestHandler: TypeAlias = Callable[[AmqpConnection, AmqpRequest], Awaitable[bytes]]

REQUEST_BYTES_MAX = 65_536


class ReplyLink(OutgoingLink):
    def __init__(self, session: AmqpSession, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self.node = node
        self.reply_address = attach.target_address
        self._waiting: deque[bytes] = deque()
        self.accept()

    def send_reply(self, message: bytes) -> None:
        try:
            self.session.connection.reserve_bytes(len(message))
        except AmqpError as error:
            self.detach(error)
            return
        self._waiting.append(message)
        self.on_sendable()

    def on_flow(self, flow: Flow) -> None:
        super().on_flow(flow)
        self.on_sendable()

    def on_sendable(self) -> None:
        while self._waiting and self.sendable > 0:
            message = self._waiting.popleft()
            self.session.connection.release_bytes(len(message))
            self.send_message(message)
        if self.draining and not self._waiting:
            self.complete_drain()

    def on_release(self) -> None:
        self.session.connection.release_bytes(sum(map(len, self._waiting)))
        self._waiting.clear()


class RequestLink(IncomingLink):
    def __init__(self, session: AmqpSession, attach: Attach, node: str, handler: RequestHandler) -> None:
        super().__init__(session, attach, REQUEST_BYTES_MAX)
        self._node = node
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self.accept()

    def take(self, transfer: Transfer, message: bytes) -> None:
        try:
            request = request_of(message)
        except DecodeError as error:
            self.settle(transfer, error)
            return
        size = len(message)
        self.session.connection.add_pending(size)
        task = asyncio.get_running_loop().create_task(self._handle(transfer, request))
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.session.connection.add_pending(-size)

        task.add_done_callback(done)

    async def _handle(self, transfer: Transfer, request: AmqpRequest) -> None:
        try:
            message = await self._handler(self.session.connection, request)
        except AmqpError as error:
            message = reply(request, _STATUS.get(error.condition, 400), error.description, condition=error.condition)
        except EvenflowError as error:
            message = reply(request, 500, str(error), condition=INTERNAL)
        self.settle(transfer)
        reply_link = self._reply_link(request)
        if reply_link is not None:
            reply_link.send_reply(message)

    def _reply_link(self, request: AmqpRequest) -> ReplyLink | None:
        here = [link for link in self.session.links.values() if _is_reply_link(link, self._node)]
        if request.reply_to:
            everywhere = [link for link in self.session.connection.links() if _is_reply_link(link, self._node)]
            named = [link for link in everywhere if link.reply_address == request.reply_to]
            here = [link for link in here if link in named] or named or here
        found = here[-1] if here else None
        return found if isinstance(found, ReplyLink) else None


def _is_reply_link(link: object, node: str) -> bool:
    return isinstance(link, ReplyLink) and link.node == node and not link.is_detached


_STATUS = {"com.microsoft:auth-failed": 401, "amqp:unauthorized-access": 401, "amqp:not-found": 404}
"""HTTP status codes for error conditions; all others are 400."""
