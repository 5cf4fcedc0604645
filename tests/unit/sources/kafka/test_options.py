from __future__ import annotations

from typing import Any

import pytest

from evenflow.errors import Misconfigured
from evenflow.sources.kafka.options import Options, from_text
from evenflow.sources.kafka.source import KafkaSource, from_url
from evenflow.urls import open_dead_letters, open_source

SECRET = "pa55word"


def test_a_url_names_brokers_a_topic_and_options() -> None:
    options = from_text(
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
        (f"kafka://alice:{SECRET}@host:9092/homes", r"holds no user.*sasl\.username"),
        ("kafka://host/homes?auto.offset.reset=latest", r"auto\.offset\.reset is not to be given.*on_gone"),
        ("kafka://host/homes?enable.auto.commit=true", "mirror_group"),
        ("kafka://host/homes?enable.partition.eof=false", "not to be given"),
        ("kafka://host/homes?transactional.id=me", "sent without a transaction"),
        ("kafka://host/homes?key_encoding=klingon", "give utf-8, or latin-1"),
    ],
)
def test_what_cannot_be_is_told_and_no_secret_with_it(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as told:
        from_url(url)
    assert SECRET not in str(told.value)


def test_nothing_shows_a_password() -> None:
    source = KafkaSource("host:9092", "homes", {"sasl.password": SECRET})
    assert SECRET not in repr(source)
    assert SECRET not in repr(Options("host:9092", "homes", {"sasl.password": SECRET}))
    assert SECRET not in str(source)


def test_every_option_reaches_the_driver_and_ours_stay_ours() -> None:
    options = Options("host:9092", "homes", {"fetch.wait.max.ms": 7, "ssl.ca.location": "/ca", "linger.ms": 3})
    reading, asking, sending = options.for_reading(), options.for_asking(), options.for_sending()
    assert (reading["fetch.wait.max.ms"], reading["ssl.ca.location"]) == (7, "/ca")
    assert (reading["auto.offset.reset"], reading["enable.partition.eof"]) == ("error", True)
    assert "fetch.wait.max.ms" not in asking | sending
    assert {one["ssl.ca.location"] for one in (asking, sending)} == {"/ca"}
    assert sending["linger.ms"] == 3


def test_urls_know_it_as_a_source_and_as_a_place_for_dead_letters() -> None:
    assert isinstance(open_source("kafka://host:9092/homes"), KafkaSource)
    assert type(open_dead_letters("kafka://host:9092/dead")).__name__ == "HubDeadLetters"


async def _told(source: KafkaSource) -> str:
    with pytest.raises(Misconfigured) as told:
        await source.identity()
    return str(told.value)


@pytest.mark.parametrize(("name", "value"), [("no.such.option", "1"), ("security.protocol", "carrier pigeons")])
def test_an_option_that_the_driver_refuses_is_told(name: str, value: Any) -> None:
    import asyncio

    source = KafkaSource("127.0.0.1:1", "homes", {name: value, "sasl.password": SECRET})
    told = asyncio.run(_told(source))
    assert name in told
    assert SECRET not in told


def test_a_mirror_never_raises_also_not_for_the_checkpoint_of_another_source() -> None:
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


def test_a_process_that_ends_does_not_wait_for_a_mirror_whose_brokers_are_away() -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=15.0)
