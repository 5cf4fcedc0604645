"""What commands that serve have in common: the loop, sockets without end, being told to end, trouble on purpose."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable, Mapping
from typing import TypeAlias

import typer

from evenflow.cli.quantities import parse_duration_s

FaultTable: TypeAlias = "Mapping[str, tuple[str, Callable[[str], float]]]"
"""A word, the option that it is, and how its value is read."""


def faults_from(texts: list[str], table: FaultTable, shares: tuple[str, ...]) -> dict[str, float]:
    """What `--fault KIND=VALUE` says, by the names of the options; those in `shares` are between 0 and 1."""
    found: dict[str, float] = {}
    for text in texts:
        kind, _, value = text.partition("=")
        if kind not in table:
            raise typer.BadParameter(f"{text!r} is no fault: there are {', '.join(table)}.", param_hint="--fault")
        field, parse = table[kind]
        try:
            found[field] = parse(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is no number.", param_hint=f"--fault {kind}") from None
        if field in shares and not 0.0 <= found[field] <= 1.0:
            raise typer.BadParameter("a share is between 0 and 1.", param_hint=f"--fault {kind}")
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
