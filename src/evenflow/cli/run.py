"""`evenflow run module:processor --workers N`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated, Literal

import typer

from evenflow.cli.health_endpoints import place_of, serve
from evenflow.cli.output import say
from evenflow.cli.supervisor import Supervisor, worker_command
from evenflow.cli.worker import target_parts
from evenflow.errors import Misconfigured
from evenflow.runtime.clock import system_clock

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")


def run(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:PROCESSOR", help="A Processor, or a function that returns one.")
    ],
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Number of worker processes.")] = 1,
    deadline: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="Kill workers that have not stopped after this time."),
    ] = 45.0,
    health: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve the health endpoints /live and /ready over HTTP."),
    ] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="Worker log level.")] = "info",
) -> None:
    """Run a processor in N worker processes, each an instance of the group. A worker that dies is restarted.

    SIGTERM or Ctrl-C drains, commits and hands over all partitions; a second one kills the workers.
    """
    try:
        target_parts(target)
    except Misconfigured as error:
        raise typer.BadParameter(str(error), param_hint="MODULE:PROCESSOR") from error
    place = None if health is None else place_of(health)
    asyncio.run(_run(target, workers, deadline, log_level, place))


async def _run(target: str, workers: int, deadline_s: float, log_level: str, place: tuple[str, int] | None) -> None:
    command = worker_command(target, workers, log_level)
    supervisor = Supervisor(command, workers, stop_s=deadline_s, clock=system_clock(), say=_say_for)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    if place is None:
        await supervisor.run()
        return
    answers = {"/live": supervisor.why_not_live, "/ready": supervisor.why_not_ready}
    async with await serve(*place, answers) as server:
        host, port = server.sockets[0].getsockname()[:2]
        supervisor.log("run", f"health endpoints /live and /ready at {host}:{port}")
        await supervisor.run()


def _say_for(who: str, line: str) -> None:
    name = f"{who} |"
    number = who.rpartition("-")[2]
    if number.isdecimal() and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        name = typer.style(name, fg=COLOURS[(int(number) - 1) % len(COLOURS)])
    say(f"{name} {line}")
