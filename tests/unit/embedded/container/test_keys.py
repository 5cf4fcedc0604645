"""Partition keys are where the official client takes them to be."""

from __future__ import annotations

from typing import Any

import pytest
from azure.cosmos import PartitionKey
from hypothesis import given
from hypothesis import strategies as st

from evenflow.embedded.container.keys import MISSING, key_paths
from evenflow.embedded.container.ranges import even_bounds, middle
from evenflow.errors import Misconfigured

VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**60), 2**60),
    st.booleans(),
    st.none(),
    st.just(MISSING),
)


def theirs(paths: list[str], values: list[Any]) -> Any:
    """As azure-cosmos has it; there, what is missing is an empty object."""
    key: Any = PartitionKey(paths[0] if len(paths) == 1 else paths)
    return key._get_effective_partition_key_string([{} if value is MISSING else value for value in values])


@given(VALUES)
def test_a_key_is_hashed_as_the_official_client_does(value: Any) -> None:
    assert key_paths("/a").epk((value,)) == theirs(["/a"], [value])


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_so_is_a_hierarchical_one_and_its_prefixes(values: list[Any]) -> None:
    paths = ["/a", "/b", "/c"]
    assert key_paths(paths).epk(values) == theirs(paths, values)


@given(st.lists(VALUES, min_size=3, max_size=3), st.integers(1, 2))
def test_a_prefix_holds_the_keys_that_begin_with_it(values: list[Any], count: int) -> None:
    keys = key_paths(["/a", "/b", "/c"])
    low, high = keys.within(values[:count])
    assert low <= keys.epk(values) < high
    point = keys.within(values)
    assert point[0] <= keys.epk(values) < point[1]


@pytest.mark.parametrize(
    ("path", "document", "found"),
    [
        ("/a", {"a": 1}, 1),
        ("/a/b", {"a": {"b": "x"}}, "x"),
        ("/a/b", {"a": 1}, MISSING),
        ("/a", {}, MISSING),
        ("/a", {"a": None}, None),
        ('/"a/b"/c', {"a/b": {"c": True}}, True),
    ],
)
def test_a_key_is_found_in_its_document(path: str, document: dict[str, Any], found: object) -> None:
    assert key_paths(path).of(document) == (found,)


@pytest.mark.parametrize("path", ["a", "/", "", "/a//b", [], ["/a", "/b", "/c", "/d"]])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(Misconfigured):
        key_paths(path)


@pytest.mark.parametrize("document", [{"a": []}, {"a": {"b": 1}}])
def test_a_key_that_is_no_single_value_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="at /a"):
        key_paths("/a").of(document)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_ranges_of_even_size_cover_the_space(count: int) -> None:
    bounds = even_bounds(count)
    assert (bounds[0][0], bounds[-1][1], len(bounds)) == ("", "FF", count)
    assert [high for _, high in bounds[:-1]] == [low for low, _ in bounds[1:]]
    assert all(low < middle(low, high) < high for low, high in bounds)


def test_a_range_that_is_too_small_is_not_split() -> None:
    low = "0" * 31 + "1"
    with pytest.raises(Misconfigured, match="too small"):
        middle(low, "0" * 31 + "2")
