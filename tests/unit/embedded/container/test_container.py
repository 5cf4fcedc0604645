"""The container by itself: documents, times to live, retention, bad input, being deleted and made again."""

from __future__ import annotations

import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.embedded.container import MISSING, Container, splits
from evenflow.errors import (
    ContainerExists,
    Corrupt,
    DocumentMissing,
    Misconfigured,
    NotAContainer,
    PositionGone,
    PositionOutOfRange,
    RangeGone,
    SourceUnavailable,
)
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.embedded.container.write_queue import WriteTransaction

NOON_US = 1_700_000_000 * MICROSECONDS


class Wall:
    """A wall clock that the test turns by hand."""

    def __init__(self) -> None:
        self.now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        self.now_us += round(seconds * MICROSECONDS)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def container(tmp_path: Path, wall: Wall) -> Iterator[Container]:
    made = Container.create(tmp_path / "orders", "/k", default_ttl_s=-1, retention_s=60, wall_us=wall)
    with made:
        yield made


def kinds(container: Container, after: int | None = None) -> list[tuple[str, bool]]:
    return [(change.kind, change.expired) for change in container.feed("0", after, mode="all").changes]


def test_a_container_is_made_opened_and_described(tmp_path: Path, wall: Wall) -> None:
    path = tmp_path / "data" / "orders"
    with Container.create(path, ["/tenant", "/user"], 3, retention_s=None, wall_us=wall) as made:
        rid = made.info().rid
    with Container(path) as opened:
        found = opened.info()
    assert (found.name, found.rid, found.partition_key) == ("orders", rid, ("/tenant", "/user"))
    assert (found.created_at, found.retention_s, found.documents) == (
        datetime.fromtimestamp(1_700_000_000, UTC),
        None,
        0,
    )
    assert [one.id for one in found.ranges] == ["0", "1", "2"]
    assert repr(opened) == f"Container({str(path)!r})"


def test_a_document_has_what_cosmos_db_gives_it(container: Container) -> None:
    document = container.upsert({"id": "a", "k": "x", "_ts": 5, "_etag": "mine"})
    rid = container.info().rid
    assert document["_ts"] == 1_700_000_000
    assert document["_etag"].startswith('"')
    assert document["_etag"].endswith('"')
    assert document["_rid"].startswith(rid[:10])
    assert document["_self"] == f"dbs/{document['_self'].split('/')[1]}/colls/{rid}/docs/{document['_rid']}/"
    assert container.documents.id_of(document["_rid"]) == "a"
    again = container.upsert({"id": "a", "k": "x"})
    assert (again["_rid"], again["_etag"] != document["_etag"]) == (document["_rid"], True)
    container.delete("a", "x")
    assert container.upsert({"id": "a", "k": "x"})["_rid"] != document["_rid"]


def test_ids_are_unique_within_a_key(container: Container) -> None:
    container.insert({"id": "a", "k": "x"})
    container.insert({"id": "a", "k": "y"})
    container.insert({"id": "a"})
    container.insert({"id": "a", "k": None})
    assert container.read("a", MISSING)["id"] == "a"
    assert container.read("a", None)["k"] is None
    assert container.info().documents == 4


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"k": "x"},
        {"id": 1, "k": "x"},
        {"id": "", "k": "x"},
        {"id": "a/b", "k": "x"},
        {"id": "a" * 256, "k": "x"},
        {"id": "a", "k": ["x"]},
        {"id": "a", "k": "x", "v": float("nan")},
        {"id": "a", "k": "x", "v": {"w": [float("inf")]}},
        {"id": "a", "k": "x", "v": object()},
        {"id": "a", "k": "x", "v": "\ud800"},
        {"id": "a", "k": 10**400},
        {"id": "a", "k": "x", "v": deep(150)},
        {"id": "a", "k": "x", "ttl": 0},
        {"id": "a", "k": "x", "ttl": "soon"},
        {"id": "a", "k": "x", "v": "x" * (2 * 1024 * 1024)},
    ],
)
def test_what_is_no_document_is_refused(container: Container, document: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured):
        container.upsert(document)
    with pytest.raises(Misconfigured):
        container.upsert_many([{"id": "good", "k": "x"}, document])
    assert container.info().documents == 0


