"""Sends that fail, and sends that are repeated: what the error says, and that nothing is stored twice."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow.embedded.hub import Batch, Hub, Sent, deduplication, producer
from evenflow.errors import (
    BatchForgotten,
    Corrupt,
    Misconfigured,
    SendFailed,
    SourceUnavailable,
    StorageFull,
    Transient,
)
from evenflow.local.database import connect
from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from evenflow.embedded.hub.log import PartitionLog

MUCH = 1 << 40


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub.create(tmp_path / "hub", 4, busy_timeout_s=0.05) as hub:
        yield hub


def send(hub: Hub, events: Any, **how: Any) -> tuple[Sent, ...]:
    return asyncio.run(hub.send(events, **how))


def refused(hub: Hub, events: Any, **how: Any) -> SendFailed:
    with pytest.raises(SendFailed) as raised:
        send(hub, events, **how)
    return raised.value


def bodies(hub: Hub, partition: int = 0) -> list[bytes]:
    log = hub.opened().log(partition)
    return [event.body for row in log.read(-1, MUCH, MUCH).rows for event in log.events(row)]


def writing_log(hub: Hub, partition: int = 0) -> PartitionLog:
    hub.opened().writer(partition)
    return hub.opened()._writers[partition][1]


class Commits:
    """The connection of a log whose commits go as the test says."""

    def __init__(
        self, log: PartitionLog, commit: Callable[[apsw.Connection], None], connection: apsw.Connection | None = None
    ) -> None:
        self._connection = connection or log._opened()
        self._commit = commit
        log._connection = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: str, *values: Any) -> Any:
        return self._commit(self._connection) if query == "COMMIT" else self._connection.execute(query, *values)


def is_fine(connection: apsw.Connection) -> None:
    connection.execute("COMMIT")


def is_durable(connection: apsw.Connection) -> None:
    """The commit is durable, and its answer an error."""
    connection.execute("COMMIT")
    raise apsw.IOError("disk I/O error")


def is_not_durable(connection: apsw.Connection) -> None:
    raise apsw.IOError("disk I/O error")


def is_full(connection: apsw.Connection) -> None:
    raise apsw.FullError("database or disk is full")


def fill(hub: Hub, partition: int) -> apsw.Connection:
    connection = writing_log(hub, partition)._opened()
    connection.execute(f"PRAGMA max_page_count={connection.pragma('page_count')}")
    return connection


def spread(count: int) -> list[Event]:
    """Events for all partitions, each with something that a full partition has no room for."""
    return [Event(b"%d" % n + bytes(100_000), f"home-{n}") for n in range(count)]


def test_a_batch_is_a_value_of_which_nothing_is_sent_yet(hub: Hub) -> None:
    batch = hub.batch([b"a", b"b", b"c"], partition=1)
    assert len(batch) == 3
    assert [event.body for event in batch] == [b"a", b"b", b"c"]
    assert repr(batch) == "Batch(3 events for partitions 1)"
    assert bodies(hub, 1) == []
    assert send(hub, hub.batch([])) == ()


def test_a_batch_that_is_sent_again_is_stored_once(hub: Hub) -> None:
    batch = hub.batch([b"a", b"b"], partition=1)
    assert send(hub, batch) == (("1", 0, 1),)
    send(hub, b"between", partition=1)
    assert send(hub, batch) == (("1", 0, 1),)
    assert bodies(hub, 1) == [b"a", b"b", b"between"]


def test_equal_batches_are_two(hub: Hub) -> None:
    for _ in range(2):
        send(hub, hub.batch(b"a", partition=0))
    assert bodies(hub) == [b"a", b"a"]


@pytest.mark.parametrize("how", [{"key": "k"}, {"partition": 1}])
def test_a_batch_takes_nothing_beside_it(hub: Hub, how: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="Pass no key, partition or number"):
        send(hub, hub.batch(b"a"), **how)


def test_a_failed_send_says_which_partitions_stored_their_part(hub: Hub) -> None:
    full = fill(hub, 2)
    error = refused(hub, spread(40))
    assert isinstance(error, StorageFull)
    assert isinstance(error, Transient)
    assert set(error.stored) == {"0", "1", "3"}
    assert {partition: type(cause) for partition, cause in error.not_stored.items()} == {"2": StorageFull}
    assert error.in_doubt == {}
    assert "1 of 4 partitions (2) did not confirm that they stored their events: The disk of" in str(error)
    stored = {number: bodies(hub, number) for number in range(4)}
    assert {number for number in range(4) if stored[number]} == {0, 1, 3}
    full.execute("PRAGMA max_page_count=100000")
    answers = send(hub, error.batch)
    assert {answer for answer in answers if answer.partition != "2"} == set(error.stored.values())
    for number in (0, 1, 3):
        assert bodies(hub, number) == stored[number]
    assert sum(len(bodies(hub, number)) for number in range(4)) == 40


def test_a_send_to_one_partition_fails_with_the_causes_own_words(hub: Hub) -> None:
    fill(hub, 2)
    error = refused(hub, bytes(1 << 20), partition=2)
    assert str(error).startswith("The disk of")
    assert set(error.not_stored) == {"2"}


@pytest.mark.parametrize("commit", [is_durable, is_not_durable])
def test_a_commit_that_fails_leaves_a_doubt_that_the_next_send_settles(
    hub: Hub, commit: Callable[[apsw.Connection], None]
) -> None:
    send(hub, b"before", partition=0)
    Commits(writing_log(hub), commit)
    error = refused(hub, [b"a", b"b"], partition=0)
    assert isinstance(error, SourceUnavailable)
    assert set(error.in_doubt) == {"0"}
    assert error.stored == error.not_stored == {}
    send(hub, b"between", partition=0)
    (sent,) = send(hub, error.batch)
    found = bodies(hub)
    assert found[sent.first : sent.last + 1] == [b"a", b"b"]
    assert sorted(found) == [b"a", b"b", b"before", b"between"]


def test_a_commit_that_a_full_disk_prevented_is_not_in_doubt(hub: Hub) -> None:
    Commits(writing_log(hub), is_full)
    assert set(refused(hub, b"a", partition=0).not_stored) == {"0"}


def test_a_doubt_stays_until_a_partition_answers(hub: Hub) -> None:
    Commits(writing_log(hub), is_durable)
    batch = refused(hub, b"a", partition=0).batch
    other = connect(writing_log(hub).path, busy_timeout_s=0.0)
    other.execute("BEGIN IMMEDIATE")
    error = refused(hub, batch)
    assert "is locked by" in str(error)
    assert set(error.in_doubt) == {"0"}
    other.close()
    assert send(hub, batch) == (("0", 0, 0),)


def test_a_batch_that_is_sent_many_times_at_once_is_stored_once(hub: Hub, tmp_path: Path) -> None:
    async def main() -> list[tuple[Sent, ...]]:
        async with Hub(tmp_path / "hub") as other:
            batch = hub.batch([b"a", b"b"], partition=0)
            return await asyncio.gather(*[one.send(batch) for _ in range(10) for one in (hub, other)])

    assert set(asyncio.run(main())) == {(Sent("0", 0, 1),)}
    assert bodies(hub) == [b"a", b"b"]


def test_a_large_batch_is_recognised_by_its_last_row(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow.embedded.hub.records.ROW_EVENTS", 4)
    Commits(writing_log(hub), is_durable)
    batch = refused(hub, [b"%d" % n for n in range(10)], partition=0).batch
    assert send(hub, batch) == (("0", 0, 9),)
    assert len(bodies(hub)) == 10


def in_doubt(hub: Hub) -> Batch:
    log = writing_log(hub)
    Commits(log, is_durable)
    error = refused(hub, b"a", partition=0)
    log.close()
    log._closed = False
    return error.batch  # type: ignore[no-any-return]


def test_only_so_many_rows_are_looked_through(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "SEARCHED_ROWS_MAX", 3)
    batch = in_doubt(hub)
    for _ in range(2):
        send(hub, b"later", partition=0)
    assert send(hub, batch) == (("0", 0, 0),)
    batch.stored.clear()
    send(hub, b"later", partition=0)
    error = refused(hub, batch)
    assert isinstance(error, BatchForgotten)
    assert set(error.in_doubt) == {"0"}
    assert "no longer knows whether this batch is stored" in str(error)
    assert len(bodies(hub)) == 4


def test_a_batch_whose_rows_retention_removed_is_forgotten(hub: Hub) -> None:
    batch = in_doubt(hub)
    send(hub, b"later", partition=0)
    writing_log(hub).remove_before(1)
    assert isinstance(refused(hub, batch), BatchForgotten)
    assert hub.info().partitions[0].count == 1


def test_one_that_is_forgotten_does_not_hinder_the_others(hub: Hub) -> None:
    batch = in_doubt(hub)
    send(hub, b"later", partition=0)
    writing_log(hub).remove_before(1)

    async def main() -> list[Any]:
        sends = [hub.send(batch), hub.send(b"b", partition=0), hub.send(b"c", partition=0)]
        return await asyncio.gather(*sends, return_exceptions=True)

    forgotten, *others = asyncio.run(main())
    assert isinstance(forgotten, BatchForgotten)
    assert {sent.first for (sent,) in others} == {2, 3}


def test_a_batch_in_a_log_that_was_restored_from_a_backup_is_recognised_from_there_on(hub: Hub) -> None:
    send(hub, [b"x"] * 5, partition=0)
    batch = hub.batch(b"a", partition=0)
    batch.parts[0].since = 7
    Commits(writing_log(hub), is_durable)
    assert refused(hub, batch).in_doubt
    assert send(hub, batch) == (("0", 5, 5),)


def test_a_batch_of_another_hub_is_refused(hub: Hub, tmp_path: Path) -> None:
    with Hub.create(tmp_path / "other", 4) as other, pytest.raises(Misconfigured, match="another hub"):
        send(other, hub.batch(b"a", partition=0))


def test_what_was_sent_is_protected_by_a_checksum(hub: Hub) -> None:
    batch = in_doubt(hub)
    with writing_log(hub)._use() as connection:
        connection.execute("UPDATE batches SET sends = CAST(x'90' || substr(sends, 2) AS BLOB)")
    error = refused(hub, batch)
    assert isinstance(error, Corrupt)
    assert "checksum of the recorded sends" in str(error)


def test_an_error_that_is_not_of_a_known_kind_is_reported_as_it_is(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(writing_log(hub), "append", broken)
    error = refused(hub, b"a", partition=0)
    assert isinstance(error.__cause__, RuntimeError)
    assert str(error) == "a mistake of ours"


def test_a_producer_tries_again_what_may_work_the_next_time(hub: Hub) -> None:
    async def main() -> tuple[Sent, ...]:
        blocked = connect(writing_log(hub).path, busy_timeout_s=0.0)
        blocked.execute("BEGIN IMMEDIATE")
        async with hub.producer() as sender:
            with pytest.raises(SendFailed):
                await hub.send(b"a", partition=0)
            sending = asyncio.create_task(sender.send([b"a", b"b"], partition=0))
            await asyncio.sleep(0)
            blocked.close()
            return await sending

    assert asyncio.run(main()) == (("0", 0, 1),)


def test_a_producer_gives_up(hub: Hub) -> None:
    async def main() -> None:
        blocked = connect(writing_log(hub).path, busy_timeout_s=0.0)
        blocked.execute("BEGIN IMMEDIATE")
        with pytest.raises(SourceUnavailable, match="is locked") as raised:
            await hub.producer(retry_s=0.1).send(b"a", partition=0)
        blocked.close()
        assert isinstance(raised.value, SendFailed)

    asyncio.run(main())


def test_a_producer_does_not_repeat_what_will_not_work(hub: Hub) -> None:
    async def main() -> None:
        with pytest.raises(Misconfigured, match="Cannot store these events"):
            await hub.producer(retry_s=60.0).send(Event(b"a", None, {"n": 1 << 70}))

    asyncio.run(main())


def test_whatever_commits_answer_all_is_stored_once_and_in_order(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "PAUSE_S", 0.0001)
    chance = random.Random(14)

    def commit(connection: apsw.Connection) -> None:
        chance.choices([is_fine, is_durable, is_not_durable, is_full], [4, 1, 1, 1])[0](connection)

    log = writing_log(hub)
    connect = log._connect
    # It is opened again after each error.
    monkeypatch.setattr(log, "_connect", lambda: Commits(log, commit, connect()))
    log._drop()

    async def main() -> None:
        async with hub.producer() as sender:
            for n in range(0, 300, 3):
                await asyncio.gather(*[sender.send(b"%d" % m, partition=0) for m in range(n, n + 3)])

    asyncio.run(main())
    found = [int(body) for body in bodies(hub)]
    assert sorted(found) == list(range(300))
    assert [n // 3 for n in found] == [n // 3 for n in range(300)]
