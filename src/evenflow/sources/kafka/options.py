"""What a user says about a topic, in a URL or as options, and what each of the driver's clients is told of it.

Every option of librdkafka is passed on as it is, except for those that would take the reading out of our hands.
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
"""Options of a URL that are ours and not the driver's."""
OURS: Mapping[str, str] = {
    "auto.offset.reset": "a position that is gone is never passed over silently; see on_gone of the processor",
    "enable.auto.commit": "checkpoints are in the store; mirror_group= copies them into a Kafka group",
    "enable.auto.offset.store": "checkpoints are in the store",
    "enable.partition.eof": "it is how the end of a partition is known",
    "partition.assignment.strategy": "partitions are assigned by leases, not by Kafka",
    "group.instance.id": "partitions are assigned by leases, not by Kafka",
    "transactional.id": "what is sent, dead letters for instance, is sent without a transaction",
    "bootstrap.servers": "the brokers are given by themselves",
}
"""Options of the driver that are not to be given, and why."""
ALL: Mapping[str, Any] = {"client.id": "evenflow", "reconnect.backoff.max.ms": 2_000, "log.connection.close": False}
READING: Mapping[str, Any] = {
    "group.id": "evenflow",  # the driver wants one; nobody joins it
    "max.poll.interval.ms": 86_400_000,
    "fetch.wait.max.ms": 100,  # so long a new partition waits for the answer to a request that asked for the others
    "fetch.queue.backoff.ms": 5,  # its default, a second, stops a quick reader again and again
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 32_768,
}
SENDING: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": 30_000,
}
"""Keys go where Java's producers put them."""
ONLY_READING = ("fetch.", "queued.", "isolation.level", "check.crcs", "group.", "session.", "heartbeat.", "max.poll.")


class Options(Struct, frozen=True):
    servers: str
    topic: str
    config: dict[str, Any]
    mirror_group: str | None = None
    key_encoding: str = "utf-8"
    namespace: str | None = None

    def __post_init__(self) -> None:
        if not self.servers.strip() or not self.topic:
            raise Misconfigured("A Kafka source needs brokers and a topic: kafka://HOST:9092/TOPIC.")
        for name, why in OURS.items():
            if name in self.config:
                raise Misconfigured(f"The option {name} is not to be given: {why}.")
        try:
            codecs.lookup(self.key_encoding)
        except LookupError:
            raise Misconfigured(f"key_encoding={self.key_encoding!r}: give utf-8, or latin-1 for any bytes.") from None

    def __str__(self) -> str:
        return f"topic {self.topic} at {self.servers}"

    __repr__ = __str__
    """Passwords are among the options."""

    def for_reading(self) -> dict[str, Any]:
        fixed = {"auto.offset.reset": "error", "enable.partition.eof": True, "enable.auto.commit": False}
        return {**ALL, **READING, **self.config, **fixed, "bootstrap.servers": self.servers}

    def for_asking(self) -> dict[str, Any]:
        """For questions about the topic. Errors come as answers, so its log is silent."""
        return {**ALL, **self._without_reading(), "log_level": 0, "bootstrap.servers": self.servers}

    def for_group(self, group: str, answer_s: float) -> dict[str, Any]:
        """For the offsets of a Kafka group, by a consumer that never joins it."""
        patience = {"socket.timeout.ms": int(1000 * answer_s)}
        fixed = {"group.id": group, "enable.auto.commit": False, "log_level": 0}
        return {**ALL, **patience, **self._without_reading(), **fixed, "bootstrap.servers": self.servers}

    def for_sending(self) -> dict[str, Any]:
        return {**ALL, **SENDING, **self._without_reading(), "bootstrap.servers": self.servers}

    @property
    def reads_uncommitted(self) -> bool:
        return str(self.config.get("isolation.level")).lower() == "read_uncommitted"

    def _without_reading(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if not name.startswith(ONLY_READING)}


def from_text(url: str) -> Options:
    """`kafka://HOST:PORT[,HOST:PORT]/TOPIC[?OPTION=VALUE&...]`."""
    form = "write for instance kafka://localhost:9092/homes"
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    if "@" in parts.netloc:
        raise Misconfigured(
            "A Kafka URL holds no user: write ?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=..., or"
            " give KafkaSource(...) the options."
        )
    if not parts.netloc:
        raise Misconfigured(f"The Kafka URL names no broker; {form}.")
    if not topic or "/" in topic:
        raise Misconfigured(f"The Kafka URL names no topic; {form}.")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: given.pop(name) for name in OWN if name in given}
    return Options(parts.netloc, topic, dict(given), **own)