@pytest.mark.parametrize("given", ["text", ["a", "b"], None, 7])
def test_a_document_is_a_dictionary(container: Container, given: Any) -> None:
    with pytest.raises(Misconfigured, match="A document must be a dictionary"):
        container.upsert(given)
    with pytest.raises(Misconfigured, match="A document must be a dictionary"):
        container.upsert_many([given])


@pytest.mark.parametrize("key", [["x", "y"], [], {"a": 1}, [["x"]]])
def test_what_is_no_key_is_refused(container: Container, key: Any) -> None:
    with pytest.raises(Misconfigured):
        container.read("a", key)


def test_a_hierarchical_key_is_named_whole_and_queried_by_its_prefix(tmp_path: Path) -> None:
    with Container.create(tmp_path / "c", ["/tenant", "/user"], 4) as container:
        container.upsert_many({"id": str(n), "tenant": f"t{n % 2}", "user": n} for n in range(8))
        assert container.read("3", ["t1", 3])["user"] == 3
        with pytest.raises(Misconfigured, match="A document needs all of them"):
            container.read("3", ["t1"])
        assert sorted(container.query("SELECT VALUE c.id FROM c", key=["t1"])) == ["1", "3", "5", "7"]


def test_a_document_expires_and_that_is_a_change(container: Container, wall: Wall) -> None:
    container.upsert({"id": "a", "k": "x", "ttl": 5})
    container.upsert({"id": "b", "k": "x"})
    wall.pass_s(4)
    assert container.read("a", "x")["id"] == "a"
    wall.pass_s(1)
    with pytest.raises(DocumentMissing):
        container.read("a", "x")
    assert list(container.query("SELECT VALUE c.id FROM c")) == ["b"]
    assert [change.document["id"] for change in container.feed("0").changes if change.document] == ["b"]
    assert kinds(container) == [("create", False), ("create", False), ("delete", True)]


def test_an_expired_document_can_be_created_again(container: Container, wall: Wall) -> None:
    first = container.upsert({"id": "a", "k": "x", "ttl": 5})
    wall.pass_s(6)
    second = container.insert({"id": "a", "k": "x"})
    assert first["_rid"] != second["_rid"]
    assert kinds(container) == [("create", False), ("delete", True), ("create", False)]


def test_the_containers_time_holds_for_documents_without_one(tmp_path: Path, wall: Wall) -> None:
    with Container.create(tmp_path / "c", default_ttl_s=5, wall_us=wall) as container:
        container.upsert_many([{"id": "a"}, {"id": "b", "ttl": 20}, {"id": "c", "ttl": -1}])
        wall.pass_s(6)
        assert sorted(container.query("SELECT VALUE c.id FROM c")) == ["b", "c"]
        wall.pass_s(20)
        assert sorted(container.query("SELECT VALUE c.id FROM c")) == ["c"]
    with Container.create(tmp_path / "never", wall_us=wall) as container:
        container.upsert({"id": "a", "ttl": 1})
        wall.pass_s(10)
        assert container.read("a", "a")["ttl"] == 1


def test_retention_removes_old_versions_and_says_so(container: Container, wall: Wall) -> None:
    for number in range(3):
        container.upsert({"id": "a", "k": "x", "n": number})
    wall.pass_s(61)
    container.upsert({"id": "b", "k": "x"})
    container.trim()
    assert kinds(container) == [("create", False)]
    assert kinds(container, 3) == [("create", False)]
    with pytest.raises(PositionGone, match="no longer kept"):
        container.feed("0", 1, mode="all")
    assert len(container.feed("0", 1).changes) == 2
    first, second = container.split("0")
    for child in (first, second):
        with pytest.raises(PositionGone):
            container.feed(child.id, 1, mode="all")


def test_after_a_merge_each_part_has_the_floor_that_it_had(tmp_path: Path, wall: Wall) -> None:
    with Container.create(tmp_path / "c", "/k", 2, retention_s=60, wall_us=wall) as container:
        low, high = container.ranges()
        keys = {one.id: _key_in(container, one.id) for one in (low, high)}
        for _ in range(3):
            container.upsert({"id": "old", "k": keys[low.id]})
        wall.pass_s(61)
        container.upsert({"id": "young", "k": keys[high.id]})
        container.trim()
        child = container.merge(low.id, high.id)
        assert child.lsn == 3
        with pytest.raises(PositionGone):
            container.feed(child.id, 0, within=(low.min, low.max), mode="all")
        page = container.feed(child.id, 0, within=(high.min, high.max), mode="all")
        assert [change.document["id"] for change in page.changes if change.document] == ["young"]


