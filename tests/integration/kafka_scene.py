"""A scene whose stream is a Kafka topic; and a processor in this process, on a topic of a real broker."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from evenflow import Event, Processor
from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.options import KafkaOptions
from evenflow.sources.kafka.source import KafkaSource
from evenflow.stores.memory import MemoryStore
from tests.integration.programs import PATIENCE_S
from tests.integration.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from evenflow import OwnedPartition
    from evenflow.model import PartitionId
    from evenflow.ports import Reader
    from evenflow.signals import Signal
    from tests.servers.kafka import Kafka

MUCH = 1 << 30
LONG_S = 60.0
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 5.0, "margin_s": 0.5, "refresh_s": 0.5}


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

    def close(self) -> None:
        super().close()
        del self._producer  # that is how it is closed

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
        end = Flag()

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


@asynccontextmanager
async def opened(kafka: Kafka, topic: str, **config: Any) -> AsyncIterator[KafkaSource]:
    own = {name: config.pop(name) for name in ("mirror_group",) if name in config}
    settings = {name.replace("_", "."): value for name, value in config.items()}
    source = KafkaSource(kafka.servers, topic, settings, **own)
    try:
        yield source
    finally:
        await source.aclose()


async def reader_of(source: KafkaSource, partition: str = "0", start: Any = "earliest") -> Reader:
    return await source.open(partition, await source.resolve(partition, start), epoch=1)


async def read(reader: Reader, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(LONG_S):
        while len(found) < count:
            batch = await reader.read(1000, MUCH, 0.5)
            found += [event.body for event in batch.events]
    return found


async def until(look: Callable[[], object], what: str, within_s: float = LONG_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not look():  # noqa: ASYNC110 - what it waits for comes from threads and tasks
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def events(start: int, stop: int) -> list[Event]:
    return [Event(body) for body in texts(start, stop)]


class Run:
    """A processor on a topic, what it handled and what it told."""

    def __init__(self, source: KafkaSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.handled: list[tuple[str, bytes]] = []
        self.signals: list[Signal] = []
        self.store = store or MemoryStore()
        self.processor = Processor(source, self.store, "group", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.signals.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.handled += [(partition.id, event.body) for event in events]

    def of(self, kind: type[Signal]) -> list[Any]:
        return [one for one in self.signals if isinstance(one, kind)]


async def until_offsets(kafka: Kafka, group: str, topic: str, wanted: dict[int, int]) -> None:
    asked, found = GroupOffsets(KafkaOptions(kafka.servers, topic, {}), group), dict[int, int]()
    try:
        async with asyncio.timeout(2 * LONG_S):
            while found != wanted:
                with suppress(SourceUnavailable):  # its coordinator is not there yet
                    found = await asked.committed([0, 1])
                await asyncio.sleep(0.1)
    finally:
        asked.close()
