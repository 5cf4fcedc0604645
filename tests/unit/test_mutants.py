"""The list of mutants is in step with the code, and a mutant is noticed."""

from __future__ import annotations

import pytest

from tests.mutants import curated, generated, hunt
from tests.mutants.equivalents import EQUIVALENT
from tests.mutants.mutant import Mutant, source_of
from tests.mutants.trial import Step, files_for, hinted, try_out


@pytest.mark.parametrize("rule", curated.RULES, ids=lambda rule: rule.name)
def test_a_rule_of_the_protocol_stands_in_its_function_exactly_once(rule: curated.Rule) -> None:
    """When its code changes, the rule in tests/mutants/curated.py changes with it."""
    mutant = curated.mutant_of(rule)
    assert mutant.source != source_of(mutant.module)
    compile(mutant.source, rule.module, "exec")


def test_there_are_enough_and_no_two_have_one_name() -> None:
    names = [mutant.name for mutant in hunt.mutants()]
    assert len(curated.RULES) >= 30
    assert len(set(names)) == len(names) >= 100


def test_what_is_called_equivalent_is_one_of_them_and_has_a_reason() -> None:
    assert set(EQUIVALENT) <= {mutant.name for mutant in hunt.mutants()}
    assert all(len(reason) > 40 for reason in EQUIVALENT.values())


def test_mutations_change_one_thing_and_say_what() -> None:
    source = "def ask(limit, *, more=True):\n    if limit is None:\n        return 0\n    return limit < 5 and more\n"
    found = generated.possible("core.some", source)
    assert [mutant.name for mutant in found] == [
        "core.some.ask: True -> False",
        "core.some.ask: if limit is None: return 0 -> pass",
        "core.some.ask: limit is None -> limit is not None",
        "core.some.ask: 0 -> 1",
        "core.some.ask: limit < 5 and more -> limit < 5 or more",
        "core.some.ask: limit < 5 and more -> more",
        "core.some.ask: limit < 5 and more -> limit < 5",
        "core.some.ask: limit < 5 -> limit <= 5",
        "core.some.ask: 5 -> 6",
    ]
    for mutant in found:
        compile(mutant.source, "some", "exec")
        assert sum(a != b for a, b in zip(mutant.source.splitlines(), source.splitlines(), strict=False)) >= 1


def test_a_mutants_name_and_place_in_the_choice_outlive_an_edit_elsewhere() -> None:
    source = "def ask(limit):\n    return limit < 5\n"
    before, after = (generated.possible("core.some", text) for text in (source, f"LIMIT = 1\n\n\n{source}"))
    assert {mutant.name: mutant.rank for mutant in before}.items() <= {
        mutant.name: mutant.rank for mutant in after
    }.items()


def test_a_mutant_is_noticed_and_the_unchanged_module_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of("core.numbers")
    [wrong] = [mutant for mutant in generated.possible("core.numbers", source) if "0 <= value" in mutant.name]
    own = Step("tests", ("tests/unit/core/test_checkpointing.py",))
    monkeypatch.setattr("tests.mutants.trial.steps", lambda module: [own])
    assert str(try_out(wrong).caught_by).startswith("tests/unit/core/test_checkpointing.py::")
    assert try_out(Mutant("none", "core.numbers", "nothing", source)).caught_by is None


@pytest.mark.parametrize("module", generated.modules())
def test_every_module_is_reached_by_tests(module: str) -> None:
    own, others = files_for(module)
    assert own or others


def test_what_caught_a_mutant_before_is_asked_first() -> None:
    assert hinted("world 85: partition 6 was handled twice") == [Step("worlds", ("85",))]
    assert hinted("tests/unit/core/test_view.py::test_one[a]") == [
        Step("tests", ("tests/unit/core/test_view.py::test_one[a]",))
    ]
    assert hinted(None) == hinted("import") == hinted("time limit (signal 9)") == []
