"""The driver, confluent-kafka, and what its errors mean. What is imported of it is imported here."""

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
"""Another broker leads the partition now, or the same one anew."""
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
"""The broker answers, and does not let us in: waiting changes nothing."""
WRONG = frozenset((KafkaError._INVALID_ARG, KafkaError._UNSUPPORTED_FEATURE, KafkaError.TOPIC_EXCEPTION))

# The driver says of these no more than that they are there.
EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def at_time(time_ms: int) -> Any:
    """The first offset at or after a time."""
    return OffsetSpec.for_timestamp(time_ms)


def made_consumer(config: dict[str, Any], what: str) -> Consumer:
    try:
        return Consumer(config, logger=logger)
    except KafkaException as error:
        raise meaning_of(raised(error), what) from error


def raised(error: KafkaException) -> KafkaError:
    """What is inside one of the driver's exceptions."""
    inner: KafkaError = error.args[0]
    return inner


def meaning_of(error: KafkaError, what: str) -> EvenflowError:
    """One of ours; `what` names the topic and its brokers."""
    code, said = error.code(), error.str()
    if code in MISSING:
        return Misconfigured(f"{what} does not exist. Make it with Kafka's own tools, or correct the name. ({said})")
    if code in NO_PARTITION:
        return SourceUnavailable(f"{what}: a partition is not there, or has no leader now. ({said})")
    if code in NOT_ALLOWED:
        return Misconfigured(f"{what}: this user may not do that. Give it the right by an ACL. ({said})")
    if code in REFUSED:
        return Misconfigured(
            f"{what}: the broker does not let this client in. See security.protocol, sasl.* and ssl.*. ({said})"
        )
    if code in WRONG:
        return Misconfigured(f"{what}: an option is wrong: {said}")
    if code in GONE:
        return PositionOutOfRange(f"{what}: the position is outside the log. ({said})")
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return Misconfigured(f"{what}: an event is larger than the broker or the client takes. ({said})")
    if code == KafkaError.KAFKA_STORAGE_ERROR:
        return StorageFull(f"{what}: the broker cannot write to its disk. ({said})")
    return SourceUnavailable(f"{what} does not answer: {said}")
