"""The server's ends of links: an `IncomingLink` receives what a client sends, an `OutgoingLink` sends to a client.

Both handle credit. Subclasses decide what is received and sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.amqp import performatives
from evenflow.amqp.conditions import CREDIT_EXCEEDED, INVALID_FIELD, TOO_LARGE, AmqpError
from evenflow.amqp.performatives import TRANSFER_BYTES, UINT_MAX, transfer_head
from evenflow.amqp.types import NULL

if TYPE_CHECKING:
    import asyncio

    from evenflow.amqp.performatives import Attach, AttachSummary, Flow, Transfer
    from evenflow.emulators.eventhubs.session import AmqpSession

MESSAGE_BYTES_MAX = 1_048_576
"""The service's limit for the payload of a message."""
CREDIT = 300


class AmqpLink:
    def __init__(self, session: AmqpSession, attach: Attach) -> None:
        self.session = session
        self._attach: AttachSummary | None = attach.summary
        """Kept until the response to the attach."""
        self.handle = attach.handle
        self.is_detached = False
        self.timer: asyncio.TimerHandle | None = None
        """A timer of this link, cancelled when the link ends."""

    @property
    def attach(self) -> AttachSummary:
        assert self._attach is not None, "an attach is answered once"
        return self._attach

    def respond(self, answer: bytes) -> None:
        """Send the response to the attach."""
        self._attach = None
        self.session.send(answer)

    def on_flow(self, flow: Flow) -> None:
        """Handle a flow frame, which carries credit."""

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        raise AmqpError(INVALID_FIELD, "A transfer arrived on a link that only sends to the client.")

    def on_sendable(self) -> None:
        """The link may be able to send now."""

    def release(self) -> None:
        """Free the link after it ended for any reason. Idempotent."""
        if not self.is_detached:
            self.is_detached = True
            if self.timer is not None:
                self.timer.cancel()
            self.on_release()

    def on_release(self) -> None:
        """Free the resources of the link."""

    def detach(self, error: AmqpError | None = None) -> None:
        """Detach the link from the server's side. Its handle stays in use until the client responds."""
        if not self.is_detached:
            self.release()
            self.session.send(performatives.detach(self.handle, error))


