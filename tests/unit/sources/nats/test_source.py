"""The JetStream source without a server: its URLs, and the partitions that it derives from a stream's info."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.sources.nats import connection as nats_connection
from evenflow.sources.nats.client import StreamInfo
from evenflow.sources.nats.connection import JetStreamNotFound
from evenflow.sources.nats.source import NatsSource, from_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nats://host:4222", "lacks a server or a stream"),
        ("nats:///HOMES", "lacks a server or a stream"),
        ("nats://host/HOMES?subject=homes.*", "must contain {partition} once"),
        ("nats://host/HOMES?partitions=many", "give a whole number"),
        ("nats://host/HOMES?partitions=0", "give 1 or more"),
        ("nats://host/HOMES?colour=red", "Unknown option in a NATS URL: colour"),
    ],
)
def test_a_wrong_url_is_reported(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        from_url(url)


@pytest.mark.parametrize(
    "servers", ["user:pa55@host:4222", "user:x,pa55@host:4222,other", "tls://user:pa55@host,other"]
)
def test_nothing_shows_a_password(servers: str) -> None:
    shown = repr(NatsSource(servers, "HOMES"))
    assert "pa55" not in shown
    assert "host" in shown


def test_an_at_sign_in_a_password_is_reported() -> None:
    with pytest.raises(Misconfigured, match="as %40") as reported:
        from_url("nats://user:pa@55@host:4222/HOMES")
    assert "55" not in str(reported.value)


class Stream:
    """Answers a source's requests about a stream, two subjects at a time."""

    PAGE = 2

    def __init__(self, subjects: Sequence[str], messages: Sequence[str] = (), per_subject: int = -1) -> None:
        self.config: dict[str, Any] = {"subjects": list(subjects), "max_msgs_per_subject": per_subject}
        self.messages = list(messages)
        """The subject of each."""
        self.questions: list[str] = []

    async def ask(self, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        self.questions.append(subject)
        return self._found(question["next_by_subj"]) if "MSG.GET" in subject else self._info(question)

    def _found(self, subject: str) -> dict[str, Any]:
        for number, found in enumerate(self.messages, 1):
            if fnmatchcase(found, subject):
                return {"message": {"seq": number, "time": "2026-01-01T00:00:00Z"}}
        raise JetStreamNotFound("no message found")

    def _info(self, question: Mapping[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = {"first_seq": 1, "last_seq": len(self.messages)}
        answer: dict[str, Any] = {"created": "today", "config": self.config, "state": state}
        if "subjects_filter" in question:
            all_of_them = sorted({one for one in self.messages if fnmatchcase(one, question["subjects_filter"])})
            at = question["offset"]
            state["subjects"] = dict.fromkeys(all_of_them[at : at + self.PAGE], 1)
            answer["total"] = len(all_of_them)
        return answer


def source_of(stream: Stream, monkeypatch: pytest.MonkeyPatch, **options: Any) -> NatsSource:
    source = NatsSource("host", "HOMES", **options)
    monkeypatch.setattr(source._client, "ask", stream.ask)
    return source


def names(source: NatsSource) -> list[str]:
    return [partition.id for partition in asyncio.run(source.partitions())]


@pytest.mark.parametrize(
    ("subject", "found"), [("homes.{partition}", ["0"]), ("homes.{partition}.>", ["admin", "deep"])]
)
def test_only_whole_subjects_name_partitions(subject: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(["homes.0", "homes.admin.log", "homes.deep.>"])
    assert names(source_of(stream, monkeypatch, subject=subject)) == found


def test_partitions_are_found_behind_more_subjects_than_the_server_lists_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream(["homes.*.*"], [*(f"homes.0.{number}" for number in range(7)), "homes.1.last"])
    assert names(source_of(stream, monkeypatch, subject="homes.{partition}.*")) == ["0", "1"]


def test_events_beyond_the_partitions_that_were_given_are_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(["homes.*"], ["homes.1"])
    source = source_of(stream, monkeypatch, partitions=2)
    assert names(source) == ["0", "1"]
    assert not caplog.records
    stream.messages.append("homes.2")
    for _ in range(2):
        names(source)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "evenflow.nats"]
    assert ".2, which is not read with partitions=2" in warning


def test_credentials_that_are_not_there_are_reported(tmp_path: Path) -> None:
    source = from_url(f"nats://host/HOMES?partitions=1&creds={tmp_path / 'none.creds'}")
    with pytest.raises(Misconfigured, match=r"credentials file .*none\.creds does not exist"):
        asyncio.run(source.identity())


def test_a_limit_of_each_subject_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    source = NatsSource("host", "HOMES")
    for _ in range(2):
        source._warn(StreamInfo("today", ("homes.*",), 1, 0, per_subject=7))
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "evenflow.nats"]
    assert "keeps only 7 messages per subject (max_msgs_per_subject)" in warning


def test_a_server_that_is_not_there_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "CONNECT_S", 0.5)

    async def main() -> None:
        source = NatsSource("127.0.0.1:1", "HOMES")
        with pytest.raises(SourceUnavailable, match="does not answer"):
            await asyncio.wait_for(source.identity(), 30.0)
        await source.aclose()

    asyncio.run(main())
