"""What a table as a source decides without a server: its URL, what it shows of it, and rows as events."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from evenflow.errors import Misconfigured, PositionOutOfRange, SourceUnavailable
from evenflow.model import Position
from evenflow.sources.postgresql.admin import opened
from evenflow.sources.postgresql.client import Look
from evenflow.sources.postgresql.codec import every, latest
from evenflow.sources.postgresql.horizon import Tide
from evenflow.sources.postgresql.source import PostgreSQLTable, _number, from_url
from evenflow.sources.postgresql.trigger import Column, Table, trigger
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
def test_a_wrong_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(Misconfigured) as told:
        from_url(url)
    assert SECRET not in str(told.value)


class Looked:
    """A feed that has nothing, and how often somebody looked."""

    def __init__(self) -> None:
        self.times = 0
        self.newest = 0

    async def __call__(self, sleep_ms: int) -> Look:
        self.times += 1
        return Look(None, "made", "", 0, [self.newest], [self.newest], [self.newest], [0], False)

    async def tidy(self) -> None:
        pass


class Ringing:
    is_listening = True

    def begin(self) -> None:
        pass


@pytest.mark.parametrize("listener", [Ringing(), None])
def test_it_is_looked_every_poll_s_however_often_readers_ask(listener: Any) -> None:
    looked = Looked()

    async def main() -> None:
        tide = Tide(looked, looked.tidy, listener, 30.0)
        loop = asyncio.get_running_loop()
        await tide.beyond(0, 0, loop.time() + 0.2)
        before = looked.times
        for _ in range(50):
            await tide.beyond(0, 0, loop.time() + 0.01, is_known=True)
        assert looked.times <= before + 3, "less and less often"
        looked.newest = 5
        tide.ring()
        async with asyncio.timeout(10.0):
            assert (await tide.beyond(0, 0, loop.time() + 20.0, is_known=True)).newest == [5]
        await tide.aclose(SourceUnavailable("closed"))

    asyncio.run(main())


def test_of_a_batch_the_last_version_of_each_key_is_given() -> None:
    rows = [(1, 10, "a", b"1"), (2, 20, "b", b"2"), (4, 40, "a", b"4"), (5, 50, "b", None)]
    assert [(event.sequence, event.key, event.body) for event in latest(rows)] == [(4, "a", b"4")]
    assert [event.body for event in latest(rows[:2])] == [b"1", b"2"]
    emptied = (6, 60, None, None)
    assert latest([*rows, emptied]) == []
    assert [event.key for event in latest([*rows, emptied, (7, 70, "c", b"7")])] == ["c"]


def test_all_versions_are_said_in_the_words_of_cosmos() -> None:
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


def test_an_odd_name_is_filled_in_as_it_is() -> None:
    key = (
        Column("a@b", '"a@b"', "pg_catalog.int4", "pg_catalog"),
        Column("c", "c", "public.citext", '"@schema@"'),
    )
    table = Table(1, 'public."@id@ $1"', is_partitioned=False, key=key, key_at="1 2", is_steady=True)
    text = trigger("feed", 3, table, 2, previous=True)
    assert 'AFTER INSERT OR UPDATE OR DELETE ON public."@id@ $1"' in text
    assert 'jsonb_build_array(OLD."a@b", OLD.c)::text' in text
    assert 'mine.c OPERATOR("@schema@".=) NEW.c' in text
    assert 'SECURITY INVOKER SET search_path = pg_catalog, "@schema@", pg_temp' in text


def test_an_offset_of_another_source_is_out_of_range() -> None:
    assert _number(Position("17")) == 17
    assert _number(Position("-1", -1)) == 0
    with pytest.raises(PositionOutOfRange, match="another source's"):
        _number(Position("abc"))