class IncomingLink(AmqpLink):
    """Receives deliveries, and assembles those of several frames."""

    def __init__(self, session: AmqpSession, attach: Attach, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        super().__init__(session, attach)
        self._bytes_max = message_bytes_max
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self._unsettled = 0
        self._first: Transfer | None = None
        self._parts = bytearray()
        """The received part of a delivery, in one array: a list of small chunks would need much more memory."""

    def accept(self) -> None:
        """Accept the attach, and grant credit."""
        source = performatives.source(self.attach.source_address)
        target = performatives.target(self.attach.target_address)
        self.respond(performatives.attach(self.attach, source=source, target=target, message_bytes_max=self._bytes_max))
        self._grant_credit()

    def take(self, transfer: Transfer, message: bytes) -> None:
        """Handle one complete delivery; `settle` must be called for it eventually."""
        raise NotImplementedError

    def on_flow(self, flow: Flow) -> None:
        if flow.echo:
            self._grant_credit()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        if self._first is None:
            if transfer.delivery_id is None:
                raise AmqpError(INVALID_FIELD, "A delivery begins without an id.")
            if self._credit <= 0:
                self.detach(AmqpError(CREDIT_EXCEEDED, "More deliveries were sent than the link's credit allows."))
                return
            self._first = transfer
        if transfer.aborted:
            self._end_delivery()
            self._renew_credit()
            return
        size = len(self._parts) + len(payload)
        if size > self._bytes_max:
            self._reject_oversized(size)
            return
        if transfer.more:
            self.session.connection.reserve_bytes(len(payload))
            self._parts += payload
            return
        first = self._first
        message = b"".join((self._parts, payload)) if self._parts else payload
        self._end_delivery()
        self._unsettled += 1
        self.take(first, message)

    def settle(self, delivery: Transfer, error: AmqpError | None = None) -> None:
        """Settle a delivery: accepted, or rejected with an error."""
        self._unsettled -= 1
        if self.is_detached:
            return
        if not delivery.settled and delivery.delivery_id is not None:
            state = (
                performatives.accepted()
                if error is None
                else performatives.rejected(error.condition, error.description)
            )
            self.session.send(performatives.disposition(delivery.delivery_id, delivery.delivery_id, state))
        self._renew_credit()

    def _renew_credit(self) -> None:
        if self._credit + self._unsettled <= CREDIT // 2:
            self._grant_credit()

    def _grant_credit(self) -> None:
        """Grant credit. Unsettled deliveries count against it, so a client never gets further ahead."""
        self._credit = CREDIT - self._unsettled
        self.session.send_flow(self.handle, self._delivery_count, self._credit)

    def _end_delivery(self) -> None:
        """End the current delivery, complete or aborted."""
        self._first = None
        self._delivery_count += 1
        self._credit -= 1
        self.on_release()

    def _reject_oversized(self, size: int) -> None:
        """Detach the link, as the standard requires. First reject the delivery, for clients that wait for that."""
        delivery_id = self._first.delivery_id if self._first is not None else None
        error = AmqpError(
            TOO_LARGE,
            f"The received message (delivery-id:{delivery_id}, size:{size} bytes) exceeds the limit "
            f"({self._bytes_max} bytes) currently allowed on the link.",
        )
        if delivery_id is not None:
            state = performatives.rejected(error.condition, error.description)
            self.session.send(performatives.disposition(delivery_id, delivery_id, state))
        self.detach(error)

    def on_release(self) -> None:
        if self._parts:
            self.session.connection.release_bytes(len(self._parts))
            self._parts = bytearray()


class OutgoingLink(AmqpLink):
    """Sends settled messages while there is credit."""

    def __init__(self, session: AmqpSession, attach: Attach) -> None:
        super().__init__(session, attach)
        self.credit = 0
        self.draining = False
        self._delivery_count = 0

    def accept(self, *, source: bytes | None = None, offered: tuple[str, ...] = (), properties: bytes = NULL) -> None:
        answer = performatives.attach(
            self.attach,
            source=performatives.source(self.attach.source_address) if source is None else source,
            target=performatives.target(self.attach.target_address),
            sender_mode=performatives.SETTLED_MODE,
            message_bytes_max=MESSAGE_BYTES_MAX,
            offered=offered,
            properties=properties,
        )
        self.respond(answer)

    @property
    def sendable(self) -> int:
        """How many messages may be sent now."""
        session = self.session
        if self.is_detached or not session.connection.can_write:
            return 0
        return min(self.credit, session.window)

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            known = 0 if flow.delivery_count is None else flow.delivery_count
            credit = (known + flow.link_credit - self._delivery_count) & UINT_MAX
            self.credit = 0 if credit > UINT_MAX >> 1 else credit
        self.draining = bool(flow.drain)
        if flow.echo:
            self._send_credit()

    def complete_drain(self) -> None:
        """Finish a drain: there is nothing to send, so use up the remaining credit."""
        self.draining = False
        self._delivery_count = (self._delivery_count + self.credit) & UINT_MAX
        self.credit = 0
        self._send_credit(drain=True)

    def _send_credit(self, *, drain: bool = False) -> None:
        self.session.send_flow(self.handle, self._delivery_count, self.credit, drain=drain)

    def count(self, messages: int, frames: int) -> None:
        """Count written messages and frames."""
        self._delivery_count = (self._delivery_count + messages) & UINT_MAX
        self.credit -= messages
        self.session.count_transfers(frames)

    def frames_of(self, payload: bytes) -> tuple[bytes, int]:
        """Encode one message as frames with the next delivery id; returns them and their number."""
        session = self.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & UINT_MAX
        size = len(payload)
        most = session.connection.frame_bytes_max - TRANSFER_BYTES
        if size <= most:
            return transfer_head(session.channel, self.handle, delivery_id, size) + payload, 1
        frames = []
        for at in range(0, size, most):
            piece = payload[at : at + most]
            more = at + most < size
            frames += [transfer_head(session.channel, self.handle, delivery_id, len(piece), more=more), piece]
        return b"".join(frames), len(frames) // 2

    def send_message(self, payload: bytes) -> None:
        data, frames = self.frames_of(payload)
        self.count(1, frames)
        self.session.connection.send_frames(data)
