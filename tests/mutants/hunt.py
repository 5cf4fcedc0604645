"""Tries many mutants, two at a time, and remembers what caught them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from tests.mutants import curated, generated
from tests.mutants.equivalents import EQUIVALENT
from tests.mutants.mutant import ROOT, SOURCE
from tests.mutants.trial import UNIT, Step, Verdict, failures, run, steps, try_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.mutants.mutant import Mutant

AT_ONCE = 2
CACHE = ROOT / ".pytest_cache" / "mutants.json"


class Tried(NamedTuple):
    mutant: Mutant
    verdict: Verdict

    @property
    def survived(self) -> bool:
        return self.verdict.caught_by is None


class Score(NamedTuple):
    tried: Sequence[Tried]
    equivalent: Sequence[Mutant]
    """Not tried: no test can notice them."""
    broken: Sequence[str]
    """Tests and worlds that fail without any mutant: they say nothing of one."""

    @property
    def survivors(self) -> list[Mutant]:
        return [one.mutant for one in self.tried if one.survived]

    @property
    def share(self) -> float:
        """Of those that are not equivalent, how many are caught."""
        return 1 - len(self.survivors) / len(self.tried) if self.tried else 0.0

    @property
    def cpu_s(self) -> float:
        return sum(one.verdict.cpu_s for one in self.tried)


def mutants() -> list[Mutant]:
    return [*curated.mutants(), *generated.chosen()]


def hunt(
    found: Sequence[Mutant],
    *,
    cached: bool = True,
    quick: bool = False,
    say: Callable[[Tried], None] = lambda tried: None,
) -> Score:
    """With `cached`, what was found out about this very tree is not tried again, and what caught a mutant in another
    tree is asked first."""
    tree, lock = digest(), Lock()
    known: dict[str, dict[str, object]] = _read() if cached else {}
    tried: list[Tried] = []

    trials = [mutant for mutant in found if mutant.name not in EQUIVALENT]
    trials.sort(key=lambda mutant: known.get(mutant.name, {}).get("caught_by") is not None)  # what takes long first
    if not quick and known.get("", {}).get("tree") != tree:
        known[""] = {"tree": tree, "broken": baseline()}
        _write(known)
    broken: list[str] = known.get("", {}).get("broken", [])  # type: ignore[assignment]

    def one(mutant: Mutant) -> None:
        entry = known.get(mutant.name, {})
        before = entry.get("caught_by")
        if entry.get("tree") == tree:
            verdict = Verdict(*(entry[name] for name in Verdict._fields))  # type: ignore[arg-type]
        else:
            verdict = try_out(mutant, str(before) if before is not None else None, broken=broken, quick=quick)
        with lock:
            if not quick or verdict.caught_by is not None:
                known[mutant.name] = {"tree": tree, **verdict._asdict()}
                _write(known)
            tried.append(Tried(mutant, verdict))
            say(tried[-1])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for ended in as_completed([pool.submit(one, mutant) for mutant in trials]):
            if ended.exception() is not None:
                pool.shutdown(cancel_futures=True)  # the trials themselves do not work
                ended.result()
    tried.sort(key=lambda one: one.mutant.name)
    return Score(tried, [mutant for mutant in found if mutant.name in EQUIVALENT], broken)


def baseline() -> list[str]:
    """What fails without any mutant."""
    needed = dict.fromkeys(chain.from_iterable(map(steps, generated.modules())))
    tests = sorted({file for step in needed if step.kind == "tests" for file in step.arguments})
    unmutated = [*(step for step in needed if step.kind == "worlds"), Step("tests", tuple(tests))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sorted(
            {name for ended in pool.map(lambda step: run("", None, step), unmutated) for name in failures(ended)}
        )


def digest() -> str:
    """Of all that a verdict depends on."""
    total = sha256()
    for folder in (SOURCE, UNIT / "core", UNIT / "runtime", UNIT / "stores"):
        for file in sorted(folder.rglob("*.py")):
            total.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def _read() -> dict[str, dict[str, object]]:
    return json.loads(CACHE.read_text()) if CACHE.exists() else {}


def _write(known: dict[str, dict[str, object]]) -> None:
    CACHE.parent.mkdir(exist_ok=True)
    new = Path(f"{CACHE}.{os.getpid()}")
    new.write_text(json.dumps(known, indent=1))
    new.replace(CACHE)
