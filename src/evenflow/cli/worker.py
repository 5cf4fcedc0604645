"""One worker process of `evenflow run`: loads the application's processor and runs it, as an ordinary instance.

Needs no extra: an application can run under it without the command line's packages.
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

from evenflow.cli import leash
from evenflow.cli.pulse import Pulse
from evenflow.errors import EvenflowError, Misconfigured, PositionOutOfRange, Superseded
from evenflow.runtime.processor import Processor
from evenflow.signals import Joined, Retiring, Signal

if TYPE_CHECKING:
    from collections.abc import Callable

TIME = "%Y-%m-%dT%H:%M:%SZ"
WRONG = 78
"""The exit code for what a restart cannot mend: a wrong setting, or a newer process under the same id."""


def main() -> int:
    options = _options()
    _log_to_stderr(options.log_level)
    if options.of:
        leash.obey()
    try:
        processor = load(options.target)
        check_id(processor, options.of)
        asked: list[Signal] = []
        processor.listen(lambda signal: asked.append(signal) if isinstance(signal, Retiring) else None)
        processor.listen(_tell_name)
        if options.pulse is not None:
            processor.listen(Pulse(options.pulse))
        processor.run()
        for wish in asked:
            _tell(wish)  # whatever the log's level is: the parent's user wants to know why it ended
    except (Misconfigured, PositionOutOfRange, Superseded) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except EvenflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _tell_name(signal: Signal) -> None:
    """Under which name this worker is to be retired; the log says so itself, if it says that much."""
    if isinstance(signal, Joined) and not logging.getLogger("evenflow").isEnabledFor(signal.level):
        _tell(signal)


def _tell(signal: Signal) -> None:
    print(time.strftime(TIME, time.gmtime(signal.at)), signal, file=sys.stderr, flush=True)


def load(target: str) -> Processor:
    """The processor that `module:name` names; a function is called to make it."""
    found = _find(target)
    if not isinstance(found, Processor) and callable(found):
        _check_maker(target, found)
        found = found()
    if not isinstance(found, Processor):
        raise Misconfigured(
            f"{target} is {type(found).__name__}, and not a Processor or a function that makes one.{_hint(target)}"
        )
    return found


def target_parts(target: str) -> tuple[str, str]:
    """The module and the name in it."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise Misconfigured(f"{target!r}: name the processor as module:name, for instance app:processor.")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise Misconfigured(f"{target!r}: name the module as in an import, not its file; did you mean {dotted}:{name}?")
    return module_name, name


def check_id(processor: Processor, workers: int) -> None:
    """Two processes under one id would supersede each other for ever."""
    if workers > 1 and isinstance(processor.store, str) and processor.store.startswith("memory:"):
        raise Misconfigured(
            f"{workers} workers are {workers} processes, and store='memory:' is shared by none of them: each would"
            " handle everything. Use a store that they can share, such as sqlite:leases."
        )
    if workers > 1 and processor.settings.instance_id is not None:
        option = processor.id_option
        raise Misconfigured(
            f"{workers} workers cannot share {option}={processor.settings.instance_id!r}: leave {option} out, so that"
            " each process makes its own, or run with --workers 1."
        )


def _check_maker(target: str, found: Callable[..., Any]) -> None:
    """A function that makes a processor needs nothing; one that needs something is a handler, most likely."""
    try:
        signature = inspect.signature(found)
        signature.bind()
    except ValueError:
        return  # it cannot be looked into; calling it will tell
    except TypeError as error:
        raise Misconfigured(
            f"{target} is a function of {signature}, as a handler is, and not a Processor or a function that makes"
            f" one.{_hint(target)}"
        ) from error
    if inspect.iscoroutinefunction(found):
        raise Misconfigured(f"{target} is async: a function that makes a Processor must be a plain one.")


def _hint(target: str) -> str:
    """What the module has that was meant, perhaps."""
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
    """Whatever an import raises, it raises again the next time: that ends it."""
    try:
        return import_module(module_name)
    except EvenflowError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise Misconfigured(f"{module_name} cannot be imported: {error}{_place(error)}.") from error
        raise Misconfigured(f"There is no module {error.name!r} here. Start in the folder that holds it.") from error
    except SyntaxError as error:
        raise Misconfigured(f"{module_name} cannot be imported: {error}.") from error
    except Exception as error:
        raise Misconfigured(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}{_place(error)}."
        ) from error


def _place(error: Exception) -> str:
    """Where it was raised, for a message of one line."""
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
    parser.add_argument("target", help="module:processor")
    parser.add_argument("--of", type=int, default=0, help="how many workers the parent runs; 0: there is no parent")
    parser.add_argument("--pulse", type=int, help="a pipe to the parent, which is told that this worker is well")
    parser.add_argument("--log-level", default="info")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
