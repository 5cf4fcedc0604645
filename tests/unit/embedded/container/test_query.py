"""Queries: what they find, what is refused, and that no text whatever does anything else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenflow.embedded.container import Container
from evenflow.embedded.container.query import read_query
from evenflow.embedded.container.query_execution import QueryPosition
from evenflow.errors import Misconfigured, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "k": "x", "n": 1, "s": "alpha", "o": {"p": [1, 2]}, "b": True},
    {"id": "b", "k": "x", "n": 2, "s": "Beta", "z": None},
    {"id": "c", "k": "y", "n": 3, "s": "alphabet", "o": {"p": []}, "b": False},
    {"id": "d", "k": "y", "n": "3", "list": [{"m": 5}]},
    {"id": "e", "k": 1, "s": "it's", "n": -1.5},
]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with Container.create(tmp_path_factory.mktemp("query") / "c", "/k", 3) as made:
        made.upsert_many(DOCUMENTS)
        yield made


def ids(container: Container, where: str, **parameters: Any) -> str:
    named = {f"@{name}": value for name, value in parameters.items()}
    return "".join(sorted(container.query(f"SELECT VALUE c.id FROM c WHERE {where}", named)))


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("c.n = 1", "a"),
        ("c.n != 1", "bcde"),
        ("c.n <> 1", "bcde"),
        ("c.n < 3", "abe"),
        ("c.n >= 2", "bc"),
        ("c.n = '3'", "d"),
        ('c.n = "3"', "d"),
        ("c.n > '2'", "d"),
        ("c.n = -1.5", "e"),
        ("3 = c.n", "c"),
        ("c.s = 'it\\'s'", "e"),
        ("c.s = 'it\\u0027s'", "e"),
        ("c.b", "a"),
        ("c.b = true", "a"),
        ("c.b = 1", ""),
        ("NOT c.b", "c"),
        ("NOT NOT c.b", "a"),
        ("c.z = null", "b"),
        ("c.z = undefined", ""),
        ("c.missing = null", ""),
        ("c.missing != 1", ""),
        ("NOT (c.missing = 1)", ""),
        ("c.n = 1 OR c.n = 3", "ac"),
        ("c.n > 0 AND c.n < 3 OR c.id = 'e'", "abe"),
        ("c.n > 0 AND (c.n < 2 OR c.id = 'c')", "ac"),
        ("c.missing = 1 OR c.n = 1", "a"),
        ("c.id IN ('a', 'c', 'zz')", "ac"),
        ("c.id NOT IN ('a', 'c')", "bde"),
        ("c.n BETWEEN 2 AND 3", "bc"),
        ("c.n NOT BETWEEN 2 AND 3", "ae"),
        ("STARTSWITH(c.s, 'alpha')", "ac"),
        ("startswith(c.s, 'BETA', true)", "b"),
        ("ENDSWITH(c.s, 'bet')", "c"),
        ("CONTAINS(c.s, 'ph')", "ac"),
        ("IS_DEFINED(c.z)", "b"),
        ("NOT IS_DEFINED(c.o)", "bde"),
        ("IS_NULL(c.z)", "b"),
        ("IS_NUMBER(c.n)", "abce"),
        ("IS_STRING(c.n)", "d"),
        ("IS_BOOL(c.b)", "ac"),
        ("IS_ARRAY(c.o.p)", "ac"),
        ("IS_OBJECT(c.o)", "ac"),
        ("c.o.p[1] = 2", "a"),
        ("c['o'][\"p\"][0] = 1", "a"),
        ("c.list[0].m = 5", "d"),
        ("c.o = c.o", "ac"),
        ("c.k = 1", "e"),
        ("c.id = 'b'", "b"),
        ("c.id = 'b' AND c.n = 3", ""),
        ("c.id = 'b' OR c.id = 'c'", "bc"),
        ("NOT (c.id = 'b')", "acde"),
        ("(c.id = 'b')", "b"),
        ("c.id = 'missing'", ""),
        ("c.n = @n", "b"),
        ("c.o = @o", "c"),
        ("c.id = @id", "d"),
        ("c.n = 1 -- a remark", "a"),
        ("/* a remark */ c.n = 1", "a"),
        ("1 = 1", "abcde"),
        ("true", "abcde"),
        ("c.n", ""),
    ],
)
def test_conditions(container: Container, where: str, found: str) -> None:
    assert ids(container, where, n=2, o={"p": []}, id="d") == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT VALUE COUNT(1) FROM c", [5]),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.n > 1", [2]),
        ("select c.id, c.n from c where c.n = 1", [{"id": "a", "n": 1}]),
        ("SELECT c.n AS number, c.o.p FROM c WHERE c.id = 'a'", [{"number": 1, "p": [1, 2]}]),
        ("SELECT c.n number, c.id FROM c WHERE c.id = 'a'", [{"number": 1, "id": "a"}]),
        ("SELECT c.missing, c.id FROM c WHERE c.id = 'a'", [{"id": "a"}]),
        ("SELECT c['o']['p'] FROM c WHERE c.id = 'a'", [{"p": [1, 2]}]),
        ("SELECT VALUE c.o FROM c WHERE c.id = 'c'", [{"p": []}]),
        ("SELECT VALUE c.missing FROM c", []),
        ("SELECT VALUE c.from FROM c", []),
        ("SELECT VALUE r.id FROM root r WHERE r.n = 1", ["a"]),
        ("SELECT VALUE r.id FROM orders AS r WHERE r.n = 1", ["a"]),
        ("SELECT VALUE orders.id FROM orders WHERE orders.n = 1", ["a"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.id", ["a", "b", "c", "d", "e"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.n", ["e", "a", "b", "c", "d"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.n DESC", ["d", "c", "b", "a", "e"]),
        ("SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.b) ORDER BY c.b ASC", ["c", "a"]),
        ("SELECT TOP 2 VALUE c.id FROM c ORDER BY c.id DESC", ["e", "d"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.id OFFSET 1 LIMIT 2", ["b", "c"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.id OFFSET 4 LIMIT 2", ["e"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.id OFFSET 9 LIMIT 2", []),
        ("SELECT TOP 0 * FROM c", []),
    ],
)
def test_what_is_selected(container: Container, query: str, found: list[Any]) -> None:
    assert list(container.query(query)) == found


def test_a_query_may_be_of_one_key_or_of_one_range(container: Container) -> None:
    everything = "SELECT VALUE c.id FROM c"
    assert sorted(container.query(everything, key="y")) == ["c", "d"]
    by_range = [list(container.query(everything, range=one.id)) for one in container.ranges()]
    assert sorted(id for part in by_range for id in part) == ["a", "b", "c", "d", "e"]
    assert len([part for part in by_range if part]) > 1


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("SELECT DISTINCT c.a FROM c", "DISTINCT"),
        ("SELECT * FROM c JOIN x IN c.list", "JOIN"),
        ("SELECT * FROM x IN c.list", "IN"),
        ("SELECT * FROM c.list", "one container"),
        ("SELECT c.a FROM c GROUP BY c.a", "GROUP BY"),
        ("SELECT VALUE MAX(c.n) FROM c", "MAX"),
        ("SELECT COUNT(1) FROM c", "COUNT"),
        ("SELECT VALUE COUNT(c.a) FROM c", "COUNT"),
        ("SELECT TOP 1 VALUE COUNT(1) FROM c", "with COUNT"),
        ("SELECT c.n + 1 FROM c", "arithmetic"),
        ("SELECT 1 FROM c", "constants and expressions"),
        ("SELECT -1 FROM c", "constants and expressions"),
        ("SELECT 'a' AS b FROM c", "constants and expressions"),
        ("SELECT VALUE 1 FROM c", "constants and expressions"),
        ("SELECT VALUE @n FROM c", "constants and expressions"),
        ("SELECT c.id, null AS b FROM c", "constants and expressions"),
        ("SELECT (c.n) FROM c", "constants and expressions"),
        ("SELECT NOT c.b FROM c", "constants and expressions"),
        ("SELECT c.n = 1 AS b FROM c", "conditions in SELECT"),
        ("SELECT VALUE c.n > 1 FROM c", "conditions in SELECT"),
        ("SELECT c.b AND c.n FROM c", "conditions in SELECT"),
        ("SELECT * FROM c WHERE c.n + 1 = 2", "arithmetic"),
        ("SELECT * FROM c WHERE c.s LIKE 'a%'", "LIKE"),
        ("SELECT * FROM c WHERE c.s || 'x' = 'ax'", r"\|\|"),
        ("SELECT * FROM c WHERE (c.a ?? 1) = 1", r"\?\?"),
        ("SELECT * FROM c WHERE c.s NOT LIKE 'a%'", "LIKE"),
        ("SELECT * FROM c WHERE EXISTS(SELECT VALUE 1 FROM x IN c.list)", "subqueries"),
        ("SELECT * FROM (SELECT * FROM c)", "subqueries"),
        ("SELECT c.id, ARRAY(SELECT VALUE t FROM t IN c.tags) AS x FROM c", "subqueries"),
        ("SELECT * FROM c WHERE udf.mine(c.a)", "user-defined"),
        ("SELECT * FROM c WHERE LOWER(c.s) = 'a'", "LOWER"),
        ("SELECT * FROM c WHERE ARRAY_CONTAINS(c.list, 1)", "ARRAY_CONTAINS"),
        ("SELECT * FROM c WHERE c.list = [1]", "array literals"),
        ("SELECT * FROM c WHERE c.o = {'a': 1}", "object literals"),
        ("SELECT * FROM c ORDER BY c.a, c.b", "more than one path"),
        ("SELECT 1", "without FROM"),
        ("SELECT * FROM c WHERE NOT c.n = 1", "before a comparison"),
        ("SELECT * FROM c WHERE NOT c.n IN (1)", "before a comparison"),
        ("SELECT * FROM c WHERE c[c.a] = 1", "between"),
    ],
)
def test_unsupported_features_are_named(query: str, what: str) -> None:
    with pytest.raises(Unsupported, match=what):
        read_query(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "SELEC * FROM c",
        "SELECT FROM c",
        "SELECT * FROM",
        "SELECT * FROM c WHERE",
        "SELECT * FROM c WHERE c.n =",
        "SELECT * FROM c WHERE c.n = = 1",
        "SELECT * FROM c WHERE (c.n = 1",
        "SELECT * FROM c WHERE d.n = 1",
        "SELECT d.n FROM c",
        "SELECT * FROM c WHERE c.n = @missing",
        "SELECT * FROM c WHERE c.n = 'open",
        "SELECT * FROM c WHERE STARTSWITH(c.n)",
        "SELECT * FROM c WHERE c.n IN ()",
        "SELECT * FROM c ORDER c.n",
        "SELECT * FROM c LIMIT 1",
        "SELECT * FROM c OFFSET -1 LIMIT 1",
        "SELECT TOP x * FROM c",
        "SELECT TOP 1 * FROM c OFFSET 1 LIMIT 1",
        "SELECT c.n, c.n FROM c",
        "SELECT c.n AS FROM c",
        "SELECT c.n a b FROM c",
        "SELECT * FROM c; DROP TABLE documents",
        "SELECT * FROM c WHERE c.n = 1e999",
        "SELECT * FROM c WHERE " + "(" * 100 + "1" + ")" * 100,
        "SELECT * FROM c WHERE c.n = 1 c.m = 2",
        "SELECT * FROM c WHERE c.n = 1 /* open",
    ],
)
def test_an_invalid_query_is_refused(query: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        read_query(query)
    assert not isinstance(raised.value, Unsupported), raised.value


KNOWN = """
SELECT * VALUE COUNT ( ) 1 c . id FROM WHERE AND OR NOT IN BETWEEN = != < , [ ] 'x' "y" @p ORDER BY DESC TOP 3 OFFSET
LIMIT STARTSWITH IS_DEFINED null true undefined - + || ?? { } JOIN DISTINCT udf EXISTS LIKE AS n 1.5e3
"""
WORDS = st.sampled_from(KNOWN.split())
"""Known keywords in any order get deeper into the parser than random letters."""


@settings(max_examples=400)
@given(st.lists(WORDS, max_size=25).map(" ".join) | st.text(max_size=60))
@example("SELECT * FROM c WHERE ((((((((((")
@example("SELECT * FROM c WHERE NOT NOT NOT NOT NOT c.id")
def test_any_text_is_a_query_or_is_refused_with_a_sentence(query: str) -> None:
    _try(query)


@settings(max_examples=400)
@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_any_condition_is_one_or_is_refused_with_a_sentence(condition: str) -> None:
    _try(f"SELECT * FROM c WHERE {condition}")


def _try(text: str) -> None:
    try:
        query = read_query(text, {"@p": {"x": [1]}})
    except Misconfigured:
        return
    for document in DOCUMENTS:
        if query.matches is not None:
            query.matches(document)
        query.result(document)


def test_a_long_condition_has_no_limit_of_its_own(container: Container) -> None:
    assert ids(container, " OR ".join(["c.n = 7"] * 5_000 + ["c.n = 1"])) == "a"
    assert ids(container, " AND ".join(["c.n = 1"] * 5_000)) == "a"
    with pytest.raises(Misconfigured):
        read_query("SELECT * FROM c WHERE " + "/*" * 100_000)


@given(st.lists(st.integers(0, 20) | st.none() | st.booleans() | st.text(max_size=3), max_size=20), st.integers(1, 5))
@settings(max_examples=25)
def test_pages_of_an_order_are_the_order(values: list[Any], count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Container.create(Path(folder) / "c", "/k", 2) as container:
        container.upsert_many({"id": str(n), "k": n % 3, "v": value} for n, value in enumerate(values))
        whole = list(container.query("SELECT VALUE c.id FROM c ORDER BY c.v DESC"))
        query = read_query("SELECT VALUE c.id FROM c ORDER BY c.v DESC")
        position: QueryPosition | None = QueryPosition()
        found: list[str] = []
        while position is not None:
            page = container.documents.page(query, container.documents.interval(), position, max_items=count)
            assert len(page.results) <= count
            found += page.results
            position = page.position
        assert found == whole
        assert sorted(found) == sorted(str(n) for n in range(len(values)))
