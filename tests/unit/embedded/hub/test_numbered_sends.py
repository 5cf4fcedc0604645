"""Producers that number their sends themselves, and files of the format that had no numbers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow.embedded.hub import Hub, Sent, deduplication
from evenflow.embedded.hub.log import PartitionLog
from evenflow.errors import BatchForgotten, Misconfigured, SendFailed
from tests.unit.embedded.hub.test_deduplication import Commits, bodies, is_durable, writing_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub.create(tmp_path / "hub", 2) as hub:
        yield hub


def send(hub: Hub, number: int | None, events: Any = b"a", producer: str = "meter", **how: Any) -> tuple[Sent, ...]:
    how = how or {"partition": 0}
    return asyncio.run(hub.producer(producer, retry_s=0).send(events, number=number, **how))


def last_number(hub: Hub, producer: str = "meter") -> int | None:
    return asyncio.run(hub.producer(producer).last_number(0))


def test_a_number_is_stored_once_also_by_another_process(hub: Hub) -> None:
    assert last_number(hub) is None
    assert send(hub, 0, [b"a", b"b"]) == (("0", 0, 1),)
    assert send(hub, 7, b"c") == (("0", 2, 2),)
    with Hub(hub.path) as again:
        assert send(again, 0, [b"a", b"b"]) == (("0", 0, 1),)
        assert send(again, 7, b"c") == (("0", 2, 2),)
        assert last_number(again) == 7
        assert send(again, 8, b"d") == (("0", 3, 3),)
    assert bodies(hub) == [b"a", b"b", b"c", b"d"]


def test_numbers_belong_to_a_producer_and_a_partition(hub: Hub) -> None:
    for producer in ("one", "two"):
        for partition in (0, 1):
            send(hub, 3, producer.encode(), producer, partition=partition)
    assert [bodies(hub, partition) for partition in (0, 1)] == [[b"one", b"two"]] * 2


def test_numbers_that_come_at_once_are_stored_in_their_order(hub: Hub) -> None:
    async def main() -> list[Any]:
        sender = hub.producer("meter")
        sends = [sender.send(b"%d" % n, partition=0, number=n) for n in (1, 2, 2, 3, 1)]
        return await asyncio.gather(*sends)

    assert [sent.first for (sent,) in asyncio.run(main())] == [0, 1, 1, 2, 0]
    assert bodies(hub) == [b"1", b"2", b"3"]


def test_a_number_below_the_newest_that_was_not_sent_is_refused(hub: Hub) -> None:
    send(hub, 2)
    send(hub, 4)
    with pytest.raises(BatchForgotten, match=r"number 3 of producer 'meter' is stored: it keeps 2 to 4\.") as raised:
        send(hub, 3)
    assert isinstance(raised.value, SendFailed)
    assert len(bodies(hub)) == 2


def test_only_the_newest_numbers_are_kept(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "RECENT_NUMBERS_MAX", 3)
    for number in range(5):
        send(hub, number)
    assert [send(hub, number)[0].first for number in (2, 3, 4)] == [2, 3, 4]
    with pytest.raises(BatchForgotten, match="it keeps 2 to 4"):
        send(hub, 1)
    assert len(bodies(hub)) == 5


def test_numbers_outlive_their_events(hub: Hub) -> None:
    send(hub, 1)
    send(hub, 2)
    writing_log(hub).remove_before(2)
    assert send(hub, 1) == (("0", 0, 0),)
    assert last_number(hub) == 2


def test_the_producer_that_wrote_least_recently_is_forgotten_and_refused(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "PRODUCERS_MAX", 2)
    send(hub, 5, producer="one")
    send(hub, 5, producer="two")
    send(hub, 6, producer="one")
    send(hub, 0, producer="three")
    assert send(hub, 6, producer="one") == (("0", 2, 2),)
    with pytest.raises(BatchForgotten, match="does not know producer 'two'"):
        send(hub, 5, producer="two")
    assert len(bodies(hub)) == 4
    assert send(hub, 0, producer="two") == (("0", 4, 4),), "from 0 on it is a new one"
    with pytest.raises(BatchForgotten):
        send(hub, 7, producer="one")


def test_a_doubtful_number_is_settled_by_sending_it_again(hub: Hub) -> None:
    Commits(writing_log(hub), is_durable)
    with pytest.raises(SendFailed) as raised:
        send(hub, 4, [b"a", b"b"])
    assert set(raised.value.in_doubt) == {"0"}
    assert asyncio.run(hub.send(raised.value.batch)) == (("0", 0, 1),)
    assert send(hub, 4, [b"a", b"b"]) == (("0", 0, 1),)
    assert bodies(hub) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("number", "how"),
    [(None, {}), (1, {"key": "k"}), (-1, {}), (1 << 63, {}), (True, {}), ("1", {})],
)
def test_a_producer_with_an_id_gives_partition_and_number(hub: Hub, number: Any, how: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="a partition and a number from 0"):
        send(hub, number, **how)


def test_a_number_needs_an_id(hub: Hub) -> None:
    with pytest.raises(Misconfigured, match="A number needs a producer with an id"):
        send(hub, 1, producer="")


@pytest.mark.parametrize("name", [7, "x" * 201, "a\nb"])
def test_an_id_is_short_text(hub: Hub, name: Any) -> None:
    with pytest.raises(Misconfigured, match="printable text of at most 200 characters"):
        hub.producer(name)


FORMAT_1 = """
DROP TABLE producers;
ALTER TABLE batches DROP COLUMN sends;
ALTER TABLE state DROP COLUMN forgotten;
PRAGMA user_version=0;
"""


@pytest.fixture
def of_format_1(tmp_path: Path) -> Path:
    path = tmp_path / "former"
    with Hub.create(path, 2) as hub:
        asyncio.run(hub.send([b"a", b"b"], partition=0))
    for name, change in (("partitions/00000.sqlite", FORMAT_1), ("hub.sqlite", "PRAGMA user_version=1")):
        connection = apsw.Connection(str(path / name))
        connection.execute(change)
        connection.close()
    return path


def test_a_hub_of_the_former_format_is_upgraded_when_it_is_opened(of_format_1: Path) -> None:
    with Hub(of_format_1) as hub, Hub(of_format_1) as another:
        assert bodies(hub) == [b"a", b"b"]
        batch = hub.batch(b"c", partition=0)
        for _ in range(2):
            assert asyncio.run(hub.send(batch)) == (("0", 2, 2),)
            batch.stored.clear()
        assert send(another, 3, b"d") == send(hub, 3, b"d") == (("0", 3, 3),)
        assert bodies(another) == [b"a", b"b", b"c", b"d"]
    assert apsw.Connection(str(of_format_1 / "hub.sqlite")).pragma("user_version") == 2


def test_an_upgrade_that_was_killed_is_made_again(of_format_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "evenflow.embedded.hub.schema._UPGRADE", "ALTER TABLE batches ADD COLUMN sends BLOB; SELECT no_such()"
    )
    with Hub(of_format_1) as hub:
        with pytest.raises(apsw.SQLError):
            bodies(hub)
        monkeypatch.undo()
        assert bodies(hub) == [b"a", b"b"]


def test_a_partition_of_a_newer_evenflow_is_refused(hub: Hub) -> None:
    path = hub.path / "partitions" / "00000.sqlite"
    newer = apsw.Connection(str(path))
    newer.execute("PRAGMA user_version=99")
    newer.close()
    log = PartitionLog(path, hub.info().made, 0, 1.0)
    with pytest.raises(Misconfigured, match=r"newer evenflow \(format 99, supported: 2\)"):
        log.state()
