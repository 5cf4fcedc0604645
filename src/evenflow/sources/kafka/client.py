"""The driver, confluent-kafka, and what its errors mean. No other module imports it."""

from __future__ import annotations

import logging
from typing import Any

from evenflow.errors import EvenflowError, Misconfigured, PositionOutOfRange, SourceUnavailable, StorageFull

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._listoffsets import OffsetSpec
except ImportError as error:
    raise Misconfigured("kafka:// needs the package confluent-kafka: pip install 'evenflow[kafka]'.") from error

__all__ = [
    "ALL_DOWN",
    "EARLIEST",
    "END",
    "GONE",
    "LATEST",
    "MOVED",
    "REFUSED",
    "AdminClient",
    "Consumer",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicCollection",
    "TopicPartition",
    "at_time",
    "logger",
    "made_consumer",
    "meaning_of",
    "raised",
]

logger = logging.getLogger("evenflow.kafka")

ALL_DOWN = KafkaError._ALL_BROKERS_DOWN
END = KafkaError._PARTITION_EOF
GONE = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION))
MISSING = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID))
NO_PARTITION = frozenset((KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT))
MOVED = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    )
)
"""The partition has a new leader, or the same leader in a new epoch."""
NOT_ALLOWED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
)
REFUSED = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._SSL,
    )
)
"""The broker rejects this client's credentials or its TLS settings. Retrying does not help."""
WRONG = frozenset((KafkaError._INVALID_ARG, KafkaError._UNSUPPORTED_FEATURE, KafkaError.TOPIC_EXCEPTION))

# The driver does not type these.
EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def at_time(time_ms: int) -> Any:
    """Asks for the first offset at or after a time."""
    return OffsetSpec.for_timestamp(time_ms)


def made_consumer(config: dict[str, Any], what: str) -> Consumer:
    try:
        return Consumer(config, logger=logger)
    except KafkaException as error:
        raise meaning_of(raised(error), what) from error


def raised(error: KafkaException) -> KafkaError:
    """The error inside one of the driver's exceptions."""
    inner: KafkaError = error.args[0]
    return inner


def meaning_of(error: KafkaError, what: str) -> EvenflowError:
    """The driver's error as one of ours; `what` names the topic and its brokers."""
    code, reason = error.code(), error.str()
    if code in MISSING:
        return Misconfigured(f"{what} does not exist. Create it with Kafka's own tools, or fix the name. ({reason})")
    if code in NO_PARTITION:
        return SourceUnavailable(f"{what}: a partition does not exist, or has no leader now. ({reason})")
    if code in NOT_ALLOWED:
        return Misconfigured(f"{what}: this user is not authorized. Grant the right with an ACL. ({reason})")
    if code in REFUSED:
        return Misconfigured(
            f"{what}: the broker rejected this client. Check security.protocol, sasl.* and ssl.*. ({reason})"
        )
    if code in WRONG:
        return Misconfigured(f"{what}: an option is invalid: {reason}")
    if code in GONE:
        return PositionOutOfRange(f"{what}: the position is outside the log. ({reason})")
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return Misconfigured(f"{what}: an event is larger than the broker or the client accepts. ({reason})")
    if code == KafkaError.KAFKA_STORAGE_ERROR:
        return StorageFull(f"{what}: the broker cannot write to its disk. ({reason})")
    return SourceUnavailable(f"{what} does not answer: {reason}")
