"""One session: its transfer windows and its links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.amqp import performatives
from evenflow.amqp.conditions import (
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_ALLOWED,
    UNATTACHED,
    WINDOW,
    AmqpError,
    DecodeError,
)
from evenflow.amqp.performatives import UINT_MAX, Attach, Detach, Disposition, Flow, Transfer
from evenflow.amqp.types import NULL

if TYPE_CHECKING:
    from typing import Any

    from evenflow.amqp.performatives import AttachSummary, Begin
    from evenflow.emulators.eventhubs.connection import AmqpConnection
    from evenflow.emulators.eventhubs.links import AmqpLink

INCOMING_WINDOW = 5_000
OUTGOING_WINDOW = 5_000
HANDLE_MAX = 255
NAME_MAX = 1_024
ADDRESS_MAX = 8_192
HALF = 1 << 31


class AmqpSession:
    def __init__(self, connection: AmqpConnection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.links: dict[int, AmqpLink] = {}
        """By the client's handle, which the server uses too."""
        self.window = begin.incoming_window
        """How many transfers the client accepts."""
        self.next_delivery_id = 0
        self._next_outgoing_id = 0
        self._next_incoming_id = begin.next_outgoing_id
        self._incoming_window = INCOMING_WINDOW
        self._limits = connection.service.limits
        self._ended = False
        begun = performatives.begin(
            channel,
            next_id=0,
            incoming_window=INCOMING_WINDOW,
            outgoing_window=OUTGOING_WINDOW,
            handle_max=HANDLE_MAX,
        )
        connection.send(channel, begun)

    def dispatch(self, found: Any, payload: bytes) -> None:
        if self._ended:
            return
        try:
            self._dispatch(found, payload)
        except DecodeError:
            raise
        except AmqpError as error:
            self.connection.end_session(self, error)

    def _dispatch(self, found: Any, payload: bytes) -> None:
        kind = type(found)
        if kind is Transfer:
            self._transfer(found, payload)
        elif kind is Flow:
            self._flow(found)
        elif kind is Attach:
            self._attach(found)
        elif kind is Detach:
            self._detach(found)
        elif kind is not Disposition:
            # The server sends settled deliveries only, so dispositions can be ignored.
            raise AmqpError(NOT_ALLOWED, f"{kind.__name__} is not allowed on a session.")

    def _attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise AmqpError(INVALID_FIELD, f"Handle {attach.handle} exceeds the agreed maximum of {HANDLE_MAX}.")
        before = self.links.get(attach.handle)
        if before is not None and not before.is_detached:
            raise AmqpError(HANDLE_IN_USE, f"There is already a link with handle {attach.handle}.")
        if len(attach.name) > NAME_MAX or max(len(attach.source_address), len(attach.target_address)) > ADDRESS_MAX:
            raise AmqpError(INVALID_FIELD, "A link's name or address is too long.")
        self._drop_link(attach.handle)
        try:
            self._limits.check_link()
            self.links[attach.handle] = self.connection.service.link(self, attach)
            self._limits.links += 1
        except AmqpError as error:
            self.refuse(attach.summary, error)

    def _drop_link(self, handle: int) -> AmqpLink | None:
        link = self.links.pop(handle, None)
        self._limits.links -= link is not None
        return link

    def refuse(self, attach: AttachSummary, error: AmqpError) -> None:
        """Refuse a link: attach it without source and target, and detach it with the error at once."""
        self.send(performatives.attach(attach, source=NULL, target=NULL))
        self.send(performatives.detach(attach.handle, error))

    def _link(self, handle: int) -> AmqpLink | None:
        link = self.links.get(handle)
        if link is None:
            raise AmqpError(UNATTACHED, f"There is no link with handle {handle}.")
        return None if link.is_detached else link

    def _flow(self, flow: Flow) -> None:
        known = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        window = (known + flow.incoming_window - self._next_outgoing_id) & UINT_MAX
        self.window = 0 if window >= HALF else window
        if flow.handle is not None:
            link = self.links.get(flow.handle)
            if link is not None and not link.is_detached:
                link.on_flow(flow)
        else:
            if flow.echo:
                self.send_flow()
        self.wake_links()

    def _transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & UINT_MAX
        self._incoming_window -= 1
        if self._incoming_window < 0:
            raise AmqpError(WINDOW, "The client sent more transfers than the session's window allows.")
        link = self._link(transfer.handle)
        if link is not None:
            link.on_transfer(transfer, payload)
        if self._incoming_window <= INCOMING_WINDOW // 2:
            self.send_flow()

    def _detach(self, detach: Detach) -> None:
        link = self._drop_link(detach.handle)
        if link is not None and not link.is_detached:
            link.release()
            self.send(performatives.detach(detach.handle))

    def send(self, performative: bytes) -> None:
        if not self._ended:
            self.connection.send(self.channel, performative)

    def send_flow(
        self, handle: int | None = None, delivery_count: int = 0, credit: int = 0, *, drain: bool = False
    ) -> None:
        self._incoming_window = INCOMING_WINDOW
        self.send(
            performatives.flow(
                next_incoming_id=self._next_incoming_id,
                incoming_window=INCOMING_WINDOW,
                next_outgoing_id=self._next_outgoing_id,
                outgoing_window=OUTGOING_WINDOW,
                handle=handle,
                delivery_count=None if handle is None else delivery_count & UINT_MAX,
                credit=None if handle is None else credit,
                drain=drain,
            )
        )

    def count_transfers(self, frames: int) -> None:
        """Count written transfer frames."""
        self._next_outgoing_id = (self._next_outgoing_id + frames) & UINT_MAX
        self.window -= frames

    def wake_links(self) -> None:
        """Let links continue that wait for the window or for the client to read."""
        if self.connection.can_write and self.window > 0:
            for link in list(self.links.values()):
                link.on_sendable()

    def end(self) -> bool:
        """Release all links. Returns whether the session was still active."""
        if self._ended:
            return False
        self._ended = True
        for link in self.links.values():
            link.release()
        self._limits.links -= len(self.links)
        self.links.clear()
        return True
