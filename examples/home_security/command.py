"""`python -m examples.home_security`: the whole demo, from the hub to both pages, until Ctrl-C or for some seconds."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from evenflow.console.serving import address_of, bound, open_browser, serve
from evenflow.errors import EvenflowError, Misconfigured, Transient
from evenflow.runtime.clock import system_clock
from examples.home_security.ending import Ending
from examples.home_security.pages import CONSOLE, Pages
from examples.home_security.places import AGGREGATE, ALERTS, GROUPS, Place
from examples.home_security.session import Session, Settings
from examples.home_security.summary import summary_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from evenflow.ports import Clock
    from examples.home_security.summary import Summary

HOST, PORT = "127.0.0.1", 8680
PORT_MOST = 65_535
SCALES = {"full": 100_000, "small": 2_000}
LINE_EVERY_S = 10.0
LOOK_S = 0.25
STAFFED_S = 60.0
"""The demo continues after this time, even if a consumer has no partition yet."""


FINE, BROKEN, REFUSED, HURRIED = 0, 1, 2, 130
"""Exit codes: nothing was lost; something was; it could not run; Ctrl-C was pressed twice, or before it began."""


def main() -> int:
    arguments = _arguments()
    # From now on there is something to tidy up.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="home-security-"))
    code = REFUSED
    try:
        code = _played(folder, arguments)
    except EvenflowError as error:
        print(f"home security: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        code = HURRIED
    finally:
        if arguments.keep or (code in (BROKEN, REFUSED) and Place(folder).has_run):
            print(f"kept, with the logs of all processes: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _played(folder: Path, arguments: argparse.Namespace) -> int:
    summary = asyncio.run(_Demo(folder, system_clock(), arguments).run())
    if summary is None:
        return HURRIED
    print("\n".join(summary_lines(summary)))
    return FINE if summary.is_fine else BROKEN


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.home_security", description=__doc__)
    parser.add_argument(
        "--scale", choices=SCALES, default="full", help="full: 100,000 homes; small: 2,000, for a laptop"
    )
    parser.add_argument("--homes", type=_positive(int), metavar="N", help="number of homes, instead of a scale")
    parser.add_argument(
        "--speed", type=_positive(float), default=1.0, metavar="X", help="run the homes' clock X times as fast"
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        metavar="N",
        help="end after this time; some actions happen automatically on the way",
    )
    parser.add_argument(
        "--begin",
        type=_today,
        metavar="HH:MM",
        help="time of the homes' clocks at the start, in UTC (default: now)",
    )
    parser.add_argument(
        "--consumers",
        type=_positive(int),
        default=3,
        metavar="N",
        help="number of consumers of each group at the start",
    )
    parser.add_argument(
        "--every", type=_positive(float), default=2.0, metavar="SECONDS", help="how often recent aggregates are written"
    )
    parser.add_argument(
        "--blobs",
        type=_where,
        metavar="WHERE",
        help="where to write: a folder, or s3://, az:// or gs:// with an empty prefix",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="generates another town")
    parser.add_argument(
        "--port", type=_port, metavar="PORT", help=f"port of both pages; 0 picks a free one (default: {PORT} if free)"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with the hub, the store, the blobs and the logs"
    )
    return parser.parse_args()


def _today(text: str) -> float:
    """A time of this day, in seconds since 1970."""
    with suppress(ValueError):
        read = time.fromisoformat(text)
        # One with an offset would be another time than the homes' clocks say.
        if read.tzinfo is None:
            return datetime.combine(datetime.now(UTC), read, UTC).timestamp()
    raise argparse.ArgumentTypeError(f"{text} is not a time of day; write for instance 17:30")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a port; use 0 (picks a free one) to {PORT_MOST}")
    return int(text)


def _where(text: str) -> str:
    """A URL, or the absolute path of a folder, since processes in other folders use it."""
    if not text.strip():
        raise argparse.ArgumentTypeError("empty; name a folder, or s3://, az:// or gs:// with an empty prefix")
    return text if "://" in text else os.path.abspath(text)


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            what = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text} is not {what}") from None
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return number

    return read


class _Demo:
    def __init__(self, folder: Path, clock: Clock, arguments: argparse.Namespace) -> None:
        self._clock = clock
        self._arguments = arguments
        self._seconds: float | None = arguments.seconds
        self._settings = Settings(
            homes=arguments.homes or SCALES[arguments.scale],
            speed=arguments.speed,
            seed=arguments.seed,
            begin_s=arguments.begin,
            consumers=arguments.consumers,
            write_s=arguments.every,
            blobs=arguments.blobs,
        )
        self._session = Session(folder, clock, self._settings)
        self._ending = Ending()
        self._address = ""

    async def run(self) -> Summary | None:
        """The summary; None if Ctrl-C was pressed twice."""
        try:
            return await self._ending.played(self._play(_a_socket(self._arguments.port)))
        finally:
            await self._session.close()

    async def _play(self, taken: socket) -> Summary:
        await self._session.start()
        token = secrets.token_urlsafe(24)
        address = self._address = address_of(taken, HOST)
        ready = asyncio.Event()
        beside = [
            asyncio.create_task(self._session.watch()),
            asyncio.create_task(serve(Pages(self._session, self._clock, token), taken, ready.set, signals=False)),
        ]
        try:
            await _first(ready.wait(), *beside)
            self._greet(address, token)
            await _first(self._until_the_end(), *beside)
            print("The homes stop reporting. Waiting until everything is written ...", flush=True)
            await self._session.drain(_print)
            return await self._session.summary(_print)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def _greet(self, address: str, token: str) -> None:
        settings = self._settings
        console = f"{address.rstrip('/')}{CONSOLE}/#token={quote(token)}"
        print(
            f"{settings.homes:,} homes, 16 partitions, {settings.consumers} consumers in each of the groups"
            f" {AGGREGATE} and {ALERTS}.\n\n"
            f"  residents   {address}\n"
            f"  operator    {console}\n"
            f"  folder      {self._session.place.folder}\n\n"
            "Try: open a home, and watch it live. In the console, add an instance and see its share arrive; kill one\n"
            "(kill -9) and see the others take over; stall one; add carbon-monoxide detectors to every home.\n"
            "Ctrl-C ends the demo, and counts events that were lost or counted twice.\n",
            flush=True,
        )
        if not self._arguments.no_open and _has_browser():
            open_browser(address, console)

    async def _until_the_end(self) -> None:
        started_s = await self._staffed_s()
        lines_at_s, cues = LINE_EVERY_S, self._cues()
        while not self._ending.is_asked and self._session.generates:
            elapsed_s = self._clock.now() - started_s
            if self._seconds is not None and elapsed_s >= self._seconds:
                return
            if cues and elapsed_s >= cues[0][0]:
                print(f"  {await cues.pop(0)[1]()}", flush=True)
            if elapsed_s >= lines_at_s:
                lines_at_s += LINE_EVERY_S
                print(self._line(), flush=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._ending.wait()
        if not self._ending.is_asked:
            raise Misconfigured(
                f"The generator has ended by itself: {self._session.generator_ended}; see generator.log."
            )

    async def _staffed_s(self) -> float:
        """The time when every consumer has a partition. Before that, a script would act on consumers without any."""
        latest_s = self._clock.now() + STAFFED_S
        while not self._ending.is_asked and self._session.generates and self._clock.now() < latest_s:
            with suppress(Transient):
                if await self._session.is_staffed():
                    break
            await self._clock.sleep(LOOK_S)
        return self._clock.now()

    def _cues(self) -> list[tuple[float, Callable[[], Any]]]:
        """What happens automatically in a run with `--seconds`, where an operator may not press the buttons."""
        if self._seconds is None:
            return []
        return [
            (self._seconds * share, act)
            for share, act in ((0.2, self._add), (0.4, self._kill), (0.5, self._break_in), (0.6, self._detect))
        ]

    async def _add(self) -> str:
        added = await self._session.fleets[AGGREGATE].add()
        return f"{added.name} was started."

    async def _kill(self) -> str:
        running = self._session.fleets[AGGREGATE].running
        return self._session.kill(AGGREGATE, running[0]) if running else "No instance is left to kill."

    async def _break_in(self) -> str:
        """Causes an alert: at night there may be none otherwise."""
        home = await self._session.break_in()
        return f"Break-in at home {home}: {self._address}homes/{home}"

    async def _detect(self) -> str:
        return self._session.add_detectors()

    def _line(self) -> str:
        account, counts = self._session.account, self._session.counts
        sent = account.sent if account is not None else 0
        groups = "  ".join(
            f"{group}: lag {counts[group].lag:,}, lost {counts[group].tally.lost}, twice {counts[group].tally.twice}"
            for group in GROUPS
        )
        place = self._session.place
        full = f"\n  The disk of {place.folder} is full: free some space to continue." if place.is_full else ""
        return f"  sent {sent:,} ({self._session.sent_per_s:,.0f}/s)  {groups}{full}"


def _print(line: str) -> None:
    print(f"  {line}", flush=True)


async def _first(wanted: Any, *beside: asyncio.Task[None]) -> None:
    """Wait until it is done. The other tasks must not end before; if one does, its error is raised."""
    task = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait([task, *beside], return_when=asyncio.FIRST_COMPLETED)
        for one in beside:
            if one.done():
                one.result()
        await task
    finally:
        task.cancel()


def _a_socket(port: int | None) -> socket:
    """The requested port; else the default one, or any free one if that is in use."""
    if port is not None:
        return bound(HOST, port)
    try:
        return bound(HOST, PORT)
    except Misconfigured:
        return bound(HOST, 0)


def _has_browser() -> bool:
    """Whether there is a screen; a browser inside the terminal is never opened."""
    if not sys.stdout.isatty() or os.environ.get("CI"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
