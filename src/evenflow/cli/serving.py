"""What commands that serve have in common: the loop, sockets without end, being told to end, trouble on purpose."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable, Mapping
from typing import NamedTuple

import typer

from evenflow.cli.quantities import parse_duration_s

DAY_S = 86_400.0


class Fault(NamedTuple):
    """What `--fault KIND=VALUE` may say of one kind, and which option that is."""

    field: str
    parse: Callable[[str], float]
    least: float
    most: float
    wanted: str


def faults_from(texts: list[str], known: Mapping[str, Fault]) -> dict[str, float]:
    """What `--fault KIND=VALUE` says, by the names of the options."""
    found: dict[str, float] = {}
    for text in texts:
        kind, _, value = text.partition("=")
        if kind not in known:
            raise typer.BadParameter(f"{text!r} is no fault: there are {', '.join(known)}.", param_hint="--fault")
        fault = known[kind]
        try:
            found[fault.field] = fault.parse(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is no number.", param_hint=f"--fault {kind}") from None
        if not fault.least <= found[fault.field] <= fault.most:
            raise typer.BadParameter(f"{value!r}: {fault.wanted}.", param_hint=f"--fault {kind}")
    return found


def short_duration_s(text: str) -> float:
    return float(text[:-2]) / 1000 if text.endswith("ms") else parse_duration_s(text)


def on_ending(call: Callable[[], None]) -> None:
    """Call this at SIGTERM and Ctrl-C, which is a good end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)


def allow_many_sockets() -> None:
    """As many files as the system lets this process have: a connection is one."""
    try:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        # There are systems that say "no limit" and then refuse it.
        pass


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, when it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
