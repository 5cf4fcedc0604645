"""Commands that change a group: show the change, ask for confirmation, record who made it."""

from __future__ import annotations

import asyncio
import getpass
import os
import select
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from evenflow.cli.output import say
from evenflow.operate.steer import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from types import FrameType

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does: a deployment is cancelled, or the terminal is closed."""

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Why: TypeAlias = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept in the action log.")]
Partitions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--partition", metavar="ID", help="Only this partition; repeat it for more.", show_default="all"),
]


def operator(why: str) -> Operator:
    """The user who runs this command, for the action log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return Operator(f"{user}@{socket.gethostname()}", why)


def confirm(changes: Sequence[str], *, yes: bool, question: str = "Continue?") -> None:
    """Show what will change, and ask. Exit code 2 if there is no terminal to ask on, 1 if the answer is no."""
    for line in changes:
        say(line)
    if yes:
        return
    if not sys.stdin.isatty():
        say("error: cannot ask for confirmation, stdin is not a terminal; pass --yes to confirm")
        raise typer.Exit(2)
    if _answer(question).strip().lower() not in ("y", "yes"):
        say("nothing was changed")
        raise typer.Exit(1)


def say_safely(line: str) -> None:
    """Like `say`, but never raises: a closed terminal must not keep a command from cleaning up."""
    with suppress(OSError):
        say(line)


def carry_out(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine that changes a group. If interrupted, it cleans up (resumes what it paused); exit code 1."""
    try:
        return asyncio.run(_cancel_on_signal(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say_safely("interrupted")
        raise typer.Exit(1) from None


async def _cancel_on_signal(work: Coroutine[object, object, T]) -> T:
    """The first signal cancels the work; later ones are ignored, so that they do not interrupt the cleanup."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    received: list[int] = []

    def cancel(number: int, _: FrameType | None) -> None:
        if not received:
            loop.call_soon_threadsafe(task.cancel)
        received.append(number)

    with _signal_handlers(cancel, *STOP_SIGNALS):
        return await task


def _answer(question: str) -> str:
    """A line from the terminal; "" after a signal. The event loop cannot report that signal: it is blocked here."""
    try:
        with _signal_handlers(signal.default_int_handler, signal.SIGINT, *STOP_SIGNALS), _signal_pipe() as wakeup:
            # typer.confirm would also write to stdout, which is reserved for the output of --json.
            print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
            # A blocking read would miss a signal that arrives just before it begins.
            select.select([sys.stdin, wakeup], [], [])
            return sys.stdin.readline()
    except KeyboardInterrupt:
        say("")
        return ""


@contextmanager
def _signal_pipe() -> Iterator[int]:
    """A descriptor that becomes readable when a signal arrives, however early."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


@contextmanager
def _signal_handlers(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals with `handler` inside the block. The event loop's own handlers cannot run during a question.

    A signal that the parent process set to be ignored (nohup) stays ignored.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    replaced = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    try:
        for number in replaced:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in replaced.items():
            signal.signal(number, old)
