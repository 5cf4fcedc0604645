"""The options of a Kafka source, from a URL or from code, and the configuration of each of the driver's clients.

Options of librdkafka are passed on as they are, except those that would change who reads what, and from where.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN = ("mirror_group", "key_encoding", "namespace")
"""Options of a URL that belong to evenflow and not to the driver."""
RESERVED: Mapping[str, str] = {
    "auto.offset.reset": "a position removed by retention is never skipped silently; see on_gone of the processor",
    "enable.auto.commit": "checkpoints are in the store; mirror_group= copies them into a Kafka group",
    "enable.auto.offset.store": "checkpoints are in the store",
    "enable.partition.eof": "evenflow needs it to detect the end of a partition",
    "partition.assignment.strategy": "partitions are assigned by leases, not by Kafka",
    "group.instance.id": "partitions are assigned by leases, not by Kafka",
    "transactional.id": "events, for instance dead letters, are sent without a transaction",
    "bootstrap.servers": "the brokers are a parameter of their own",
}
"""Options of the driver that must not be set, and why."""
ALL: Mapping[str, Any] = {"client.id": "evenflow", "reconnect.backoff.max.ms": 2_000, "log.connection.close": False}
READING: Mapping[str, Any] = {
    "group.id": "evenflow",  # required by the driver; the group is never joined
    "max.poll.interval.ms": 86_400_000,
    "fetch.wait.max.ms": 100,  # a new partition waits this long for the pending fetch of the other partitions
    "fetch.queue.backoff.ms": 5,  # the default of one second makes a fast reader wait again and again
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 32_768,
}
SENDING: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": 30_000,
}
"""Keys map to the same partitions as with Java's producer."""
ONLY_READING = ("fetch.", "queued.", "isolation.level", "check.crcs", "group.", "session.", "heartbeat.", "max.poll.")


class KafkaOptions(Struct, frozen=True):
    servers: str
    topic: str
    config: dict[str, Any]
    mirror_group: str | None = None
    key_encoding: str = "utf-8"
    namespace: str | None = None

    def __post_init__(self) -> None:
        if not self.servers.strip() or not self.topic:
            raise Misconfigured("A Kafka source needs brokers and a topic: kafka://HOST:9092/TOPIC.")
        for name, why in RESERVED.items():
            if name in self.config:
                raise Misconfigured(f"The option {name} must not be set: {why}.")
        try:
            codecs.lookup(self.key_encoding)
        except LookupError:
            raise Misconfigured(
                f"key_encoding={self.key_encoding!r} is not a known encoding: use utf-8, or latin-1 for any bytes."
            ) from None

    def __str__(self) -> str:
        return f"topic {self.topic} at {self.servers}"

    __repr__ = __str__
    """The default repr would show passwords, which are among the options."""

    def for_reading(self) -> dict[str, Any]:
        fixed = {"auto.offset.reset": "error", "enable.partition.eof": True, "enable.auto.commit": False}
        return {**ALL, **READING, **self.config, **fixed, "bootstrap.servers": self.servers}

    def for_queries(self) -> dict[str, Any]:
        """For queries about the topic. Each query returns its error, so the driver's log is off."""
        return {**ALL, **self._without_reading(), "log_level": 0, "bootstrap.servers": self.servers}

    def for_group(self, group: str, answer_s: float) -> dict[str, Any]:
        """For the offsets of a Kafka group, read and committed by a consumer that never joins it."""
        timeout = {"socket.timeout.ms": int(1000 * answer_s)}
        fixed = {"group.id": group, "enable.auto.commit": False, "log_level": 0}
        return {**ALL, **timeout, **self._without_reading(), **fixed, "bootstrap.servers": self.servers}

    def for_sending(self) -> dict[str, Any]:
        return {**ALL, **SENDING, **self._without_reading(), "bootstrap.servers": self.servers}

    @property
    def reads_uncommitted(self) -> bool:
        return str(self.config.get("isolation.level")).lower() == "read_uncommitted"

    def _without_reading(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if not name.startswith(ONLY_READING)}


def parse_url(url: str) -> KafkaOptions:
    """`kafka://HOST:PORT[,HOST:PORT]/TOPIC[?OPTION=VALUE&...]`."""
    form = "write kafka://HOST:PORT/TOPIC, for instance kafka://localhost:9092/homes"
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    if "@" in parts.netloc:
        raise Misconfigured(
            "A Kafka URL cannot contain a user: write ?security.protocol=SASL_SSL&sasl.mechanism=PLAIN"
            "&sasl.username=..., or pass these options to KafkaSource(...)."
        )
    if not parts.netloc:
        raise Misconfigured(f"The Kafka URL names no broker; {form}.")
    if not topic or "/" in topic:
        raise Misconfigured(f"The Kafka URL names no topic; {form}.")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: given.pop(name) for name in OWN if name in given}
    return KafkaOptions(parts.netloc, topic, dict(given), **own)