def _key_in(container: Container, range_id: str) -> str:
    keys = container.opened().metadata.keys
    scope = container.documents.interval(range=range_id)
    return next(name for name in map(str, range(99)) if scope.low <= keys.epk((name,)) < scope.high)


def test_a_page_does_not_end_inside_an_lsn(tmp_path: Path) -> None:
    with Container.create(tmp_path / "c", "/k", 4) as container:
        for one in container.ranges():
            container.upsert_many({"id": str(n), "k": _key_in(container, one.id)} for n in range(3))
        merged = container.merge(container.merge("0", "1").id, container.merge("2", "3").id)
        after, seen = 0, 0
        while True:
            page = container.feed(merged.id, after, max_items=1)
            if not page.changes:
                break
            assert [change.lsn for change in page.changes] == [after + 1] * 4
            after, seen = page.after, seen + len(page.changes)
        assert (seen, after) == (12, 3)


def test_a_page_has_bounds(container: Container) -> None:
    container.upsert_many({"id": str(n), "k": "x", "v": "x" * 1000} for n in range(20))
    assert len(container.feed("0", max_items=7).changes) == 7
    assert 1 < len(container.feed("0", max_bytes=5_000).changes) < 5
    assert len(container.feed("0", max_bytes=1).changes) == 1
    page = container.feed("0", 13)
    assert (len(page.changes), page.after, page.is_last) == (7, 20, True)


