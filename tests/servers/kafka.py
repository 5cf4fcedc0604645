"""A real Kafka (KRaft) on loopback, in a temporary folder: one node for the whole run of a test process, or several.

It is made of the artifacts that tests/kafka/pom.xml names, which `make test` fetches.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.leaks import shared as shared_by_tests
from tests.servers.processes import (
    HERE,
    LOOPBACK,
    PATIENCE_S,
    Folder,
    Place,
    Program,
    free_port,
    stand_still,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBS = Path(__file__).parents[1] / "kafka" / "libs"
QUICK = ("-Xms96m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")
"""For a quick start and little memory; not for speed."""
FAST = ("-Xms512m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
"""Alice may do everything, bob nothing. Who comes in by the plain listener may do everything too."""
TOKENS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredLoginStringClaim_sub="alice";'
)
"""For OAUTHBEARER, with tokens that nobody has signed."""

SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:alice",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "ssl.keystore.type": "PEM",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class NotThere(Exception):
    """No Kafka on this machine."""


def check_there() -> None:
    if shutil.which("java") is None:
        raise NotThere("Kafka cannot run here: there is no Java; install Debian's default-jre-headless")
    if not list(LIBS.glob("kafka_*.jar")):
        raise NotThere("Kafka is not here: install Maven (Debian's maven) and run `make test`, which fetches it")


class Node:
    """One broker that is a controller, too. It may be killed and started again."""

    def __init__(self, folder: Path, number: int, java: tuple[str, ...], place: Place) -> None:
        self.number = number
        self.place = place
        self.port, self.secure_port, self.controller_port = free_port(), free_port(), free_port()
        self._folder = folder / str(number)
        self._folder.mkdir()
        self._java = ["java", *java, QUIET, "-cp", f"{LIBS}/*"]
        self._settings = self._folder / "server.properties"
        self._program: Program | None = None

    def configure(self, settings: Mapping[str, str]) -> None:
        address = self.place.address
        own = {
            "node.id": str(self.number),
            "log.dirs": str(self._folder / "data"),
            "listeners": f"PLAINTEXT://{address}:{self.port},SECURE://{address}:{self.secure_port}"
            f",CONTROLLER://{address}:{self.controller_port}",
        }
        lines = [f"{name}={value}" for name, value in (SETTINGS | dict(settings) | own).items()]
        self._settings.write_text("\n".join(lines) + "\n")

    def format(self, cluster: str) -> None:
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def format_like(self, other: Node) -> None:
        """A copy of what another one has before its first start, with an identity of its own: that takes no Java."""
        data = self._folder / "data"
        shutil.copytree(other._folder / "data", data)
        own = {"node.id": str(self.number), "directory.id": _new_id()}
        properties = data / "meta.properties"
        lines = [line for line in properties.read_text().splitlines() if line.partition("=")[0] not in own]
        properties.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in own.items())]) + "\n")

    def start(self) -> None:
        """It is not waited for: see `Kafka.wait_until_ready`."""
        command = [*self._java, "kafka.Kafka", str(self._settings)]
        self._program = Program(command, self._folder / "log", farewell=signal.SIGKILL, place=self.place)

    def kill(self) -> None:
        """As if its machine had died."""
        if self._program is not None:
            self._program.stop(signal.SIGKILL)

    def stop(self) -> None:
        """In good order: it passes its partitions on."""
        if self._program is not None:
            self._program.stop(signal.SIGTERM, PATIENCE_S)

    def pause(self) -> None:
        assert self._program is not None
        stand_still(self._program.pid)

    def resume(self) -> None:
        assert self._program is not None
        os.kill(self._program.pid, signal.SIGCONT)

    @property
    def log(self) -> str:
        return self._program.log if self._program is not None else ""

    def check_runs(self) -> None:
        if self._program is not None and not self._program.is_running:
            raise RuntimeError(f"broker {self.number} ended:\n{self.log[-3000:]}")


class Kafka:
    """A cluster. Topics get names that nobody has used."""

    def __init__(self, nodes: int = 1, *, java: tuple[str, ...] = QUICK, place: Place = HERE, **settings: str) -> None:
        """Settings with underscores in place of dots."""
        check_there()
        self._folder = Folder("kafka", None)
        self._numbers = count(1)
        self._admin: AdminClient | None = None
        self.certificate = self._folder.path / "certificate.pem"
        keys = self._folder.path / "keys.pem"
        make_certificate(self.certificate, keys)
        self.nodes = [Node(self._folder.path, number, java, place) for number in range(1, nodes + 1)]
        copies = str(min(nodes, 3))
        shared = {
            "controller.quorum.voters": ",".join(
                f"{one.number}@{place.address}:{one.controller_port}" for one in self.nodes
            ),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
            "listener.name.secure.plain.sasl.jaas.config": _users(),
            "listener.name.secure.oauthbearer.sasl.jaas.config": TOKENS,
            "listener.name.secure.ssl.keystore.location": str(keys),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        for node in self.nodes:
            node.configure(shared)
        first, *others = self.nodes
        first.format(_new_id())
        for node in others:
            node.format_like(first)
        self.start()

    # --- up and down
    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            for node in self.nodes:
                node.check_runs()
            with suppress(Exception):
                return len(self.admin.list_topics(timeout=1.0).brokers) == len(self.nodes)
            return False

        wait_until(ready, "Kafka to be ready", 2 * PATIENCE_S)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def remove(self) -> None:
        self._admin = None
        self.kill()
        self._folder.remove()

    # --- how to get there
    @property
    def servers(self) -> str:
        return ",".join(f"{node.place.address}:{node.port}" for node in self.nodes)

    @property
    def secure_servers(self) -> str:
        return ",".join(f"{node.place.address}:{node.secure_port}" for node in self.nodes)

    def url(self, topic: str) -> str:
        return f"kafka://{self.servers}/{topic}"

    def secure(self, user: str = "alice", password: str | None = None) -> dict[str, Any]:
        """The options with which a user comes in."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": USERS[user] if password is None else password,
            "ssl.ca.location": str(self.certificate),
        }

    def secure_by_token(self, user: str = "alice") -> dict[str, Any]:
        """The same, with a token that a callback gives."""

        def token(_: str) -> tuple[str, float]:
            now_s = time.time()
            parts = {"alg": "none"}, {"sub": user, "iat": now_s, "exp": now_s + 300}
            texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
            return f"{'.'.join(texts)}.", now_s + 300

        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": token,
            "ssl.ca.location": str(self.certificate),
        }

    # --- what is in it
    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        return self._admin

    def open_connections(self) -> None:
        """All that the administration client ever opens: one to the broker, and one to it as a coordinator of groups.

        The coordinator must be ready: the client has crashed the process where it was still loading.
        """
        topic, group = self.make_topic(1), self.fresh("group")
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, "log_level": 0})

        def is_coordinated() -> bool:
            with suppress(KafkaException):
                return bool(consumer.committed([TopicPartition(topic, 0)], PATIENCE_S))
            return False

        wait_until(is_coordinated, "a coordinator of groups", 2 * PATIENCE_S)
        consumer.close()
        self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)

    def fresh(self, name: str = "topic") -> str:
        return f"{name}-{next(self._numbers)}-{uuid.uuid4().hex[:6]}"

    def make_topic(self, partitions: int = 2, name: str | None = None, copies: int = 1, **settings: str) -> str:
        topic = name or self.fresh()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(topic, partitions, copies, config=config)])[topic].result(PATIENCE_S)
        self._wait_until_known(topic, partitions)
        return topic

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)
        self._wait_until_known(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(PATIENCE_S)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=PATIENCE_S).topics, f"{topic} to be gone")

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Remove what is older than this offset, as retention does."""
        for done in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(PATIENCE_S)

    def newest(self, topic: str, partition: int) -> int:
        """The offset of the newest message; -1 when there never was one."""
        place = TopicPartition(topic, partition)
        asked = self.admin.list_offsets({place: OffsetSpec.latest()})  # type: ignore[no-untyped-call]
        newest: int = asked[place].result(PATIENCE_S).offset - 1
        return newest

    def leader(self, topic: str, partition: int = 0) -> int:
        leader: int = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[partition].leader
        return leader

    def elect(self, topic: str, partition: int = 0) -> int:
        """The leader, after the first of its replicas was asked to be: it is, once it has caught up."""
        with suppress(KafkaException):
            self.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, partition)]).result(PATIENCE_S)
        return self.leader(topic, partition)

    def _wait_until_known(self, topic: str, partitions: int) -> None:
        """Whoever makes a topic is answered a little before its leaders are."""
        places = [TopicPartition(topic, number) for number in range(partitions)]

        def known() -> bool:
            self.admin.list_topics(topic, timeout=PATIENCE_S)  # or it would go by what it knew of the topic before
            asked = self.admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))  # type: ignore[no-untyped-call, arg-type]
            with suppress(KafkaException):
                return all(answer.result(PATIENCE_S).offset >= 0 for answer in asked.values())
            return False

        wait_until(known, f"{topic} to be known")


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _users() -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"


def make_certificate(certificate: Path, keys: Path) -> None:
    """A self-signed one for loopback; `keys` gets it together with its private key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address(LOOPBACK))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate.write_bytes(made.public_bytes(pem))
    keys.write_bytes(private + made.public_bytes(pem))


@shared_by_tests
def shared() -> Kafka:
    """The one of this test process."""
    kafka = Kafka()
    kafka.open_connections()
    return kafka


def shared_or_skip() -> Kafka:
    skip_without_kafka()
    return shared()


def skip_without_kafka() -> None:
    try:
        check_there()
    except NotThere as why:
        pytest.skip(str(why))
