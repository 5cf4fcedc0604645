from __future__ import annotations

from typing import Any

import pytest

from evenflow.errors import Misconfigured
from evenflow.sources.kafka.options import KafkaOptions, parse_url
from evenflow.sources.kafka.source import KafkaSource, from_url
from evenflow.urls import open_dead_letters, open_source

SECRET = "pa55word"


def test_a_url_names_brokers_a_topic_and_options() -> None:
    options = parse_url(
        "kafka://one:9092,two:9093/homes?security.protocol=SASL_SSL&sasl.password=a%26b&mirror_group=seen"
        "&key_encoding=latin-1&namespace=cluster"
    )
    assert (options.servers, options.topic) == ("one:9092,two:9093", "homes")
    assert options.config == {"security.protocol": "SASL_SSL", "sasl.password": "a&b"}
    assert (options.mirror_group, options.key_encoding, options.namespace) == ("seen", "latin-1", "cluster")
    assert str(options) == "topic homes at one:9092,two:9093"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka:///homes", "names no broker"),
        ("kafka:homes", "names no broker"),
        ("kafka://host:9092", "names no topic"),
        ("kafka://host:9092/", "names no topic"),
        ("kafka://host:9092/one/two", "names no topic"),
        (f"kafka://alice:{SECRET}@host:9092/homes", r"cannot contain a user.*sasl\.username"),
        ("kafka://host/homes?auto.offset.reset=latest", r"auto\.offset\.reset must not be set.*on_gone"),
        ("kafka://host/homes?enable.auto.commit=true", "mirror_group"),
        ("kafka://host/homes?enable.partition.eof=false", "must not be set"),
        ("kafka://host/homes?transactional.id=me", "sent without a transaction"),
        ("kafka://host/homes?key_encoding=klingon", "use utf-8, or latin-1"),
    ],
)
def test_an_invalid_url_is_rejected_without_showing_secrets(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as refused:
        from_url(url)
    assert SECRET not in str(refused.value)


def test_nothing_shows_a_password() -> None:
    source = KafkaSource("host:9092", "homes", {"sasl.password": SECRET})
    assert SECRET not in repr(source)
    assert SECRET not in repr(KafkaOptions("host:9092", "homes", {"sasl.password": SECRET}))
    assert SECRET not in str(source)


def test_options_reach_the_driver_except_those_of_evenflow() -> None:
    options = KafkaOptions("host:9092", "homes", {"fetch.wait.max.ms": 7, "ssl.ca.location": "/ca", "linger.ms": 3})
    reading, queries, sending = options.for_reading(), options.for_queries(), options.for_sending()
    assert (reading["fetch.wait.max.ms"], reading["ssl.ca.location"]) == (7, "/ca")
    assert (reading["auto.offset.reset"], reading["enable.partition.eof"]) == ("error", True)
    assert "fetch.wait.max.ms" not in queries | sending
    assert {one["ssl.ca.location"] for one in (queries, sending)} == {"/ca"}
    assert sending["linger.ms"] == 3


def test_urls_open_it_as_a_source_and_as_a_target_of_dead_letters() -> None:
    assert isinstance(open_source("kafka://host:9092/homes"), KafkaSource)
    assert type(open_dead_letters("kafka://host:9092/dead")).__name__ == "HubDeadLetters"


async def _reported(source: KafkaSource) -> str:
    with pytest.raises(Misconfigured) as refused:
        await source.identity()
    return str(refused.value)


@pytest.mark.parametrize(("name", "value"), [("no.such.option", "1"), ("security.protocol", "carrier pigeons")])
def test_an_option_that_the_driver_refuses_is_reported(name: str, value: Any) -> None:
    import asyncio

    source = KafkaSource("127.0.0.1:1", "homes", {name: value, "sasl.password": SECRET})
    refused = asyncio.run(_reported(source))
    assert name in refused
    assert SECRET not in refused


def test_a_mirror_never_raises_even_for_a_checkpoint_of_another_source() -> None:
    import asyncio

    from evenflow.model import Position

    async def main() -> None:
        source = KafkaSource("127.0.0.1:1", "homes", mirror_group="mirror")
        source.committed({"0": Position("an-offset-of-others"), "shard-1": Position("1", 1)})
        await asyncio.wait_for(source.aclose(), 5.0)

    asyncio.run(main())


PROGRAM = """
import asyncio
from evenflow.model import Position
from evenflow.sources.kafka import mirror as kafka_mirror
from evenflow.sources.kafka.source import KafkaSource

async def main():
    kafka_mirror.CLOSE_S = 0.1
    source = KafkaSource("127.0.0.1:1", "homes", mirror_group="mirror")
    source.committed({"0": Position("1", 1)})
    await source.aclose()

asyncio.run(main())
"""


def test_process_exit_does_not_wait_for_a_mirror_whose_brokers_are_unreachable() -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=15.0)
