"""The receive link: sends a partition's events to one receiver of a consumer group, from its start position."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.amqp import performatives
from evenflow.amqp.conditions import DETACH_FORCED, INTERNAL, AmqpError
from evenflow.amqp.sections import DELIVERY_ANNOTATIONS
from evenflow.amqp.types import described, long, map_, string, symbol, timestamp
from evenflow.embedded.hub.clock import wall_us
from evenflow.emulators.eventhubs.links import OutgoingLink
from evenflow.emulators.eventhubs.messages import encode_message
from evenflow.emulators.eventhubs.partition_feed import PartitionFeed
from evenflow.emulators.eventhubs.selector import after, encoded, start_of
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from evenflow.amqp.performatives import Attach, Flow
    from evenflow.embedded.hub.log_state import LogState
    from evenflow.embedded.hub.records import StoredEvent
    from evenflow.emulators.eventhubs.addresses import EntityAddress
    from evenflow.emulators.eventhubs.namespace import ServedHub
    from evenflow.emulators.eventhubs.service import EventHubsService
    from evenflow.emulators.eventhubs.session import AmqpSession

EPOCH = "com.microsoft:epoch"
RECEIVER_NAME = "com.microsoft:receiver-name"
RECEIVER_NAME_MAX = 200
METRIC = "com.microsoft:enable-receiver-runtime-metric"

TURN_BYTES = 128 * 1024
"""How much one link writes before it yields to other links."""
TURN_EVENTS = 512
THROTTLE_S = 0.05


class HubReceiveLink(OutgoingLink):
    def __init__(
        self, session: AmqpSession, attach: Attach, service: EventHubsService, served: ServedHub, entity: EntityAddress
    ) -> None:
        super().__init__(session, attach)
        assert entity.partition is not None
        assert entity.group is not None
        properties = attach.properties or {}
        epoch = properties.get(EPOCH)
        self.epoch: int | None = epoch if type(epoch) is int else None
        self.receiver_name = str(properties.get(RECEIVER_NAME) or "nil")[:RECEIVER_NAME_MAX]
        self._service = service
        self._with_metric = attach.wants(METRIC)
        self._metric = b""
        self._metric_of: LogState | None = None
        self._scheduled: asyncio.Handle | None = None
        self._feed: PartitionFeed | None = None
        self._opened = served.hub.opened()
        self._number = served.partition_number(entity.partition)
        self._start = start_of(attach.source_filters)
        self._filter = encoded(attach.source_filters)
        self._key = (served.name, entity.group.lower(), self._number)
        service.receivers.admit(self._key, self)
        self._task = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        """Resolve the start position, which may fail; then accept the attach."""
        log = self._opened.log(self._number)
        try:
            begin = await asyncio.get_running_loop().run_in_executor(self._service.threads, after, self._start, log)
        except (AmqpError, EvenflowError) as error:
            self._refuse(error if isinstance(error, AmqpError) else AmqpError(INTERNAL, str(error)))
            return
        if not self.is_detached:
            self._feed = PartitionFeed(self._opened, self._number, begin, self._service, self._schedule)
            # Return the filter unchanged: clients may check whether the server understood it.
            source = performatives.source(self.attach.source_address, self._filter)
            self.accept(source=source, offered=(METRIC,) if self._with_metric else ())
            self._schedule()

    def _refuse(self, error: AmqpError) -> None:
        if not self.is_detached:
            self.release()
            self.session.refuse(self.attach, error)

    def on_flow(self, flow: Flow) -> None:
        super().on_flow(flow)
        self._schedule()

    def on_sendable(self) -> None:
        self._schedule()

    def on_release(self) -> None:
        self._service.receivers.leave(self._key, self)
        if self._feed is not None:
            self._feed.close()

    def _schedule(self) -> None:
        if self._scheduled is None and not self.is_detached:
            self._scheduled = asyncio.get_running_loop().call_soon(self._send_batch)

    def _send_batch(self) -> None:
        self._scheduled = None
        feed = self._feed
        if feed is None or self.is_detached:
            return
        sendable = min(self.sendable, TURN_EVENTS)
        if sendable > 0:
            events = feed.take(sendable)
            if self._service.faults.throttles and events:
                events = self._throttled(feed, events)
            if events:
                self._write(feed, events)
                self._schedule()
            elif feed.error is not None:
                self.detach(AmqpError(DETACH_FORCED, str(feed.error)))
            elif self.draining and feed.is_drained:
                self.complete_drain()
        elif self._service.limits.is_full:
            feed.release_bytes()

    def _throttled(self, feed: PartitionFeed, events: list[StoredEvent]) -> list[StoredEvent]:
        allowed = self._service.faults.receivable_events(len(events))
        feed.give_back(len(events) - allowed)
        if not allowed:
            asyncio.get_running_loop().call_later(THROTTLE_S, self._schedule)
        return events[:allowed]

    def _write(self, feed: PartitionFeed, events: list[StoredEvent]) -> None:
        metric = self._metric_now(feed) if self._with_metric else b""
        window = self.session.window
        out = []
        size = frames = 0
        for event in events:
            data, count = self.frames_of(encode_message(event, metric))
            out.append(data)
            size += len(data)
            frames += count
            if size >= TURN_BYTES or frames >= window:
                break
        feed.give_back(len(events) - len(out))
        self.count(len(out), frames)
        self.session.connection.send_frames(b"".join(out))

    def _metric_now(self, feed: PartitionFeed) -> bytes:
        if feed.state is not None and feed.state is not self._metric_of:
            self._metric_of = feed.state
            self._metric = _metric(feed.state)
        return self._metric


def _metric(state: LogState) -> bytes:
    """The state of the partition, which is sent with every event."""
    newest = state.next - 1
    return described(
        DELIVERY_ANNOTATIONS,
        map_(
            [
                (symbol("last_enqueued_sequence_number"), long(newest)),
                (symbol("last_enqueued_offset"), string(str(newest))),
                (symbol("last_enqueued_time_utc"), timestamp(state.enqueued_us // 1000)),
                (symbol("runtime_info_retrieval_time_utc"), timestamp(wall_us() // 1000)),
            ]
        ),
    )
