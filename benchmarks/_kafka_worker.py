"""A process of the benchmark `kafka_failover`: a consumer that writes down what it handled and when, or a producer.

    python -m benchmarks._kafka_worker evenflow '{"servers": ..., "topic": ..., "store": ..., "name": ..., ...}'
    python -m benchmarks._kafka_worker group '{"servers": ..., "topic": ..., "name": ..., "account": ..., ...}'
    python -m benchmarks._kafka_worker produce '{"servers": ..., "topic": ..., "partitions": 16, "rate": ...}'

Times are of the clock that all processes of the machine share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import groupby
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Message, Producer

from evenflow import Every, Processor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition

TICK_S = 0.02


class Account:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, partition: object, epoch: int, first: int | None, last: int | None) -> None:
        os.write(self._file, f"{partition} {epoch} {first} {last} {monotonic():.6f}\n".encode())


def evenflow(options: dict[str, Any]) -> None:
    account = Account(options["account"])
    processor = Processor(
        f"kafka://{options['servers']}/{options['topic']}",
        options["store"],
        "bench",
        instance_id=options["name"],
        checkpoint=Every(seconds=options["checkpoint_s"]),
        ttl_s=options["ttl_s"],
        heartbeat_s=options["heartbeat_s"],
    )

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        account.write(partition.id, partition.epoch, events[0].sequence, events[-1].sequence)

    processor.run()


def group(options: dict[str, Any]) -> None:
    """What one would write with confluent-kafka alone: a group, cooperative, with commits in the background."""
    account = Account(options["account"])
    consumer = Consumer(
        {
            "bootstrap.servers": options["servers"],
            "group.id": "bench",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": int(options["ttl_s"] * 1000),
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": int(options["checkpoint_s"] * 1000),
            "log_level": 0,
        }
    )
    consumer.subscribe([options["topic"]])
    told = _told_to_stop()
    while not told:
        first = consumer.poll(0.1)
        if first is None:
            continue
        messages = [one for one in [first, *consumer.consume(1000, 0)] if one.error() is None]
        for partition, same in groupby(messages, Message.partition):
            run = list(same)
            account.write(partition, 0, run[0].offset(), run[-1].offset())
    consumer.close()


def produce(options: dict[str, Any]) -> None:
    """Every partition gets its part at every tick. What a stall held up is sent afterwards."""
    producer = Producer({"bootstrap.servers": options["servers"], "linger.ms": 1, "log_level": 0})
    body, partitions, told = os.urandom(200), options["partitions"], _told_to_stop()
    started_s, sent = monotonic(), 0
    while not told:
        sleep(TICK_S)
        due = int((monotonic() - started_s) * options["rate"] / partitions) - sent
        for partition in range(partitions):
            for _ in range(due):
                producer.produce(options["topic"], body, partition=partition)
        sent += due
        producer.poll(0)
    assert producer.flush(60) == 0


def _told_to_stop() -> list[int]:
    """Not empty from SIGTERM on. (A threading.Event that is set in a handler may wait for itself, for ever.)"""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    return told


if __name__ == "__main__":
    {"evenflow": evenflow, "group": group, "produce": produce}[sys.argv[1]](json.loads(sys.argv[2]))
