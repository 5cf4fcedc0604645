"""`python -m benchmarks [NAME] [--json] [options]`: run one benchmark, or all. Some have options of their own.

Exit code 0 when every bar holds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Result, bar_line, names, say, table

if TYPE_CHECKING:
    from collections.abc import Callable

GENERAL = {"name", "as_json"}
"""Arguments of all benchmarks; each of the others is a parameter of the `run` that takes it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names(), metavar="NAME", help=", ".join(names()))
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object (a list for all)")
    parser.add_argument(
        "--store", metavar="URL", help="of handoff and failover: run it on this store, or on one that is made for it"
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="of interop: how long it runs on when it is even")
    parser.add_argument("--runs", type=int, metavar="N", help="of steady: how often the tests are run")
    parser.add_argument("--busy", action="store_true", default=None, help="of steady: with one busy loop per core")
    parser.add_argument(
        "--only",
        metavar="WHAT",
        help="of steady: the path of tests instead of tests/integration; of promise: one row",
    )
    arguments = parser.parse_args()
    if arguments.name is None:
        return run_all(as_json=arguments.as_json)
    module = import_module(f"benchmarks.{arguments.name}")
    options = {name: value for name, value in vars(arguments).items() if name not in GENERAL and value is not None}
    for option in options.keys() - signature(module.run).parameters.keys():
        parser.error(f"{arguments.name} has no --{option}")
    store = options.pop("store", None)
    result: Result = module.run(**options) if store is None else run_on(store, module.run)
    found = result.as_json(arguments.name)
    print(json.dumps(found) if arguments.as_json else table(found))
    return 0 if result.holds else 1


def run_on(store: str, run: Callable[..., Result]) -> Result:
    """A URL; or the name of a kind, of which one is made for this run. Some kinds have times of their own."""
    from benchmarks._places import PLACES, TIMES  # it needs drivers that other benchmarks do without

    times = TIMES.get(store.partition(":")[0])
    options = {"times": times} if "times" in signature(run).parameters else {}
    if store not in PLACES:
        return run(store, **options)
    with PLACES[store]() as place:
        return run(place.url, **options)


def run_all(*, as_json: bool) -> int:
    """Each in a process of its own, so that none finds another's memory, threads or caches."""
    results: list[dict[str, Any]] = []
    broken: list[str] = []
    for name in names():
        say(f"{name} ...")
        os.sync()  # or this one would wait for the disk of the one before
        done = subprocess.run([sys.executable, "-m", "benchmarks", name, "--json"], stdout=subprocess.PIPE, check=False)
        try:
            results.append(json.loads(done.stdout))
        except ValueError:
            broken.append(name)
            continue
        if not as_json:
            print(table(results[-1]), flush=True)
    if as_json:
        print(json.dumps(results))
    else:
        print(summary(results, broken))
    holds = all(bar["holds"] for result in results for bar in result["bars"])
    return 0 if holds and not broken else 1


def summary(results: list[dict[str, Any]], broken: list[str]) -> str:
    lines = ["", "all bars"]
    lines += [f"  {result['benchmark']:<10} {bar_line(bar)}" for result in results for bar in result["bars"]]
    lines += [f"  {name:<10} BROKE" for name in broken]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
