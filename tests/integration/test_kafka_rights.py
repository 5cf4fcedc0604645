"""Who may do what on a real Kafka broker: passwords, tokens and ACLs, and what a user is told who lacks a right."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from evenflow import Misconfigured
from evenflow.model import Action, Position, Steering
from evenflow.signals import Trouble
from evenflow.sources.kafka.source import KafkaSource
from tests.integration.kafka_scene import LONG_S, Run, events, opened, read, reader_of, texts, until, until_offsets
from tests.servers.kafka import USERS, Kafka, shared_or_skip
from tests.servers.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture
def kafka() -> Kafka:
    return shared_or_skip()


def right_to(operation: str, topic: str, user: str = "bob") -> AclBinding:
    """An ACL that lets a user do that with a topic."""
    allowed = AclOperation[operation], AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", *allowed)


def grant(kafka: Kafka, acl: AclBinding) -> None:
    for done in kafka.admin.create_acls([acl]).values():
        done.result(LONG_S)
    wait_until(lambda: _is_granted(kafka, acl), "the broker to know of the ACL")


def revoke(kafka: Kafka, acl: AclBinding) -> None:
    for done in kafka.admin.delete_acls([_filter(acl)]).values():
        assert len(done.result(LONG_S)) == 1
    wait_until(lambda: not _is_granted(kafka, acl), "the broker to know that the ACL is gone")


def _is_granted(kafka: Kafka, acl: AclBinding) -> bool:
    """The controller has it before the broker does, which decides."""
    return bool(kafka.admin.describe_acls(_filter(acl)).result(LONG_S))


def _filter(acl: AclBinding) -> AclBindingFilter:
    fields = acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host
    return AclBindingFilter(*fields, acl.operation, acl.permission_type)


def test_a_user_without_a_right_is_told_which_one_is_missing(kafka: Kafka) -> None:
    async def refused(topic: str, reason: str) -> None:
        source = KafkaSource(kafka.secure_servers, topic, kafka.secure("bob"))
        with pytest.raises(Misconfigured, match=reason):
            await Run(source).processor.serve()
        await source.aclose()

    async def main() -> None:
        topic = kafka.make_topic(1)
        await refused(topic, r"does not exist|is not authorized")
        await asyncio.to_thread(grant, kafka, right_to("WRITE", topic))
        source = KafkaSource(kafka.secure_servers, topic, kafka.secure("bob"))
        await source.send(events(0, 1))
        await source.aclose()
        await refused(topic, r"this user may not read it. Grant the right with an ACL")

    asyncio.run(main())


def test_rights_that_are_taken_while_it_runs_are_trouble_and_it_goes_on_when_they_are_back(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        right = right_to("READ", topic)
        await asyncio.to_thread(grant, kafka, right)
        source = KafkaSource(kafka.secure_servers, topic, kafka.secure("bob"))
        async with opened(kafka, topic) as writer:
            run = Run(source)
            async with run.processor:
                await writer.send(events(0, 3), "0")
                await until(lambda: len(run.handled) == 3, "the first events")
                await asyncio.to_thread(revoke, kafka, right)
                # The partition is let go, and taken again: its seal asks the broker, which refuses.
                action = Action(kind="pause", by="anna", why="rights", what="")
                [group] = await run.store.groups()
                await run.store.steer(group, Steering(pause=("0",)), action)
                await until(lambda: not run.processor.owned, "the pause")
                await writer.send(events(3, 6), "0")
                await run.store.steer(group, Steering(resume=("0",)), action)
                await until(lambda: run.of(Trouble) and run.processor.owned, "somebody to tell")
                await asyncio.to_thread(grant, kafka, right)
                await until(lambda: len(run.handled) == 6, "the other events")
            assert [body for _, body in run.handled] == texts(0, 6)
        await source.aclose()

    asyncio.run(main())


def test_a_wrong_password_ends_the_start_and_is_not_shown(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source = KafkaSource(kafka.secure_servers, kafka.make_topic(1), kafka.secure("alice", "wr0ng-secret"))
        try:
            async with asyncio.timeout(LONG_S):
                with pytest.raises(Misconfigured, match=r"rejected this client") as told:
                    await Run(source).processor.serve()
            assert "wr0ng-secret" not in str(told.value) + caplog.text
        finally:
            await source.aclose()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())


def test_sasl_and_tls_options_are_passed_on_to_every_client_of_the_broker(kafka: Kafka) -> None:
    """With a password, and with a token that a callback gives."""

    async def main() -> None:
        for config in kafka.secure("alice"), kafka.secure_by_token("alice"):
            await use(config)

    async def use(config: Mapping[str, object]) -> None:
        topic, group = kafka.make_topic(2), kafka.fresh("mirror")
        source = KafkaSource(kafka.secure_servers, topic, dict(config), mirror_group=group)
        try:
            await source.send(events(0, 5), "0")
            assert await read(await reader_of(source), 5) == texts(0, 5)
            assert await source.waiting_since({"0": Position("3", 3)})
            source.committed({"0": Position("3", 3)})
            await until_offsets(kafka, group, topic, {0: 4})
            assert USERS["alice"] not in repr(source)
        finally:
            await source.aclose()

    asyncio.run(main())


def test_a_target_of_dead_letters_that_cannot_be_written_is_reported_at_the_start(kafka: Kafka) -> None:
    async def main() -> None:
        topic, dead = kafka.make_topic(1), kafka.make_topic(1)
        await asyncio.to_thread(grant, kafka, right_to("READ", dead))
        for target, user, reason in (
            ("no-such-topic", "alice", "topic no-such-topic .* does not exist"),
            (dead, "bob", "may not write it"),
        ):
            dead_letters = KafkaSource(kafka.secure_servers, target, kafka.secure(user))
            async with opened(kafka, topic) as source:
                with pytest.raises(Misconfigured, match=reason):
                    await Run(source, dead_letter=dead_letters).processor.serve()
            await dead_letters.aclose()

    asyncio.run(main())
