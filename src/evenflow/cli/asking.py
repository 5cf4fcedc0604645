"""Who acts, and whether they are sure: what changes a group is shown first, and asked for."""

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

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command as Ctrl-C does: a deploy that gives up, a terminal that is closed."""

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
Why: TypeAlias = Annotated[str, typer.Option("--why", metavar="TEXT", help="For the record: why.")]
Partitions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--partition", metavar="ID", help="This one only; may be given several times.", show_default="all"),
]


def who(why: str) -> Operator:
    """For the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return Operator(f"{user}@{socket.gethostname()}", why)


def be_sure(what: Sequence[str], *, yes: bool, question: str = "Do it?") -> None:
    """Tell what will be done, and ask. Without anybody to ask it is wrong usage; a no is no success."""
    for line in what:
        say(line)
    if yes:
        return
    if not sys.stdin.isatty():
        say("error: there is no terminal to ask on: add --yes to do it")
        raise typer.Exit(2)
    if _answer(question).strip().lower() not in ("y", "yes"):
        say("nothing was changed")
        raise typer.Exit(1)


def tell(line: str) -> None:
    """As `say`; a terminal that was closed does not keep anything from being tidied up."""
    with suppress(OSError):
        say(line)


def carry_out(work: Coroutine[object, object, T]) -> T:
    """Run what changes a group. Interrupted, it still tidies up (what it paused is resumed), and ends with 1."""
    try:
        return asyncio.run(_endable(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        tell("interrupted")
        raise typer.Exit(1) from None


async def _endable(work: Coroutine[object, object, T]) -> T:
    """One signal cancels it; more of them do not disturb how it tidies up."""
    loop, doing = asyncio.get_running_loop(), asyncio.ensure_future(work)
    heard: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not heard:
            loop.call_soon_threadsafe(doing.cancel)
        heard.append(number)

    with _hearing(end, *ENDINGS):
        return await doing


def _answer(question: str) -> str:
    """A line of the terminal; "" when a signal came instead: a loop that waits here would not hear of it."""
    try:
        with _hearing(signal.default_int_handler, signal.SIGINT, *ENDINGS), _woken_by_signals() as woken:
            # Not by typer.confirm, which writes to stdout too: that belongs to --json.
            print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
            # A signal that comes just before a read has begun would wait for the read to end.
            select.select([sys.stdin, woken], [], [])
            return sys.stdin.readline()
    except KeyboardInterrupt:
        say("")
        return ""


@contextmanager
def _woken_by_signals() -> Iterator[int]:
    """What becomes readable when a signal comes, however early."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    before = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(waking)


@contextmanager
def _hearing(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Meanwhile these signals are handled so. Not by the loop's own means, which a question would have to wait for.

    What the parent has told us to ignore (nohup) stays ignored.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    try:
        for number in heard:
            signal.signal(number, handler)
        yield
    finally:
        for number, was in heard.items():
            signal.signal(number, was)
