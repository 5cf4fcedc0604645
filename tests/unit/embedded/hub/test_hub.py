from __future__ import annotations

import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow.embedded.hub import Hub
from evenflow.errors import (
    Corrupt,
    EvenflowError,
    HubExists,
    Misconfigured,
    NotAHub,
    SourceUnavailable,
    StorageFull,
)
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from pathlib import Path

NOON_US = 1_700_000_000 * MICROSECONDS


class Wall:
    """A wall clock to turn by hand."""

    def __init__(self) -> None:
        self.now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us


def send(hub: Hub, events: Any, partition: int = 0) -> None:
    asyncio.run(hub.send(events, partition=partition))


def test_a_hub_is_made_opened_and_described(tmp_path: Path) -> None:
    wall = Wall()
    with Hub.create(tmp_path / "data" / "homes", 3, retention_s=60, retention_bytes=3000, wall_us=wall) as made:
        send(made, [b"a", b"b"], 1)
    with Hub(str(tmp_path / "data" / "homes")) as hub:
        info = hub.info()
    assert (info.name, info.path) == ("homes", str(tmp_path / "data" / "homes"))
    assert (info.retention_s, info.retention_bytes) == (60, 3000)
    assert info.created_at == datetime.fromtimestamp(NOON_US / MICROSECONDS, UTC)
    empty, used, _ = info.partitions
    assert (empty.id, empty.oldest, empty.newest, empty.count, empty.newest_at) == ("0", 0, -1, 0, None)
    assert (used.id, used.oldest, used.newest, used.count) == ("1", 0, 1, 2)
    assert used.size_bytes > 0
    assert used.newest_at == info.created_at


def test_a_name_may_be_given_and_each_making_is_another(tmp_path: Path) -> None:
    infos = []
    for _ in range(2):
        with Hub.create(tmp_path / "hub", 1, name="sensors") as hub:
            infos.append(hub.info())
        shutil.rmtree(tmp_path / "hub")
    assert [info.name for info in infos] == ["sensors", "sensors"]
    assert infos[0].made != infos[1].made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 0}, "1 to 4096 partitions, not 0"),
        ({"partitions": 5000}, "1 to 4096 partitions, not 5000"),
        ({"retention_s": 0}, "retention_s"),
        ({"retention_bytes": -1}, "retention_bytes"),
    ],
)
def test_wrong_settings_make_no_hub(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        Hub.create(tmp_path / "hub", **options)
    assert not (tmp_path / "hub").exists()


def test_a_hub_is_not_made_over_something_else(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 1) as hub:
        before = hub.info()
        with pytest.raises(HubExists, match=r"A hub already exists at"):
            Hub.create(tmp_path / "hub", 1)
        assert hub.info() == before
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo.jpg").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(Misconfigured, match="is not an empty folder"):
            Hub.create(tmp_path / name, 1)
    with pytest.raises(EvenflowError, match="file"):
        Hub.create(tmp_path / "file" / "below", 1)


def test_an_empty_folder_and_a_half_made_hub_become_hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    Hub.create(tmp_path / "empty", 1).close()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("evenflow.embedded.hub.metadata._insert", dies)
        with pytest.raises(KeyboardInterrupt):
            Hub.create(tmp_path / "hub", 2)
    with pytest.raises(NotAHub, match="its creation was interrupted"):
        Hub(tmp_path / "hub")
    with Hub.create(tmp_path / "hub", 2) as hub:
        send(hub, b"a", 1)
        assert [partition.count for partition in hub.info().partitions] == [0, 1]


def test_of_many_that_make_a_hub_at_once_one_succeeds(tmp_path: Path) -> None:
    def make(_: int) -> str:
        try:
            Hub.create(tmp_path / "hub", 2).close()
        except HubExists:
            return "exists"
        return "made"

    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(make, range(6)))
    assert sorted(outcomes) == ["exists"] * 5 + ["made"]
    with Hub(tmp_path / "hub") as hub:
        send(hub, b"a")


def test_a_path_that_is_no_hub_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAHub, match=r"the folder does not exist\. Create one with `evenflow hub create`"):
        Hub(tmp_path / "nothing")
    with pytest.raises(NotAHub, match="the path is a file"):
        Hub(tmp_path / "file")
    with pytest.raises(NotAHub, match=r"the folder has no hub\.sqlite"):
        Hub(tmp_path / "empty")
    assert os.listdir(tmp_path / "empty") == []


def test_a_foreign_or_damaged_or_newer_database_is_no_hub_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "hub" / "hub.sqlite"
    path.parent.mkdir()
    foreign = apsw.Connection(str(path))
    foreign.execute("PRAGMA application_id=7; CREATE TABLE t (a)")
    foreign.close()
    with pytest.raises(NotAHub, match="of another program, not a hub"):
        Hub(path.parent)
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(Corrupt, match=r"hub\.sqlite is damaged"):
        Hub(path.parent)
    shutil.rmtree(path.parent)
    Hub.create(path.parent, 1).close()
    newer = apsw.Connection(str(path))
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(Misconfigured, match=r"newer evenflow \(format 99, supported: 2\)\. Upgrade"):
        Hub(path.parent)


def test_partitions_grow_and_everybody_sees_it(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 2) as hub, Hub(tmp_path / "hub") as other:
        assert hub.add_partitions(3) == 5
        assert other.opened().metadata().partitions == 5
        send(other, b"a", 4)
        assert hub.info().partitions[4].count == 1
        with pytest.raises(Misconfigured, match="only grow"):
            hub.add_partitions(0)
        with pytest.raises(Misconfigured, match="1 to 4096"):
            hub.add_partitions(5000)