def test_changes_since_a_time(container: Container, wall: Wall) -> None:
    container.upsert({"id": "a", "k": "x"})
    wall.pass_s(10)
    container.upsert({"id": "b", "k": "x"})
    since = datetime.fromtimestamp((NOON_US + 10 * MICROSECONDS) / MICROSECONDS, UTC)
    assert [change.document["id"] for change in container.feed("0", since=since).changes if change.document] == ["b"]
    with pytest.raises(Misconfigured, match="time zone"):
        container.feed("0", since=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"range": "9"}, Misconfigured),
        ({"range": "x"}, Misconfigured),
        ({"range": "0", "after": 99}, PositionOutOfRange),
        ({"range": "0", "mode": "some"}, Misconfigured),
        ({"range": "0", "max_items": 0}, Misconfigured),
        ({"range": "0", "within": ("", "FFF")}, Misconfigured),
    ],
)
def test_a_feed_that_cannot_be_is_refused(
    container: Container, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        container.feed(**arguments)


def test_without_a_log_there_are_no_versions(tmp_path: Path) -> None:
    with Container.create(tmp_path / "c", retention_s=0) as container:
        container.upsert({"id": "a"})
        assert len(container.feed("0").changes) == 1
        with pytest.raises(Misconfigured, match="retention_s=0"):
            container.feed("0", mode="all")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ranges": 0}, "ranges"),
        ({"ranges": 9_999}, "ranges"),
        ({"partition_key": "k"}, "not a valid partition key path"),
        ({"default_ttl_s": 0}, "default_ttl_s"),
        ({"retention_s": -1}, "retention_s"),
    ],
)
def test_a_container_that_cannot_be_is_refused(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        Container.create(tmp_path / "c", **arguments)


def test_places_that_are_taken_or_empty(tmp_path: Path) -> None:
    with Container.create(tmp_path / "c") as container:
        container.split(container.ranges()[0].id)
    with pytest.raises(ContainerExists):
        Container.create(tmp_path / "c")
    with pytest.raises(NotAContainer):
        Container(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    with pytest.raises(Misconfigured, match="not an empty folder"):
        Container.create(tmp_path / "full")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "container.sqlite").write_bytes(b"no database at all, but long enough" * 100)
    with pytest.raises(Corrupt):
        Container(tmp_path / "broken")


@pytest.mark.parametrize("at", ["", "FF", "1", "zz", "ff", "0g"])
def test_a_cut_that_cannot_be_is_refused(container: Container, at: str) -> None:
    with pytest.raises(Misconfigured, match="Cannot split the range"):
        container.split("0", at)
    assert len(container.ranges()) == 1


def test_writers_elsewhere_wait_for_a_split_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = Container.create(tmp_path / "orders", "/customer")
    container.upsert({"id": "a", "customer": "x"})
    began, may_end, pass_on = Event(), Event(), splits._move_contents

    def slowly(*given: Any) -> None:
        began.set()
        assert may_end.wait(30)
        pass_on(*given)

    monkeypatch.setattr(splits, "_move_contents", slowly)
    impatient = Container(tmp_path / "orders", busy_timeout_s=0.05)
    with ThreadPoolExecutor(2) as threads:
        split = threads.submit(container.split, "0")
        assert began.wait(30)
        written = threads.submit(impatient.upsert, {"id": "b", "customer": "x"})
        waited = not wait([written], 0.5).done  # many times what it would wait for others
        may_end.set()
        assert waited
        assert written.result(30)["id"] == "b"
        children = {one.id for one in split.result(30)}
    assert {one.id for one in container.ranges()} == children
    assert sorted(container.query("SELECT VALUE c.id FROM c")) == ["a", "b"]
    impatient.close()
    container.close()


def test_a_lock_without_a_sign_is_not_waited_for(tmp_path: Path) -> None:
    container = Container.create(tmp_path / "orders", "/customer")
    began, may_end = Event(), Event()
    impatient = Container(tmp_path / "orders", busy_timeout_s=0.05)

    def slowly(transaction: WriteTransaction) -> None:
        began.set()
        assert may_end.wait(30)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(container.opened().write_queue.write, slowly)
        assert began.wait(30)
        with pytest.raises(SourceUnavailable, match="locked"):
            impatient.upsert({"id": "b", "customer": "x"})
        may_end.set()
        writing.result(30)
    impatient.close()
    container.close()


def test_only_neighbours_are_merged(tmp_path: Path) -> None:
    with Container.create(tmp_path / "c", ranges=3) as container:
        with pytest.raises(Misconfigured, match="not adjacent"):
            container.merge("0", "2")
        with pytest.raises(Misconfigured, match="not adjacent"):
            container.merge("0", "0")
        container.merge("0", "1")
        with pytest.raises(RangeGone) as gone:
            container.merge("1", "2")
        assert gone.value.children == ("3",)


def test_a_container_that_is_deleted_and_made_again_is_another(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with Container.create(path) as container:
        container.upsert({"id": "a"})
        rid = container.info().rid
        shutil.rmtree(path)
        with pytest.raises(SourceUnavailable, match="deleted while it was in use"):
            container.read("a", "a")
        with pytest.raises(SourceUnavailable):
            container.upsert({"id": "a"})
        Container.create(path).close()
        assert container.info().rid != rid
        with pytest.raises(DocumentMissing):
            container.read("a", "a")


def test_after_close_every_use_says_so(container: Container) -> None:
    container.close()
    container.close()
    for use in (container.ranges, container.info, lambda: container.upsert({"id": "a"})):
        with pytest.raises(Misconfigured, match="is closed"):
            use()


def test_many_threads_write_at_once_and_every_change_has_its_own_lsn(tmp_path: Path) -> None:
    with Container.create(tmp_path / "c", "/k") as container, ThreadPoolExecutor(12) as threads:

        def write(number: int) -> None:
            if number % 10:
                container.upsert({"id": str(number), "k": number % 7})
            else:
                # Of those that share a transaction, one that is refused does no harm to the others.
                with pytest.raises(DocumentMissing):
                    container.replace({"id": str(number), "k": "missing"})

        list(threads.map(write, range(600)))
        changes = container.feed("0", mode="all", max_items=1_000).changes
        assert [change.lsn for change in changes] == list(range(1, 541))
        assert container.info().documents == 540


def test_who_waits_is_woken_by_a_write_and_by_a_split(container: Container) -> None:
    async def main() -> None:
        assert await container.wait("0", 0, 0.01) is False
        waiting = asyncio.create_task(container.wait("0", 0, 30))
        await asyncio.to_thread(container.upsert, {"id": "a", "k": "x"})
        assert await waiting is True
        waiting = asyncio.create_task(container.wait("0", 1, 30))
        await asyncio.to_thread(container.split, "0")
        assert await waiting is True

    asyncio.run(main())


def test_what_is_of_a_newer_evenflow_is_refused(tmp_path: Path) -> None:
    import apsw

    Container.create(tmp_path / "c").close()
    connection = apsw.Connection(os.fspath(tmp_path / "c" / "container.sqlite"))
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(Misconfigured, match="newer evenflow"):
        Container(tmp_path / "c")
