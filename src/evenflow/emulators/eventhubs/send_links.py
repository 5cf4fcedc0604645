"""The send link: stores what a client sends to a hub or a partition, then acknowledges it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.amqp.conditions import INTERNAL, AmqpError
from evenflow.embedded.hub.keys import partition_of
from evenflow.emulators.eventhubs.faults import busy
from evenflow.emulators.eventhubs.links import IncomingLink
from evenflow.emulators.eventhubs.messages import decode_delivery
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    import asyncio

    from evenflow.amqp.performatives import Attach, Transfer
    from evenflow.embedded.hub.writer import Sent
    from evenflow.emulators.eventhubs.addresses import EntityAddress
    from evenflow.emulators.eventhubs.namespace import ServedHub
    from evenflow.emulators.eventhubs.service import EventHubsService
    from evenflow.emulators.eventhubs.session import AmqpSession


class HubSendLink(IncomingLink):
    def __init__(
        self, session: AmqpSession, attach: Attach, service: EventHubsService, served: ServedHub, entity: EntityAddress
    ) -> None:
        super().__init__(session, attach)
        self._service = service
        self._served = served
        self._number = None if entity.partition is None else served.partition_number(entity.partition)
        self.accept()

    def take(self, transfer: Transfer, message: bytes) -> None:
        try:
            key, events = decode_delivery(message, transfer.message_format or 0)
            if not events:
                self.settle(transfer)
                return
            if self._service.faults.is_busy() or not self._service.faults.allows_send(len(events)):
                self.settle(transfer, busy())
                return
            opened = self._served.hub.opened()
            number = self._partition(key, opened.metadata().partitions)
            size = len(message)
            stored = opened.writer(number).append(events, size)
        except AmqpError as error:
            self.settle(transfer, error)
            return
        except EvenflowError as error:
            self.settle(transfer, AmqpError(INTERNAL, str(error)))
            return
        connection = self.session.connection
        connection.add_pending(size)

        def done(answer: asyncio.Future[Sent]) -> None:
            connection.add_pending(-size)
            if not answer.cancelled():
                failure = answer.exception()
                self.settle(transfer, None if failure is None else AmqpError(INTERNAL, str(failure)))

        stored.add_done_callback(done)

    def _partition(self, key: str | None, partitions: int) -> int:
        if self._number is not None:
            return self._number
        return self._service.next_partition(self._served) % partitions if key is None else partition_of(key, partitions)
