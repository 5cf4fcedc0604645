"""Instances in real processes over a real Kafka: moves, deaths, brokers that die, leaders that change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.sources.kafka.source import KafkaSource
from tests.integration.calls import boot_s, repeats
from tests.integration.kafka_scene import KafkaScene
from tests.integration.programs import wait_for
from tests.integration.scene import HEARTBEAT_S, PATIENT_TTL_S, TTL_S, slack_s
from tests.servers.kafka import Kafka, shared_or_skip, skip_without_kafka
from tests.servers.postgres import shared_or_skip as postgres_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]  # a broker takes its time on a busy machine

PARTITIONS = 8
BACKLOG = [b"backlog"] * 300


@pytest.fixture
def kafka() -> Kafka:
    return shared_or_skip()


@pytest.fixture
def scene(kafka: Kafka, tmp_path: Path) -> Iterator[KafkaScene]:
    scene = KafkaScene(tmp_path / "scene", kafka, PARTITIONS)
    try:
        yield scene
    finally:
        scene.close()


@pytest.fixture
def own_kafka() -> Iterator[Kafka]:
    """One that may be killed."""
    skip_without_kafka()
    kafka = Kafka()
    try:
        yield kafka
    finally:
        kafka.remove()


def test_planned_moves_lose_nothing_and_repeat_nothing(scene: KafkaScene) -> None:
    scene.send_to_all(BACKLOG)
    with scene.load():
        calm: dict[str, Any] = {"work_s": 0.0005, "ttl_s": PATIENT_TTL_S}
        first, second = scene.start_even("first", "second", **calm)
        more = [scene.start(name, **calm) for name in ("third", "fourth")]
        scene.wait_until_even(first, second, *more)
        for instance in more:
            scene.wait_for_calls(instance)
        even = scene.epochs()
        scene.wait_for_heartbeats(2)
        assert scene.epochs() == even, "something still moves although shares are even"
        for instance in more:
            instance.ask_to_stop()
        assert [instance.exit_code() for instance in more] == [0, 0]
        scene.wait_until_even(first, second)
        scene.wait_for_calls(first, after_s=boot_s())
    assert not repeats(scene.wait_until_handled())


def test_who_is_killed_is_taken_over_in_time_on_a_shared_store(scene: KafkaScene) -> None:
    server = postgres_or_skip()
    scene.store_url = scene.look_url = server.url(server.make_database())
    with scene.load():
        killed, staying = scene.start_even("killed", "staying", handler="batch")
        scene.wait_for_calls(killed)
        moved = scene.owned(killed)
        killed_s = killed.kill()
        wait_for(lambda: scene.owned(staying) > moved, "the takeover")
        may_take_s = HEARTBEAT_S + TTL_S + 2 * slack_s()
        scene.wait_for_calls(staying, after_s=boot_s())
    calls = scene.wait_until_handled()
    for partition in moved:
        again_s = min(call.began_s for call in staying.calls if call.partition == partition)
        assert again_s - killed_s < may_take_s
    assert {repeat.before.pid for repeat in repeats(calls)} <= {killed.pid}


def test_a_broker_that_is_killed_and_started_again_under_load_costs_nothing_but_time(
    own_kafka: Kafka, tmp_path: Path
) -> None:
    scene = KafkaScene(tmp_path / "scene", own_kafka, 4)
    try:
        with scene.load():
            one, other = scene.start_even("one", "other", kafka_silent_s=4.0)
            scene.wait_for_calls(one)
            epochs = scene.epochs()
            own_kafka.kill()
            wait_for(lambda: "does not answer" in one.log or "not even its end" in one.log, "the error to be reported")
            own_kafka.start()
            back_s = boot_s()
            scene.wait_for_calls(one, after_s=back_s)
            scene.wait_for_calls(other, after_s=back_s)
        assert scene.epochs() == epochs, "a lease moved although only the broker was away"
        assert not repeats(scene.wait_until_handled())
    finally:
        scene.close()


def test_a_leader_that_dies_costs_a_pause_and_nothing_else(tmp_path: Path) -> None:
    skip_without_kafka()
    kafka = Kafka(nodes=3)
    scene = KafkaScene(tmp_path / "scene", kafka, 3, copies=3)
    try:
        with scene.load():
            (one,) = scene.start_even("one")
            scene.wait_for_calls(one)
            leader = kafka.leader(scene.name)
            kafka.nodes[leader - 1].kill()
            wait_for(lambda: kafka.leader(scene.name) not in (leader, -1), "another leader")
            scene.wait_for_calls(one, after_s=boot_s())
        assert not repeats(scene.wait_until_handled())
        kafka.nodes[leader - 1].start()
        kafka.wait_until_ready()
        asyncio.run(_ask_while_the_leader_changes(kafka, scene.name, leader))
    finally:
        scene.close()
        kafka.remove()


async def _ask_while_the_leader_changes(kafka: Kafka, topic: str, leader: int) -> None:
    """Who was asked before is there, but no leader any more: it says so, and the new one is asked instead."""
    source = KafkaSource(kafka.servers, topic)
    before = await source.bounds(["0"])
    await asyncio.to_thread(wait_for, lambda: kafka.elect(topic) == leader, "the first leader again")
    assert await source.bounds(["0"]) == before
    await source.aclose()
