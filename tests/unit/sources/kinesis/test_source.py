"""The Kinesis source without a server: URLs, records, and the limits of a request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from evenflow.errors import Misconfigured
from evenflow.model import Event
from evenflow.sources.kinesis.client import BACK_OFF_MOST_S, back_off_s
from evenflow.sources.kinesis.codec import MARK, event_of, record_of
from evenflow.sources.kinesis.source import SEND_BYTES, KinesisSource, _requests, _waves, from_url
from evenflow.urls import open_dead_letters, open_source

KEYS = {"aws_access_key_id": "some-user", "aws_secret_access_key": "open-sesame"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kinesis://", "lacks a stream"),
        ("kinesis:homes", "lacks a stream"),
        ("kinesis://homes/more", "lacks a stream"),
        ("kinesis://homes?aws_secret_access_key=pa55", "Keys do not belong"),
        ("kinesis://user:pa55@homes?region=eu-north-1", "cannot contain a user or a password"),
        ("kinesis://ho mes?region=eu-north-1", "is not a stream name"),
        ("kinesis://homes?region=eu-north-1#pa55", "lacks a stream"),
        ("kinesis://homes?endpoint=127.0.0.1:5000", "is not the URL of a server"),
        ("kinesis://homes?endpoint=http://me:pa55@127.0.0.1:5000", "is not the URL of a server"),
        ("kinesis://homes?poll_s=often", "give seconds"),
        ("kinesis://homes?poll_s=0.01", "five times a second"),
    ],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as refused:
        from_url(url)
    assert "pa55" not in str(refused.value)


def test_urls_open_it_as_a_source_and_as_a_target_of_dead_letters() -> None:
    assert isinstance(open_source("kinesis://homes?region=eu-north-1"), KinesisSource)
    assert type(open_dead_letters("kinesis://dead?region=eu-north-1")).__name__ == "HubDeadLetters"


def test_nothing_shows_a_key() -> None:
    source = KinesisSource("homes", region="eu-north-1", options={"aws_secret_access_key": "pa55"})
    assert repr(source) == "<KinesisSource stream homes of Kinesis in eu-north-1>"


def stored(event: Event) -> dict[str, Any]:
    time = datetime(2026, 11, 15, 12, 0, 0, 123_000, tzinfo=UTC)
    return record_of(event) | {
        "SequenceNumber": "4959033827149025660855969253836157",
        "ApproximateArrivalTimestamp": time,
    }


@pytest.mark.parametrize(
    "event",
    [
        Event(b"plain", "home-7"),
        Event(b"", "home-7"),
        Event(b"no key"),
        Event(b"empty key", ""),
        Event(b"more", "home-7", {"n": 7, "text": "Zürich", "deep": [1, {"a": None}]}),
        Event(b"long key", "x" * 1000),
        Event(MARK + b"\x00\x00\x00\x05not ours", "home-7"),
    ],
)
def test_an_event_comes_back_whole(event: Event) -> None:
    found = event_of(stored(event))
    assert (found.body, found.key, found.properties) == (event.body, event.key, event.properties)
    assert found.offset == "4959033827149025660855969253836157"
    assert found.sequence is None
    assert found.enqueued_at == datetime(2026, 11, 15, 12, 0, 0, 123_000, tzinfo=UTC)


def test_a_record_that_only_resembles_one_with_a_header_is_a_body_and_a_key() -> None:
    record = stored(Event(b"x", "home-7")) | {"Data": MARK + b"\x00\x00\x00\x02no json"}
    assert event_of(record).body == MARK + b"\x00\x00\x00\x02no json"
    assert event_of(record).key == "home-7"


def test_an_event_that_is_a_body_and_a_key_is_stored_as_that() -> None:
    assert record_of(Event(b"door opened", "home-7")) == {"Data": b"door opened", "PartitionKey": "home-7"}
    assert len(record_of(Event(b"x", "é" * 1000))["PartitionKey"]) <= 256


def test_no_request_has_two_events_of_one_key() -> None:
    sent = [Event(b"%d" % number, key) for number, key in enumerate("aababc")] + [Event(b"6"), Event(b"7")]
    waves = [[(event.key, event.body) for event in wave] for wave in _waves(sent)]
    assert waves == [
        [("a", b"0"), ("b", b"2"), ("c", b"5"), (None, b"6"), (None, b"7")],
        [("a", b"1"), ("b", b"4")],
        [("a", b"3")],
    ]


def test_a_request_has_five_hundred_records_and_some_megabytes_at_most() -> None:
    small = [record_of(Event(b"x", "a"))] * 1200
    assert [len(one) for one in _requests(small)] == [500, 500, 200]
    large = [record_of(Event(bytes(SEND_BYTES // 3), "a"))] * 5
    assert [len(one) for one in _requests(large)] == [2, 2, 1]


def test_it_backs_off_for_longer_and_longer_up_to_a_limit() -> None:
    waits = [back_off_s(attempt) for attempt in range(1, 20)]
    assert waits == sorted(waits)
    assert waits[0] < 1.0
    assert waits[-1] == BACK_OFF_MOST_S


@pytest.mark.parametrize(
    ("region", "options", "message"),
    [("eu north", {}, "eu north"), ("eu-north-1", {"colour": "red"}, "colour")],
)
def test_settings_that_the_driver_rejects_are_reported(region: str, options: dict[str, Any], message: str) -> None:
    async def main() -> None:
        source = KinesisSource("homes", region=region, endpoint="http://127.0.0.1:1", options=KEYS | options)
        try:
            with pytest.raises(Misconfigured, match=message):
                await source.identity()
        finally:
            await source.aclose()

    asyncio.run(main())


def test_threads_are_bounded_and_process_exit_does_not_wait_for_them() -> None:
    code = """
import asyncio, threading, time
from evenflow.sources.kinesis.threads import DaemonThreads

async def main():
    threads, running, most = DaemonThreads("t", 3), 0, 0
    def work(number):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return number
    found = await asyncio.gather(*(threads.run(work, number) for number in range(20)))
    assert found == list(range(20)), found
    assert most == 3 == sum(one.name.startswith("t-") for one in threading.enumerate()), most
    try:
        await threads.run(int, "x")
    except ValueError:
        print("raised")
    hangs = asyncio.ensure_future(threads.run(time.sleep, 60))
    await asyncio.sleep(0.05)
    hangs.cancel()
    threads.end()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("raised\n", "", 0)
