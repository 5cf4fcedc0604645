"""One mutant on trial: is there a test, or a simulated world, that notices it?

Each step is a process of its own, and the first that notices ends the trial. One that takes too long has noticed, too:
the unchanged code passes every step in a fraction of the time (see `hunt.check_baseline`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, NamedTuple

from tests.mutants.mutant import ROOT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tests.mutants.mutant import Mutant

WORLDS = 100
QUICK_STEPS = 2
FIRST_WORLDS = 30
"""These find most of what worlds find, in less time than all unit tests take."""
WALL_MOST_S = 1_200.0
TEST_MOST_S = 120
"""Of the wall clock, for one test: on a machine that is busy with something else, too."""
NONE_COLLECTED = (4, 5)
"""What pytest answers when a test that it is asked for is not there any more."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)

UNIT = ROOT / "tests" / "unit"
STORES = [*sorted((UNIT / "stores").glob("test_*rules.py")), UNIT / "stores" / "test_memory.py"]
CONTRACT = ROOT / "tests" / "contract" / "test_memory_store.py"
PLANS = ("test_plan_properties.py", "test_load_properties.py")
"""They compute for long, and reach what plans alone."""
PLANNING = ("core.plan", "core.load", "core.scales", "core.seats", "core.numbers")


class Step(NamedTuple):
    kind: str
    """tests or worlds"""
    arguments: tuple[str, ...]


class Ended(NamedTuple):
    code: int
    output: str
    cpu_s: float


class Verdict(NamedTuple):
    caught_by: str | None
    """A test, a world, "import" or "time limit"; None: it has survived."""
    cpu_s: float


def steps(module: str) -> Iterator[Step]:
    """From the most likely to notice to the least."""
    own, others = files_for(module)
    if own:
        yield _tests(own)
    seeds = tuple(map(str, range(WORLDS)))
    yield Step("worlds", seeds[:FIRST_WORLDS])
    if others:
        yield _tests(others)
    yield Step("worlds", seeds[FIRST_WORLDS:])


def files_for(module: str) -> tuple[list[Path], list[Path]]:
    """The files of a module's own tests, and of all others that reach it without much around it."""
    room, _, name = module.partition(".")
    core, runtime = (sorted((UNIT / folder).glob("test_*.py")) for folder in ("core", "runtime"))
    if room == "stores":
        return [*STORES, CONTRACT], runtime
    if room == "core" and module not in PLANNING:
        core = [file for file in core if file.name not in PLANS]
    reaching = [*core, *runtime] if room == "core" else runtime
    own = [file for file in reaching if file.stem == f"test_{name}" or file.stem.startswith(f"test_{name}_")]
    return sorted(own, key=lambda file: file.name in PLANS), [file for file in reaching if file not in own]


def _tests(files: Sequence[Path]) -> Step:
    return Step("tests", tuple(str(file.relative_to(ROOT)) for file in files))


def try_out(mutant: Mutant, hint: str | None = None, *, broken: Collection[str] = (), quick: bool = False) -> Verdict:
    """`hint` is what caught it the last time: most often it still does. What is `broken` without a mutant says nothing.
    `quick` leaves out what takes long."""
    if hint in broken:
        hint = None
    cpu_s = 0.0
    with tempfile.TemporaryDirectory(prefix="evenflow-mutant-") as folder:
        file = Path(folder) / "mutated.py"
        file.write_text(mutant.source)
        for step in [*hinted(hint), *islice(steps(mutant.module), QUICK_STEPS if quick else None)]:
            ended = run(mutant.module, file, _without(step, broken))
            cpu_s += ended.cpu_s
            if ended.code in NONE_COLLECTED and step in hinted(hint):
                continue
            if (caught_by := _noticed(ended)) is not None:
                return Verdict(caught_by, round(cpu_s, 1))
    return Verdict(None, round(cpu_s, 1))


def hinted(hint: str | None) -> list[Step]:
    if hint is None:
        return []
    if hint.startswith("world "):
        return [Step("worlds", (_seed(hint),))]
    return [Step("tests", (hint,))] if "::" in hint else []


def _without(step: Step, broken: Collection[str]) -> Step:
    if step.kind == "worlds":
        seeds = {_seed(name) for name in broken if name.startswith("world ")}
        return step._replace(arguments=tuple(seed for seed in step.arguments if seed not in seeds))
    return step._replace(arguments=(*(f"--deselect={name}" for name in broken if "::" in name), *step.arguments))


def _seed(world: str) -> str:
    return world.split()[1].rstrip(":")


def _noticed(ended: Ended) -> str | None:
    return failures(ended)[-1] if ended.code else None


def failures(ended: Ended) -> list[str]:
    if ended.code < 0:
        return [f"time limit (signal {-ended.code})"]
    found = FAILED.findall(ended.output)
    if not found and ended.code:
        raise RuntimeError(f"a trial ended with code {ended.code}, and nothing failed:\n{ended.output[-3000:]}")
    return found


def run(module: str, file: Path | None, step: Step) -> Ended:
    """With its own limit of processor time, and of the wall clock for what waits for ever."""
    options = ("-p", "no:cacheprovider", "--tb=line", f"--timeout={TEST_MOST_S}") if step.kind == "tests" else ()
    command = [sys.executable, "-m", "tests.mutants.graft", module, str(file or ""), step.kind]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "EVENFLOW_LEAK_PATIENCE_S": "10"}
    environment.pop("EVENFLOW_SUMMARY", None)
    with subprocess.Popen(
        [*command, *options, *step.arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        limit = Timer(WALL_MOST_S, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        assert process.stdout is not None
        output = process.stdout.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
    return Ended(process.returncode, output, usage.ru_utime + usage.ru_stime)
