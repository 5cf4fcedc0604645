"""A table as a source, without a server: its URL, its repr, and rows as events."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from evenflow.errors import Misconfigured, PositionOutOfRange, SourceUnavailable
from evenflow.model import Position
from evenflow.sources.postgresql.admin import opened
from evenflow.sources.postgresql.client import FeedHorizon
from evenflow.sources.postgresql.codec import every, latest
from evenflow.sources.postgresql.horizon import HorizonPoller
from evenflow.sources.postgresql.source import PostgreSQLTable, _number, from_url
from evenflow.sources.postgresql.trigger import KeyColumn, WatchedTable, trigger
from evenflow.urls import open_source

SECRET = "geheim!"
URL = "postgresql-table://anna:geheim%21@db.example:5433/shop?table=public.orders&sslmode=prefer"


def test_a_url_is_a_table_and_shows_no_password() -> None:
    source = open_source(URL)
    assert isinstance(source, PostgreSQLTable)
    assert repr(source) == "<PostgreSQLTable table public.orders of postgresql://db.example:5433/shop>"
    assert SECRET not in str(opened(URL))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql-table://anna:geheim!@db.example/shop",
        "postgresql-table://anna:geheim!@db.example/shop?table=",
        "postgresql-table://anna:geheim!@db.example/shop?table=orders&mode=some",
        "postgresql-table://anna:geheim!@db.example/shop?table=orders&schema=Mine",
        "postgresql-table://anna:geheim!@db.example/shop?table=orders&listen=perhaps",
        "postgresql-table://anna:geheim!@db.example/shop?table=orders&poll_s=0",
        "postgresql-table://anna:geheim!@db.example/shop?table=orders&poll_s=soon",
        "postgresql-table://anna:geheim!@db.example/shop?table=orders&no_such_option=1",
        "postgresql-table://anna:geheim!@[nonsense/shop?table=orders",
    ],
)
def test_a_wrong_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        from_url(url)
    assert SECRET not in str(refused.value)


class CountedPolls:
    """A feed without changes, which counts polls."""

    def __init__(self) -> None:
        self.times = 0
        self.newest = 0

    async def __call__(self, sleep_ms: int) -> FeedHorizon:
        self.times += 1
        return FeedHorizon(None, "made", "", 0, [self.newest], [self.newest], [self.newest], [0], False)

    async def tidy(self) -> None:
        pass


class Ringing:
    is_listening = True

    def begin(self) -> None:
        pass


@pytest.mark.parametrize("listener", [Ringing(), None])
def test_it_polls_every_poll_s_however_often_readers_wait(listener: Any) -> None:
    polls = CountedPolls()

    async def main() -> None:
        poller = HorizonPoller(polls, polls.tidy, listener, 30.0)
        loop = asyncio.get_running_loop()
        await poller.beyond(0, 0, loop.time() + 0.2)
        before = polls.times
        for _ in range(50):
            await poller.beyond(0, 0, loop.time() + 0.01, is_known=True)
        assert polls.times <= before + 3, "less and less often"
        polls.newest = 5
        poller.notify()
        async with asyncio.timeout(10.0):
            assert (await poller.beyond(0, 0, loop.time() + 20.0, is_known=True)).newest == [5]
        await poller.aclose(SourceUnavailable("closed"))

    asyncio.run(main())


def test_the_last_version_of_each_key_in_a_batch_is_returned() -> None:
    rows = [(1, 10, "a", b"1"), (2, 20, "b", b"2"), (4, 40, "a", b"4"), (5, 50, "b", None)]
    assert [(event.sequence, event.key, event.body) for event in latest(rows)] == [(4, "a", b"4")]
    assert [event.body for event in latest(rows[:2])] == [b"1", b"2"]
    emptied = (6, 60, None, None)
    assert latest([*rows, emptied]) == []
    assert [event.key for event in latest([*rows, emptied, (7, 70, "c", b"7")])] == ["c"]


def test_all_versions_have_the_format_of_cosmos() -> None:
    made, changed, removed, emptied, copied = every(
        [
            (6, 1_500_000, "a", b'{"n":0}', None, None, "i"),
            (7, 2_500_000, "a", b'{"n":1}', b'{"n":0}', 6, "u"),
            (9, 3_500_000, "a", None, b'{"n":1,"x":"a"}', 7, "d"),
            (10, 3_500_000, None, None, None, None, "t"),
            (11, 3_500_000, "b", b"{}", None, None, "r"),
        ],
        ["x"],
    )
    assert msgspec.json.decode(made.body) == {
        "current": {"n": 0},
        "metadata": {"operationType": "create", "lsn": 6, "crts": 1},
    }
    assert msgspec.json.decode(changed.body) == {
        "current": {"n": 1},
        "previous": {"n": 0},
        "metadata": {"operationType": "replace", "lsn": 7, "crts": 2, "previousImageLSN": 6},
    }
    whose = {"id": "a", "partitionKey": {"x": "a"}}
    assert msgspec.json.decode(removed.body) == {
        "current": {},
        "previous": {"n": 1, "x": "a"},
        "metadata": {"operationType": "delete", "lsn": 9, "crts": 3, "previousImageLSN": 7, **whose},
    }
    assert msgspec.json.decode(emptied.body)["metadata"]["operationType"] == "truncate"
    assert msgspec.json.decode(copied.body)["metadata"]["copied"]


def test_unusual_names_are_inserted_unchanged() -> None:
    key = (
        KeyColumn("a@b", '"a@b"', "pg_catalog.int4", "pg_catalog"),
        KeyColumn("c", "c", "public.citext", '"@schema@"'),
    )
    table = WatchedTable(1, 'public."@id@ $1"', is_partitioned=False, key=key, key_at="1 2", is_steady=True)
    text = trigger("feed", 3, table, 2, previous=True)
    assert 'AFTER INSERT OR UPDATE OR DELETE ON public."@id@ $1"' in text
    assert 'jsonb_build_array(OLD."a@b", OLD.c)::text' in text
    assert 'mine.c OPERATOR("@schema@".=) NEW.c' in text
    assert 'SECURITY INVOKER SET search_path = pg_catalog, "@schema@", pg_temp' in text


def test_an_offset_of_another_source_is_out_of_range() -> None:
    assert _number(Position("17")) == 17
    assert _number(Position("-1", -1)) == 0
    with pytest.raises(PositionOutOfRange, match="by another source"):
        _number(Position("abc"))
