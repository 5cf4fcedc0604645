"""The Event Hubs service: resolves the addresses of links, and handles requests to `$cbs` and `$management`."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from evenflow.amqp.conditions import ARGUMENT, INTERNAL, NOT_FOUND, NOT_IMPLEMENTED, UNAUTHORIZED, AmqpError
from evenflow.amqp.performatives import SENDER
from evenflow.amqp.sections import reply
from evenflow.amqp.types import boolean, int_, long, map_, string, strings, timestamp
from evenflow.emulators.eventhubs.addresses import CBS, MANAGEMENT, parse_entity, parse_path
from evenflow.emulators.eventhubs.claims import ConnectionClaims, now_s
from evenflow.emulators.eventhubs.faults import NO_FAULTS, EventHubsFaultOptions, EventHubsFaults, busy
from evenflow.emulators.eventhubs.limits import ServerLimits
from evenflow.emulators.eventhubs.receive_links import HubReceiveLink
from evenflow.emulators.eventhubs.receivers import ReceiverRegistry
from evenflow.emulators.eventhubs.request_links import ReplyLink, RequestLink
from evenflow.emulators.eventhubs.send_links import HubSendLink
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.amqp.performatives import Attach
    from evenflow.amqp.sections import AmqpRequest
    from evenflow.embedded.hub.log_state import LogState
    from evenflow.emulators.eventhubs.addresses import EntityAddress, Path
    from evenflow.emulators.eventhubs.connection import AmqpConnection
    from evenflow.emulators.eventhubs.links import AmqpLink
    from evenflow.emulators.eventhubs.listener import ClientSocket
    from evenflow.emulators.eventhubs.namespace import Namespace, ServedHub
    from evenflow.emulators.eventhubs.session import AmqpSession

READING_THREADS = 4
CONNECTIONS_MAX = 5_000
"""The service's limit for a namespace."""
CLAIMS_RECHECK_S = 3_600.0
"""How often a long-lived token is checked again."""

HUB_TYPE = "com.microsoft:eventhub"
PARTITION_TYPE = "com.microsoft:partition"


