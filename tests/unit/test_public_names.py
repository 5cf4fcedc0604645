"""The public names: complete, and each of them there. (The linter sorts them.)"""

from __future__ import annotations

from types import ModuleType

import pytest

import evenflow
from evenflow import errors


def test_the_list_names_nothing_twice() -> None:
    assert len(evenflow.__all__) == len(set(evenflow.__all__))


@pytest.mark.parametrize("name", evenflow.__all__)
def test_each_name_resolves(name: str) -> None:
    assert getattr(evenflow, name) is not None


def test_the_list_is_complete() -> None:
    public = {
        name for name, value in vars(evenflow).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(evenflow.__all__)


def test_every_error_that_one_may_want_to_catch_is_public() -> None:
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.EvenflowError)
    }
    assert kinds <= set(evenflow.__all__)


@pytest.mark.parametrize("name", [name for name in evenflow.__all__ if isinstance(getattr(evenflow, name), type)])
def test_each_class_says_what_it_is(name: str) -> None:
    assert (getattr(evenflow, name).__doc__ or "").strip()


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """The docstring of the module draws the tree; a new error belongs into it, at its place."""
    drawn: dict[str, str] = {}
    branch: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        stem, dash, rest = line.partition("── ")
        name = (rest if dash else line).strip().split(" ")[0]
        if dash or name == "EvenflowError":
            depth = (len(stem) - 1) // 4 if dash else 0
            branch[depth:] = [name]
            if depth:
                drawn[name] = branch[depth - 1]
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    grown = {kind.__name__: kind.__bases__[0].__name__ for kind in kinds if kind is not errors.EvenflowError}
    assert drawn == grown


@pytest.mark.parametrize(
    "kind", [value for value in vars(errors).values() if isinstance(value, type)], ids=lambda kind: str(kind.__name__)
)
def test_an_error_says_by_itself_what_it_is(kind: type[errors.EvenflowError]) -> None:
    assert str(kind()) == (kind.__doc__ or "").strip().split("\n")[0]
    assert str(kind("something else")) == "something else"
