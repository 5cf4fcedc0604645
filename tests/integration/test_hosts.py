"""Several hosts, each with `evenflow run --workers N`; a broker and a store on others; and a network that is cut.

What is cut hangs: it is neither refused nor reset, and what was on its way may still arrive when it is healed. The
hosts are like containers made of one image: equal host names, and equal process ids.
"""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from tests.integration.calls import Call, boot_s, repeats
from tests.integration.instance import HOST, Orders
from tests.integration.kafka_scene import KafkaScene
from tests.integration.programs import PATIENCE_S, answer, wait_for
from tests.integration.scene import slack_s
from tests.servers import kafka, postgres
from tests.servers.hosts import network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.hosts import Host, Network
    from tests.servers.processes import Program

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HOSTS, WORKERS, PARTITIONS = 3, 2, 12
HEARTBEAT_S, TTL_S, MARGIN_S = 0.5, 4.0, 1.0
CHECKPOINT_S = 0.5
TIMES = {"heartbeat_s": HEARTBEAT_S, "ttl_s": TTL_S, "margin_s": MARGIN_S, "stop_s": 10.0}
JOINED = re.compile(r"(\S+) joined ")


class World(NamedTuple):
    """A network with a broker, a store, and hosts for the instances."""

    network: Network
    broker: Host
    store: Host
    hosts: list[Host]
    kafka: kafka.Kafka
    postgres: postgres.Postgres


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    kafka.skip_without_kafka()
    postgres.skip_without_postgres()
    with network() as made, ExitStack() as ends:
        broker, store = made.host(), made.host()
        on_broker = kafka.Kafka(place=broker.place)
        ends.callback(on_broker.remove)
        on_broker.open_connections()
        on_store = postgres.Postgres(place=store.place)
        ends.callback(on_store.remove)
        yield World(made, broker, store, [made.host() for _ in range(HOSTS)], on_broker, on_store)


class Cut(NamedTuple):
    """A host that was cut off, when that was for sure, and when it was healed; and what it owned before."""

    host: Host
    at_s: float
    healed_s: float
    owned: set[str]