class EventHubsService:
    """The state that all connections to one namespace share."""

    def __init__(
        self, namespace: Namespace, keys: Mapping[str, str] | None = None, faults: EventHubsFaultOptions = NO_FAULTS
    ) -> None:
        self.name = "evenflow"
        self.namespace = namespace
        self.faults = EventHubsFaults(faults)
        self.receivers = ReceiverRegistry()
        self.limits = ServerLimits()
        self.threads = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="evenflow-amqp-read")
        self.sockets: set[ClientSocket] = set()
        self.connections: set[AmqpConnection] = set()
        self._keys = keys or {}
        self._turns: Counter[str] = Counter()

    def claims(self) -> ConnectionClaims:
        return ConnectionClaims(self._keys)

    def accepts_connections(self) -> bool:
        return len(self.connections) <= CONNECTIONS_MAX

    def next_partition(self, served: ServedHub) -> int:
        """The round-robin counter for events that are sent to a hub without a key or partition."""
        self._turns[served.name] += 1
        return self._turns[served.name]

    def link(self, session: AmqpSession, attach: Attach) -> AmqpLink:
        is_send = attach.role is SENDER
        path = parse_path(attach.target_address if is_send else attach.source_address)
        node = path[-1].lower() if path else ""
        if node in (CBS, MANAGEMENT):
            if not is_send:
                return ReplyLink(session, attach, node)
            return RequestLink(session, attach, node, self._put_token if node == CBS else self._manage)
        entity = parse_entity(path)
        if entity is None or (entity.group is None) != is_send:
            raise AmqpError(NOT_FOUND, f"The messaging entity '{'/'.join(path):.200}' could not be found.")
        self._check_claims(session.connection, path)
        if self.faults.is_busy():
            raise busy()
        link = self._event_link(session, attach, entity)
        self._watch_claims(link, path)
        return link

    def _event_link(self, session: AmqpSession, attach: Attach, entity: EntityAddress) -> AmqpLink:
        served = self.namespace.hub(entity.hub)
        try:
            if entity.group is None:
                return HubSendLink(session, attach, self, served, entity)
            served.check_group(entity.group)
            return HubReceiveLink(session, attach, self, served, entity)
        except EvenflowError as error:
            raise AmqpError(INTERNAL, str(error)) from error

    def _watch_claims(self, link: AmqpLink, path: Path) -> None:
        """Detach a link when its token expires, unless the client has put another one."""
        until_s = link.session.connection.claims.until_s(path)
        if not until_s:
            link.detach(AmqpError(UNAUTHORIZED, "ExpiredToken: The token is expired. Put a new one, and attach again."))
        elif until_s < math.inf:
            wait_s = min(until_s - now_s() + 0.1, CLAIMS_RECHECK_S)
            link.timer = asyncio.get_running_loop().call_later(wait_s, self._watch_claims, link, path)

    def _check_claims(self, connection: AmqpConnection, *paths: Path) -> None:
        if not connection.claims.until_s(*paths):
            raise AmqpError(
                UNAUTHORIZED, f"Unauthorized access to '{'/'.join(paths[0]):.200}'. Put a token that grants it first."
            )

    async def _put_token(self, connection: AmqpConnection, request: AmqpRequest) -> bytes:
        properties = request.properties
        if properties.get("operation") != "put-token":
            raise AmqpError(NOT_IMPLEMENTED, f"There is no operation {properties.get('operation')!r:.60} here.")
        connection.claims.put(request.value, properties.get("type"), str(properties.get("name") or ""))
        return reply(request, 202, "Accepted")

    async def _manage(self, connection: AmqpConnection, request: AmqpRequest) -> bytes:
        properties = request.properties
        if properties.get("operation") != "READ":
            raise AmqpError(NOT_IMPLEMENTED, f"There is no operation {properties.get('operation')!r:.60} here.")
        name = str(properties.get("name") or "")
        self._check_claims(connection, (name,), (name, MANAGEMENT))
        served = self.namespace.hub(name)
        if properties.get("type") == HUB_TYPE:
            return reply(request, 200, "OK", _hub_properties(served))
        if properties.get("type") == PARTITION_TYPE:
            return reply(request, 200, "OK", await self._partition_properties(served, properties.get("partition")))
        raise AmqpError(ARGUMENT, f"There is nothing of type {properties.get('type')!r:.60} here.")

    async def _partition_properties(self, served: ServedHub, partition: Any) -> bytes:
        number = served.partition_number(str(partition))
        log = served.hub.opened().log(number)
        state = await asyncio.get_running_loop().run_in_executor(self.threads, log.state)
        return _partition_properties(served.name, number, state)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.shut_down()
        for door in list(self.sockets):
            door.close()
        self.threads.shutdown(wait=False)

    def abort(self) -> None:
        """Close the remaining sockets without waiting for clients to read their output."""
        for door in list(self.sockets):
            door.abort()


def _hub_properties(served: ServedHub) -> bytes:
    facts = served.hub.opened().metadata()
    return map_(
        [
            (string("name"), string(served.name)),
            (string("type"), string(HUB_TYPE)),
            (string("created_at"), timestamp(facts.created_us // 1000)),
            (string("partition_count"), int_(facts.partitions)),
            (string("partition_ids"), strings(str(number) for number in range(facts.partitions))),
        ]
    )


def _partition_properties(name: str, number: int, state: LogState) -> bytes:
    empty = state.oldest == state.next
    return map_(
        [
            (string("name"), string(name)),
            (string("type"), string(PARTITION_TYPE)),
            (string("partition"), string(str(number))),
            (string("begin_sequence_number"), long(state.oldest)),
            (string("last_enqueued_sequence_number"), long(state.next - 1)),
            (string("last_enqueued_offset"), string(str(state.next - 1))),
            (string("last_enqueued_time_utc"), timestamp(state.enqueued_us // 1000)),
            (string("is_partition_empty"), boolean(empty)),
        ]
    )
