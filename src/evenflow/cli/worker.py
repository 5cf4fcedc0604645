"""One worker process of `evenflow run`: loads the application's processor and runs it, as an ordinary instance.

Needs no extra: an application can run under it without the command line's packages.
"""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module
from typing import Any

from evenflow.cli import leash
from evenflow.errors import EvenflowError, Misconfigured, PositionOutOfRange, Superseded
from evenflow.observe.happenings import Happening, Retiring
from evenflow.runtime.processor import Processor

WRONG = 78
"""The exit code for what a restart cannot mend: a wrong setting, or a newer process under the same id."""


def main() -> int:
    options = _options()
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    if options.of:
        leash.obey()
    try:
        processor = load(options.target)
        check_id(processor, options.of)
        asked: list[Happening] = []
        processor.listen(lambda happening: asked.append(happening) if isinstance(happening, Retiring) else None)
        processor.run()
        for wish in asked:
            print(wish, file=sys.stderr)  # whatever the log's level is: the parent's user wants to know why it ended
    except (Misconfigured, PositionOutOfRange, Superseded) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except EvenflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def load(target: str) -> Processor:
    """The processor that `module:name` names; a function is called to make it."""
    found = _find(target)
    if not isinstance(found, Processor) and callable(found):
        found = found()
    if not isinstance(found, Processor):
        raise Misconfigured(f"{target} is {type(found).__name__}, and not a Processor or a function that makes one.")
    return found


def check_id(processor: Processor, workers: int) -> None:
    """Two processes under one id would supersede each other for ever."""
    if workers > 1 and isinstance(processor.store, str) and processor.store.startswith("memory:"):
        raise Misconfigured(
            f"{workers} workers are {workers} processes, and store='memory:' is shared by none of them: each would"
            " handle everything. Use a store that they can share, such as sqlite:leases."
        )
    if workers > 1 and processor.settings.instance_id is not None:
        raise Misconfigured(
            f"{workers} workers cannot share instance_id={processor.settings.instance_id!r}: leave instance_id out, so"
            " that each process makes its own, or run with --workers 1."
        )


def _find(target: str) -> Any:
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise Misconfigured(f"{target!r}: name the processor as module:name, for instance app:processor.")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise Misconfigured(f"{module_name} cannot be imported: {error}.") from error
        raise Misconfigured(f"There is no module {error.name!r} here. Start in the folder that holds it.") from error
    except (ImportError, SyntaxError) as error:
        raise Misconfigured(f"{module_name} cannot be imported: {error}.") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise Misconfigured(f"{module_name} has no {path!r}.")
        found = getattr(found, name)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evenflow.cli.worker", description=__doc__)
    parser.add_argument("target", help="module:processor")
    parser.add_argument("--of", type=int, default=0, help="how many workers the parent runs; 0: there is no parent")
    parser.add_argument("--log-level", default="info")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
