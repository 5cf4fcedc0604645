"""A scene whose stream is a Kafka topic."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.integration.programs import PATIENCE_S
from tests.integration.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from evenflow.model import PartitionId
    from tests.servers.kafka import Kafka


class KafkaScene(Scene):
    def __init__(self, folder: Path, kafka: Kafka, partitions: int, copies: int = 1) -> None:
        super().__init__(folder)
        self.kafka = kafka
        self.partitions = partitions
        self.name = kafka.make_topic(partitions, copies=copies)
        self.namespace = str(kafka.admin.list_topics(timeout=PATIENCE_S).cluster_id)
        self.source_url = kafka.url(self.name)
        self._sent = dict.fromkeys(range(partitions), 0)
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
                "message.timeout.ms": int(4 * PATIENCE_S * 1000),
            }
        )

    def send(self, events: Iterable[bytes], partition: int) -> None:
        self._produce(list(events), partition)
        assert self._producer.flush(4 * PATIENCE_S) == 0

    def send_to_all(self, events: Sequence[bytes]) -> None:
        for partition in range(self.partitions):
            self._produce(events, partition)
        assert self._producer.flush(4 * PATIENCE_S) == 0

    @contextmanager
    def load(self, every_s: float = 0.05, events: int = 3) -> Iterator[None]:
        """Through outages too: what cannot be sent now is sent later, in order, once."""
        end = Event()

        def live() -> None:
            while not end.wait(every_s):
                for partition in range(self.partitions):
                    self._produce([b"load"] * events, partition)
                self._producer.poll(0)

        thread = Thread(target=live, name="load")
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(PATIENCE_S)
            assert self._producer.flush(4 * PATIENCE_S) == 0

    def newest(self) -> dict[PartitionId, int]:
        """By what was acknowledged: each message is in the log once, and none is missing."""
        return {str(partition): count - 1 for partition, count in self._sent.items() if count}

    def _produce(self, events: Sequence[bytes], partition: int) -> None:
        for body in events:
            self._producer.produce(self.name, body, partition=partition)
        self._sent[partition] += len(events)
