"""Gives a mutant's source to whoever imports its module in this process, and runs tests or simulated worlds on it.

python -m tests.mutants.graft MODULE FILE tests ARGUMENTS OF PYTEST
python -m tests.mutants.graft MODULE FILE worlds SEED...

With a mutant the first failure ends it. With MODULE and FILE empty there is none, and all failures are told.
"""

from __future__ import annotations

import importlib
import logging
import resource
import sys
import traceback
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.mutant import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, ModuleType

CAUGHT = 1
"""As pytest's exit code when a test has failed."""
BYTES_MOST = 4 << 30
CPU_MOST_S = 240


class Graft(MetaPathFinder):
    def __init__(self, module: str, source: str) -> None:
        self._name = f"evenflow.{module}"
        self._path = str(path_of(module))
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        return spec_from_loader(name, _Loader(name, self._path, self._source), origin=self._path)


class _Loader(SourceFileLoader):
    """No bytecode is read or written: it would be that of the file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


def main(module: str, file: str, kind: str, *arguments: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES_MOST, BYTES_MOST))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_MOST_S, CPU_MOST_S))
    if any(name.startswith("evenflow") for name in sys.modules):
        raise RuntimeError("evenflow was imported before the mutant was in its place")
    if module:
        sys.meta_path.insert(0, Graft(module, Path(file).read_text()))
        try:
            importlib.import_module(f"evenflow.{module}")
        except Exception:
            traceback.print_exc()
            print("FAILED import")
            return CAUGHT
    if kind == "tests":
        return run_tests(["-x", *arguments] if module else arguments)
    found = 0
    for violation in failed_worlds(map(int, arguments)):
        print(f"FAILED world {violation}")
        found = CAUGHT
        if module:
            break
    return found


def run_tests(arguments: Sequence[str]) -> int:
    import pytest

    return int(pytest.main(["-n", "0", "-q", *arguments], plugins=[_SameExamples()]))


class _SameExamples:
    """Hypothesis tries the same each time, and keeps nothing; a counterexample need not be a small one."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")


def failed_worlds(seeds: Iterable[int]) -> Iterator[str]:
    logging.disable(logging.CRITICAL)  # what goes wrong in a simulated world is meant to
    from evenflow.testing.simulated.run import run_seed

    for seed in seeds:
        try:
            found = run_seed(seed)
        except Exception as error:
            yield f"{seed}: {type(error).__name__}: {error}"
            continue
        if found is not None:
            yield f"{seed}: {found.violation}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
