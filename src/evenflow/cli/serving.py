"""Shared by the commands that run a server: event loop, socket limit, shutdown signals and injected faults."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable, Mapping
from typing import NamedTuple

import typer

from evenflow.cli.quantities import parse_duration_s

DAY_S = 86_400.0


class FaultOption(NamedTuple):
    """One kind of `--fault KIND=VALUE`: the field that it sets, and the values that are allowed."""

    field: str
    parse: Callable[[str], float]
    least: float
    most: float
    requirement: str


def faults_from(texts: list[str], known: Mapping[str, FaultOption]) -> dict[str, float]:
    """The values of `--fault KIND=VALUE`, by field name."""
    found: dict[str, float] = {}
    for text in texts:
        kind, _, value = text.partition("=")
        if kind not in known:
            raise typer.BadParameter(
                f"unknown fault {text!r}; write KIND=VALUE, where KIND is {', '.join(known)}.", param_hint="--fault"
            )
        fault = known[kind]
        try:
            found[fault.field] = fault.parse(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a number.", param_hint=f"--fault {kind}") from None
        if not fault.least <= found[fault.field] <= fault.most:
            raise typer.BadParameter(f"{value!r}: {fault.requirement}.", param_hint=f"--fault {kind}")
    return found


def short_duration_s(text: str) -> float:
    return float(text[:-2]) / 1000 if text.endswith("ms") else parse_duration_s(text)


def on_shutdown(call: Callable[[], None]) -> None:
    """Call this on SIGTERM and Ctrl-C: both end a server normally."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)


def allow_many_sockets() -> None:
    """Raise the limit of open files as far as the system allows: each connection needs one."""
    try:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        pass  # some systems report no hard limit and then reject it as a soft limit


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop event loop if uvloop is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