class HostScene(KafkaScene):
    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder, world.kafka, PARTITIONS)
        self.world = world
        self.store_url = self.look_url = world.postgres.url(world.postgres.make_database())
        self.programs: dict[Host, Program] = {}
        for host in world.hosts:
            self.run_on(host)

    def run_on(self, host: Host) -> None:
        orders = Orders(
            hub="",
            source=self.source_url,
            store=self.store_url,
            group="alerts",
            diaries=str(self.diaries.folder),
            host=host.number,
            checkpoint_s=CHECKPOINT_S,
            settings=TIMES,
        )
        given = [f"PYTHONPATH={ROOT}:{ROOT / 'src'}", f"ORDERS={msgspec.json.encode(orders).decode()}"]
        command = ["run", "tests.integration.hosted:processor", "--workers", str(WORKERS)]
        log = self.folder / f"host-{host.number}.log"
        self.programs[host] = host.start(["env", *given, sys.executable, "-m", "evenflow.cli", *command], log)

    def close(self) -> None:
        for host, program in self.programs.items():
            program.stop()
            print(f"--- {host}\n{program.log}")
        super().close()

    # --- who has what
    def names(self, host: Host) -> set[str]:
        """Its instances, as they said themselves: nothing else tells hosts of one name apart."""
        return set(JOINED.findall(self.programs[host].log))

    def owned_on(self, host: Host) -> set[str]:
        names = self.names(host)
        return {name for name, lease in self.leases().items() if lease.owner is not None and lease.owner.id in names}

    def calls_on(self, host: Host) -> list[Call]:
        return [call for call in self.calls() if call.pid // HOST == host.number]

    def wait_until_shared(self) -> None:
        """Every worker of every host has the same share."""

        def is_even() -> bool:
            owners = [lease.owner.id for lease in self.leases().values() if lease.owner is not None]
            share = PARTITIONS // (HOSTS * WORKERS)
            return len(set(owners)) == HOSTS * WORKERS and {owners.count(one) for one in owners} == {share}

        wait_for(is_even, "even shares", 2 * PATIENCE_S)

    def wait_until_handles(self, host: Host, after_s: float, partitions: set[str] | None = None) -> None:
        """It has handled something in each of these, or of all that it owns, since then."""

        def has_handled() -> bool:
            wanted = partitions if partitions is not None else self.owned_on(host)
            return wanted <= {one.partition for one in self.calls_on(host) if one.ended_s and one.began_s > after_s}

        wait_for(has_handled, f"{host} to handle something of everything", 2 * PATIENCE_S)


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Iterator[HostScene]:
    scene = HostScene(tmp_path / "scene", world)
    try:
        yield scene
    finally:
        scene.close()


def test_a_host_that_is_cut_off_stops_in_time_is_taken_over_and_comes_back(scene: HostScene) -> None:
    one, two, three = scene.world.hosts
    with scene.load():
        scene.wait_until_shared()
        assert len(set().union(*map(scene.names, scene.world.hosts))) == HOSTS * WORKERS, "each has a name of its own"
        cuts = [
            cut_off_from_the_store(scene, one, scene.world.store),
            cut_off_from_the_store(scene, two, scene.world.store, scene.world.broker),
        ]
        cut_off_from_the_broker(scene, three)
        retire_who_is_cut_off_from_the_broker(scene, three)
    calls = scene.wait_until_handled(within_s=2 * PATIENCE_S)
    for cut in cuts:
        check_stopped_in_time(cut, calls)
        check_taken_over_in_time(cut, calls)
    check_repeats(cuts, calls)
    assert all("Traceback" not in program.log for program in scene.programs.values())
    end_well(scene)


def cut_off_from_the_store(scene: HostScene, host: Host, *from_: Host) -> Cut:
    """Others take over what it had; healed, it gets its share again."""
    scene.wait_until_handles(host, 0.0)
    owned = scene.owned_on(host)
    with scene.world.network.cut(host, *from_):
        at_s = boot_s()
        wait_for(lambda: not scene.owned_on(host), f"{host} to be taken over", 2 * PATIENCE_S)

        def goes_on() -> bool:
            others = [call for call in scene.calls() if call.pid // HOST != host.number and call.ended_s]
            return owned <= {call.partition for call in others if call.began_s > at_s}

        wait_for(goes_on, "others to go on with what it had", PATIENCE_S)
        healed_s = boot_s()
    scene.wait_until_shared()
    scene.wait_until_handles(host, healed_s)
    return Cut(host, at_s, healed_s, owned)


def cut_off_from_the_broker(scene: HostScene, host: Host) -> None:
    """It lives, so it keeps what it has; the others' go on, and so do its own once it is healed."""
    scene.wait_until_handles(host, 0.0)
    owned, epochs = scene.owned_on(host), scene.epochs()
    with scene.world.network.cut(host, scene.world.broker):
        at_s = boot_s()
        wait_for(lambda: boot_s() > at_s + TTL_S, "more than a time-to-live to pass")
        for other in scene.world.hosts:
            if other is not host:
                scene.wait_until_handles(other, boot_s())
        assert scene.epochs() == epochs, "a lease moved although only the broker was away"
        stood_still_s = max(call.began_s for call in scene.calls_on(host))
        healed_s = boot_s()
    assert stood_still_s < at_s + slack_s(), "it was cut off, and had events all the same"
    scene.wait_until_handles(host, healed_s, owned)
    assert scene.epochs() == epochs


def retire_who_is_cut_off_from_the_broker(scene: HostScene, host: Host) -> None:
    """What it cannot read others can: asked to, it hands over, although it is cut off."""
    name = min(scene.names(host))
    mine = {partition for partition, lease in scene.leases().items() if lease.owner and lease.owner.id == name}
    with scene.world.network.cut(host, scene.world.broker):
        at_s = boot_s()
        answer("retire", name, "--store", scene.store_url, "--group", "alerts", "--yes", folder=scene.folder)
        elsewhere = [other for other in scene.world.hosts if other is not host]

        def is_handled() -> bool:
            found = {call.partition for other in elsewhere for call in scene.calls_on(other) if call.began_s > at_s}
            owners = {lease.owner.id for lease in scene.leases().values() if lease.owner is not None}
            return name not in owners and bool(found & mine)

        wait_for(is_handled, "others to have what it had")


def check_stopped_in_time(cut: Cut, calls: list[Call]) -> None:
    latest_s = cut.at_s + TTL_S - MARGIN_S
    late = [call for call in calls if call.pid // HOST == cut.host.number and latest_s < call.began_s < cut.healed_s]
    assert not late, f"{cut.host} handled on: {late[0]}"


def check_taken_over_in_time(cut: Cut, calls: list[Call]) -> None:
    others = [call for call in calls if call.pid // HOST != cut.host.number and call.began_s > cut.at_s]
    for partition in cut.owned:
        again_s = min(call.began_s for call in others if call.partition == partition)
        assert again_s - cut.at_s < TTL_S + HEARTBEAT_S + 3 * slack_s(), f"partition {partition} stood still for long"


def check_repeats(cuts: list[Cut], calls: list[Call]) -> None:
    """Only what a host handled since its last checkpoint before it was cut off, until it stopped."""
    may_add_s = slack_s()
    for repeat in repeats(calls):
        (cut,) = (cut for cut in cuts if cut.host.number == repeat.before.pid // HOST)
        assert cut.at_s - CHECKPOINT_S - may_add_s < repeat.before.began_s < cut.at_s + TTL_S - MARGIN_S


def end_well(scene: HostScene) -> None:
    """SIGTERM to each: everything is handed over or released, and nobody is left."""
    for program in scene.programs.values():
        program.process.terminate()
    assert [program.process.wait(PATIENCE_S) for program in scene.programs.values()] == [0] * HOSTS
    assert scene.pids() == set()
    assert all(lease.owner is None for lease in scene.leases().values())