def test_two_that_grow_a_hub_at_once_both_do(tmp_path: Path) -> None:
    Hub.create(tmp_path / "hub", 1).close()

    def grow(_: int) -> None:
        with Hub(tmp_path / "hub") as hub:
            hub.add_partitions(2)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(grow, range(4)))
    with Hub(tmp_path / "hub") as hub:
        assert len(hub.info().partitions) == 9
        assert [partition.problem for partition in hub.info().partitions] == [""] * 9


def test_what_a_crashed_growth_left_is_replaced(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 1) as hub:
        (tmp_path / "hub" / "partitions" / "00001.sqlite").write_bytes(b"half")
        hub.add_partitions(1)
        send(hub, b"a", 1)


def test_writers_trim_what_is_too_old(tmp_path: Path) -> None:
    wall = Wall()
    with Hub.create(tmp_path / "hub", 1, retention_s=60, wall_us=wall) as hub:
        send(hub, [b"a", b"b"])
        wall.now_us += 30 * MICROSECONDS
        send(hub, b"c")
        wall.now_us += 40 * MICROSECONDS
        send(hub, b"d")
        hub.close()
    with Hub(tmp_path / "hub") as hub:
        assert (hub.info().partitions[0].oldest, hub.info().partitions[0].newest) == (2, 3)


def test_writers_keep_to_the_size(tmp_path: Path) -> None:
    wall = Wall()
    with Hub.create(tmp_path / "hub", 2, retention_bytes=100_000, wall_us=wall) as hub:
        for _ in range(100):
            wall.now_us += MICROSECONDS
            send(hub, [bytes(1000)] * 10)
    with Hub(tmp_path / "hub") as hub:
        (partition, _) = hub.info().partitions
    assert partition.newest == 999
    # Its share, and at most the last send: a trim that was late for one may leave the next to a later one.
    assert 30_000 < partition.size_bytes <= 50_000 + 11_000


def test_trim_removes_all_at_once_and_sequences_go_on(tmp_path: Path) -> None:
    wall = Wall()
    with Hub.create(tmp_path / "hub", 2, retention_s=60, wall_us=wall) as hub:
        for _ in range(200):
            send(hub, b"x")
        wall.now_us += 100 * MICROSECONDS
        hub.trim()
        assert hub.info().partitions[0].count == 0
        assert asyncio.run(hub.send(b"y", partition=0))[0].first == 200


def test_without_retention_everything_stays(tmp_path: Path) -> None:
    wall = Wall()
    with Hub.create(tmp_path / "hub", 1, wall_us=wall) as hub:
        send(hub, b"x")
        wall.now_us += 10_000_000 * MICROSECONDS
        hub.trim()
        assert hub.info().partitions[0].count == 1


def test_one_damaged_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 3) as hub:
        for partition in range(3):
            send(hub, b"x", partition)
    with (tmp_path / "hub" / "partitions" / "00001.sqlite").open("r+b") as file:
        file.truncate(1000)
    with Hub(tmp_path / "hub") as hub:
        with pytest.raises(Corrupt, match=r"00001\.sqlite"):
            send(hub, b"y", 1)
        send(hub, b"y", 2)
        info = hub.info()
    assert [partition.count for partition in info.partitions] == [1, 0, 2]
    assert "00001.sqlite is damaged" in info.partitions[1].problem
    assert info.partitions[1].newest is None


def test_a_deleted_hub_takes_nothing_and_a_new_one_is_used(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 1) as hub:
        send(hub, b"a")
        made = hub.info().made
        shutil.rmtree(tmp_path / "hub")
        for use in (lambda: send(hub, b"lost?"), hub.info):
            with pytest.raises(SourceUnavailable, match="was deleted while it was in use"):
                use()
        with Hub.create(tmp_path / "hub", 2):
            send(hub, b"b", 1)
            assert hub.info().made != made
            assert [partition.count for partition in hub.info().partitions] == [0, 1]


def test_a_hub_that_was_moved_aside_takes_nothing(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 1) as hub:
        send(hub, b"a")
        (tmp_path / "hub").rename(tmp_path / "aside")
        with Hub.create(tmp_path / "hub", 1):
            send(hub, b"b")
            assert hub.info().partitions[0].count == 1
    with Hub(tmp_path / "aside") as old:
        assert old.info().partitions[0].count == 1


def test_a_full_disk_is_storage_full_and_nothing_is_half_written(tmp_path: Path) -> None:
    """What a full disk answers, from SQLite's own limit; the integration tests have a disk that is really full."""
    with Hub.create(tmp_path / "hub", 1) as hub:
        send(hub, b"a")
        _, log = hub.opened()._writers[0]
        connection = log._opened()
        connection.execute(f"PRAGMA max_page_count={connection.pragma('page_count')}")
        with pytest.raises(StorageFull, match=r"The disk of .* is full"):
            send(hub, [bytes(100_000)] * 3)
        connection.execute("PRAGMA max_page_count=100000")
        assert asyncio.run(hub.send(b"b", partition=0))[0].first == 1
        assert hub.info().partitions[0].count == 2


def test_a_hub_says_which_it_is(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "hub", 1) as hub:
        assert repr(hub) == f"Hub('{tmp_path / 'hub'}')"
