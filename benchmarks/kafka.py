"""Events per second of one topic with 16 partitions on one local broker: the driver's bare loop, a processor, others.

Each way runs in a process of its own and reads the topic from its beginning; they take turns, so that whatever else
the machine does hits all of them. The bare loop gets the same options of librdkafka as the source, and once its own:
with those it is stopped by a back-off of a second again and again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from benchmarks.harness import Result, at_least, figure, say
from evenflow.sources.kafka.options import READING
from tests.servers.kafka import FAST, Kafka
from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTITIONS = 16
TURNS = 5
SIZES: Mapping[int, int] = {200: 3_200_000, 1_000: 1_600_000}
"""Bytes of an event, and how many there are."""
SLOW = {"aiokafka": 4, "aiokafka, one by one": 8, "quixstreams": 20}
"""These read a part of the topic: one so many times smaller."""
KEYS = 1_000
QUIXSTREAMS = Path(__file__).parents[1] / ".venv-quixstreams" / "bin" / "python"
TUNED = {name: value for name, value in READING.items() if name.startswith(("fetch.", "queued."))}


def run() -> Result:
    kafka, postgres = Kafka(java=FAST), Postgres(fsync=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return measure(kafka, {"SQLite": f"sqlite:{folder}/store", "PostgreSQL": postgres.url()})
    finally:
        kafka.remove()
        postgres.remove()


def measure(kafka: Kafka, stores: Mapping[str, str]) -> Result:
    topics = {size: fill(kafka, size, events) for size, events in SIZES.items()}
    samples: dict[int, dict[str, list[float]]] = {size: defaultdict(list) for size in SIZES}
    for turn in range(TURNS):
        for size, topic in topics.items():
            say(f"turn {turn + 1} of {TURNS}, {size} bytes ...")
            for name, rate in a_turn(kafka, topic, SIZES[size], stores):
                samples[size][name].append(rate)
    figures, bars = [], []
    for size, ways in samples.items():
        figures += [figure(f"{name}, {size} bytes", rates, "events/s") for name, rates in ways.items()]
        limits = {f"{way}, {store}": limit for way, limit in LIMITS.items() for store in stores}
        for name, limit in limits.items():
            ratio = _ratio(ways, name, "bare loop")
            bars.append(at_least(f"{name} / bare loop, {size} bytes", ratio, limit))
        one_by_one = _ratio(ways, "on_event, SQLite", "aiokafka, one by one")
        bars.append(at_least(f"on_event, SQLite / aiokafka, one by one, {size} bytes", one_by_one, 3.0))
        # Batch against batch: no bar, since the driver's bare loop is itself no more than about three times as fast.
        figures += [
            figure(f"{way} / aiokafka, {size} bytes", _ratios(ways, way, "aiokafka"), "times")
            for way in ("bare loop", "on_batch, SQLite")
        ]
    return Result(figures, bars)


LIMITS = {"on_batch": 0.7, "on_event": 0.4}


def _ratio(ways: Mapping[str, list[float]], name: str, base: str) -> float:
    return median(_ratios(ways, name, base))


def _ratios(ways: Mapping[str, list[float]], name: str, base: str) -> list[float]:
    """Turn by turn, since what else the machine does changes from one turn to the next."""
    return [rate / other for rate, other in zip(ways[name], ways[base], strict=True)]


def a_turn(kafka: Kafka, topic: str, events: int, stores: Mapping[str, str]) -> list[tuple[str, float]]:
    base = {"servers": kafka.servers, "topic": topic, "partitions": PARTITIONS, "events": events}
    found = [
        ("bare loop", _way(base | {"way": "bare", "config": TUNED})),
        ("bare loop, librdkafka's own options", _way(base | {"way": "bare"})),
    ]
    for way in ("on_batch", "on_batch, reading", "on_event"):
        for store, url in stores.items():
            if way in LIMITS or store == "SQLite":
                rate = _way(base | {"way": way, "store": url, "group": kafka.fresh("group")})
                found.append((f"{way}, {store}", rate))
    for way in ("aiokafka", "aiokafka, one by one"):
        few = base | {"events": events // SLOW[way], "group": kafka.fresh("group")}
        found.append((way, _way(few | {"way": way})))
    if QUIXSTREAMS.exists():
        few = base | {"events": events // SLOW["quixstreams"], "group": kafka.fresh("group"), "config": TUNED}
        found.append(("quixstreams", _quixstreams(few)))
    else:
        say("quixstreams is not here: `make bench` installs it")
    return found


def _way(options: dict[str, Any]) -> float:
    return _run([sys.executable, "-m", "benchmarks._kafka_ways", json.dumps(options)])


def _quixstreams(options: dict[str, Any]) -> float:
    program = Path(__file__).with_name("_quixstreams.py")
    return _run([str(QUIXSTREAMS), "-W", "ignore", str(program), json.dumps(options)])


def _run(command: list[str]) -> float:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def fill(kafka: Kafka, size: int, events: int) -> str:
    """Incompressible bodies with keys, evenly over the partitions."""
    say(f"{events:,} events of {size} bytes ...")
    topic = kafka.make_topic(PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": kafka.servers,
            "linger.ms": 50,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
            "log_level": 0,
        }
    )
    bodies = [os.urandom(size) for _ in range(KEYS)]
    for block in range(events // KEYS):
        for number, body in enumerate(bodies):
            _produce(producer, topic, body, b"key-%d" % number, block % PARTITIONS)
        producer.poll(0)
    assert producer.flush(120) == 0
    return topic


def _produce(producer: Producer, topic: str, body: bytes, key: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, body, key, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)
