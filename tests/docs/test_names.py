"""What the documents name is there: tests, files, options, public names, commands. A rename is told here."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
import typer.main

import evenflow
from evenflow import Processor, changefeed
from evenflow import signals as signals
from evenflow.changefeed import ChangeFeedProcessor
from evenflow.changefeed.processor import NAMES, ChangeFeedOptions
from evenflow.cli.app import assembled
from evenflow.runtime.hold import StopReason
from evenflow.testing.simulated import checkers
from examples.home_security.accounts import HandledCounts
from examples.home_security.places import GROUPS
from examples.home_security.summary import Summary, summary_lines
from examples.home_security.truth import Verdict
from tests.docs.documents import ROOT, documents, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
INVARIANTS = (ROOT / "docs/explanation/invariants.md").read_text()
PROCESSOR = (ROOT / "docs/reference/processor.md").read_text()
CHANGEFEED = (ROOT / "docs/reference/changefeed.md").read_text()
REFERENCE = "\n".join(path.read_text() for path in sorted(ROOT.glob("docs/reference/*.md")))
CLI = (ROOT / "docs/reference/cli.md").read_text()

NAMED_TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")
NAMED_FILE = re.compile(r"`((?:src|tests|docs|benchmarks)/[\w/.-]+)`")


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_tests_and_files_that_are_named_are_there(document: Path) -> None:
    text = document.read_text()
    files = {ROOT / path for path in NAMED_FILE.findall(text)}
    assert [str(path) for path in files if not path.exists()] == []
    missing = [name for path, name in NAMED_TEST.findall(text) if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []


def test_every_invariant_names_its_checker_and_tests() -> None:
    section = ARCHITECTURE.partition("## What always holds\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| \*\*(.+?)\*\*.* \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert [number for number, *_ in rows] == [str(number) for number in range(1, 9)]
    assert [title for _, title, _, tests in rows if not NAMED_TEST.fullmatch(tests)] == []
    named = {name for *_, cell, _ in rows for name in re.findall(r"`(\w+)`", cell)}
    assert [title for _, title, cell, _ in rows if not re.findall(r"`\w+`", cell)] == []
    assert named - {found.__name__ for found in _checkers()} == set()


def test_every_promise_is_listed_with_its_checker_and_all_its_tests() -> None:
    promises = re.split(r"^\d+\. ", INVARIANTS, flags=re.MULTILINE)[1:]
    assert len(promises) == 15
    assert [promise.partition("\n")[0] for promise in promises if not NAMED_TEST.search(promise)] == []
    assert [promise.partition("\n")[0] for promise in promises if "*Checker:*" not in promise] == []
    names = [found.__name__ for found in _checkers() if found is not checkers.Violation]
    assert [name for name in names if f"*Checker:* `{name}`" not in INVARIANTS] == []
    section = ARCHITECTURE.partition("## What always holds\n")[2].partition("\n## ")[0]
    assert [test for test in NAMED_TEST.findall(section) if "`{}::{}`".format(*test) not in INVARIANTS] == []


def _checkers() -> list[type]:
    classes = inspect.getmembers(checkers, inspect.isclass)
    return [found for _, found in classes if found.__module__ == checkers.__name__]


def test_the_code_that_a_rule_names_is_there() -> None:
    section = ARCHITECTURE.partition("## The eleven rules, and where they live\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| .* \| (.*) \|$", section, re.MULTILINE)
    names = {name.split(".")[-1] for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    source = "\n".join(path.read_text() for path in (ROOT / "src/evenflow").rglob("*.py"))
    assert len(rows) == 11
    assert [name for name in names if not re.search(rf"\b{name}\b", source)] == []


def test_the_map_has_every_package() -> None:
    start = ARCHITECTURE.index("src/evenflow/\n")
    package_map = ARCHITECTURE[start : ARCHITECTURE.index("```", start)]
    source = ROOT / "src/evenflow"
    packages = [file.parent.relative_to(source) for file in source.glob("*/**/__init__.py")]
    names = [path for path in packages if len(path.parts) == 1 or path.parts[0] in ("stores", "sources", "operate")]
    assert [path.as_posix() for path in names if f"{path.name}/" not in package_map] == []


def test_every_option_of_a_processor_is_in_the_reference_with_its_default() -> None:
    options = list(inspect.signature(Processor).parameters.values())
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PROCESSOR, re.MULTILINE))
    assert [option.name for option in options if option.name not in rows] == []
    for option in options:
        if isinstance(option.default, int | float) and option.name != "prefetch_bytes":
            assert rows[option.name] == f"`{option.default}`"


def test_every_option_of_a_change_feed_processor_is_in_the_reference_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", CHANGEFEED, re.MULTILINE))
    *options, rest = inspect.signature(ChangeFeedProcessor).parameters.values()
    assert rest.kind is inspect.Parameter.VAR_KEYWORD
    assert [option.name for option in options if option.name not in rows] == []
    for option in options:
        if isinstance(option.default, int | float):
            assert rows[option.name] == f"`{option.default}`"
    same = {option.name: option.annotation for option in inspect.signature(Processor).parameters.values()}
    assert [
        name for name in ChangeFeedOptions.__annotations__ if f"`{name}`" not in CHANGEFEED or name not in same
    ] == []
    renamed = {"source", "store", "group", "start", "checkpoint", "concurrency", "heartbeat_s", "ttl_s", *NAMES}
    assert same.keys() - ChangeFeedOptions.__annotations__.keys() == renamed, (
        "a new option of a processor needs a place here"
    )


def test_every_public_name_is_in_the_reference() -> None:
    assert [name for name in evenflow.__all__ if not re.search(rf"\b{name}\b", REFERENCE)] == []
    assert [name for name in changefeed.__all__ if f"{name}" not in CHANGEFEED] == []


def test_every_signal_and_every_stop_reason_is_in_the_reference() -> None:
    kinds = [kind.__name__ for kind in signals.Signal.__subclasses__()]
    assert [name for name in kinds if f"`{name}`" not in PROCESSOR] == []
    assert [reason for reason in get_args(StopReason) if f'| `"{reason}"` |' not in PROCESSOR] == []


def test_every_command_and_option_is_in_the_reference() -> None:
    missing = []
    for name, command in _commands(typer.main.get_command(assembled()), "evenflow"):
        section = CLI.partition(f"## {name}\n")[2].partition("\n## ")[0]
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        missing += [f"{name} {option}" for option in options if option not in section and option != "--help"]
        missing += [name] if not section else []
    assert missing == []


def test_every_verb_of_the_makefile_is_documented_and_every_documented_verb_is_there() -> None:
    verbs = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"help"}
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    described = set(re.findall(r"^(?:\| `)?make ([a-z]+)\b", contributing, re.MULTILINE))
    assert verbs - described == set()
    named = {verb for path in documents() for verb in re.findall(r"`make ([a-z]+)\b", path.read_text())}
    assert named <= verbs


def test_the_sample_in_the_readme_is_what_the_demo_prints() -> None:
    block = (ROOT / "README.md").read_text().partition("```text\nevents sent")[2].partition("```")[0]
    verdict = Verdict(homes=10, expected=92, injected=2, counted=92, lost=0, twice=0, wrong=0, alerts=1, alerts_wrong=0)
    made = Summary(
        sent=90,
        verdict=verdict,
        tallies=dict.fromkeys(GROUPS, HandledCounts()),
        moves={group: {} for group in GROUPS},
        delays_s=dict.fromkeys(GROUPS, (1.0, 2.0)),
    )
    assert _shapes(f"events sent{block}".splitlines()) == _shapes(summary_lines(made))


def _shapes(lines: list[str]) -> list[str]:
    """Without figures, and without the kinds of moves, which are other ones each time."""
    return [" ".join(re.sub(r"\d[\d,.]*", "N", re.sub(r"(moves +\d+).*", r"\1", line)).split()) for line in lines]


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
    else:
        for part, child in children.items():
            yield from _commands(child, f"{name} {part}")
