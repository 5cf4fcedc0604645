"""One worker process of `evenflow run`: loads the application's processor and runs it as an ordinary instance.

It needs no extra, so that it runs without the packages of the command line.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import time
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenflow.cli import parent_watch
from evenflow.cli.liveness import LivenessSender
from evenflow.errors import EvenflowError, Misconfigured, PositionOutOfRange, Superseded
from evenflow.runtime.processor import Processor
from evenflow.signals import Joined, Retiring, Signal

if TYPE_CHECKING:
    from collections.abc import Callable

TIME = "%Y-%m-%dT%H:%M:%SZ"
NO_RESTART = 78
"""The exit code for an error that a restart cannot fix: a wrong setting, or a newer process with the same id."""


def main() -> int:
    options = _options()
    _log_to_stderr(options.log_level)
    if options.of:
        parent_watch.stop_with_parent()
    try:
        processor = load(options.target)
        check_id(processor, options.of)
        retirements: list[Signal] = []
        processor.listen(lambda signal: retirements.append(signal) if isinstance(signal, Retiring) else None)
        processor.listen(_print_id)
        if options.liveness is not None:
            processor.listen(LivenessSender(options.liveness))
        processor.run()
        for signal in retirements:
            _print(signal)  # at any log level: it says why this worker ended
    except (Misconfigured, PositionOutOfRange, Superseded) as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_RESTART
    except EvenflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _print_id(signal: Signal) -> None:
    """Print the instance id, which `evenflow retire` needs, if the log level hides it."""
    if isinstance(signal, Joined) and not logging.getLogger("evenflow").isEnabledFor(signal.level):
        _print(signal)


def _print(signal: Signal) -> None:
    print(time.strftime(TIME, time.gmtime(signal.at)), signal, file=sys.stderr, flush=True)


def load(target: str) -> Processor:
    """The processor that `module:name` names; a function is called and must return it."""
    found = _find(target)
    if not isinstance(found, Processor) and callable(found):
        _check_factory(target, found)
        found = found()
    if not isinstance(found, Processor):
        raise Misconfigured(
            f"{target} is of type {type(found).__name__}; name a Processor or a function that returns one."
            f"{_hint(target)}"
        )
    return found


def target_parts(target: str) -> tuple[str, str]:
    """The module and the name in it."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise Misconfigured(f"{target!r} is not MODULE:PROCESSOR; write for instance app:processor.")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise Misconfigured(f"{target!r} names a file; name the module as in an import: {dotted}:{name}.")
    return module_name, name


def check_id(processor: Processor, workers: int) -> None:
    """Reject settings that several processes cannot share: two with one id would supersede each other endlessly."""
    if workers > 1 and isinstance(processor.store, str) and processor.store.startswith("memory:"):
        raise Misconfigured(
            f"{workers} workers cannot share store='memory:', because each is a process of its own and would handle"
            " every event. Use a store that they can share, such as sqlite:leases."
        )
    if workers > 1 and processor.settings.instance_id is not None:
        option = processor.id_option
        raise Misconfigured(
            f"{workers} workers cannot share {option}={processor.settings.instance_id!r}. Leave {option} out, so that"
            " each process generates its own, or run with --workers 1."
        )


def _check_factory(target: str, found: Callable[..., Any]) -> None:
    """A function that returns a processor takes no arguments; one that takes some is probably a handler."""
    try:
        signature = inspect.signature(found)
        signature.bind()
    except ValueError:
        return  # no signature is available; the call will show whether it works
    except TypeError as error:
        raise Misconfigured(
            f"{target} is a function with the arguments {signature}, probably a handler; name a Processor or a function"
            f" without arguments that returns one.{_hint(target)}"
        ) from error
    if inspect.iscoroutinefunction(found):
        raise Misconfigured(f"{target} is async; a function that returns a Processor must be a plain `def`.")


def _hint(target: str) -> str:
    """The processors that the module has, as a suggestion."""
    module_name = target.partition(":")[0]
    names = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Processor)]
    return f" Did you mean {' or '.join(f'{module_name}:{name}' for name in names)}?" if names else ""


def _find(target: str) -> Any:
    module_name, path = target_parts(target)
    found = _import(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise Misconfigured(f"{module_name} has no {path!r}.{_hint(target)}")
        found = getattr(found, name)
    return found


def _import(module_name: str) -> Any:
    """An error during the import would occur again after a restart, so it is Misconfigured."""
    try:
        return import_module(module_name)
    except EvenflowError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise Misconfigured(f"Cannot import {module_name}: {error}{_location(error)}.") from error
        raise Misconfigured(
            f"Cannot import {error.name!r}: no such module. Run from the directory that contains it, or set PYTHONPATH."
        ) from error
    except SyntaxError as error:
        raise Misconfigured(f"Cannot import {module_name}: {error}.") from error
    except Exception as error:
        raise Misconfigured(
            f"Cannot import {module_name}: {type(error).__name__}: {error}{_location(error)}."
        ) from error


def _location(error: Exception) -> str:
    """File and line that raised the error, for a message of one line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _log_to_stderr(level: str) -> None:
    form = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", TIME)
    form.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evenflow.cli.worker", description=__doc__)
    parser.add_argument("target", help="MODULE:PROCESSOR")
    parser.add_argument("--of", type=int, default=0, help="number of workers that the parent runs; 0 without a parent")
    parser.add_argument("--liveness", type=int, help="descriptor of the pipe that reports liveness to the parent")
    parser.add_argument("--log-level", default="info")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
