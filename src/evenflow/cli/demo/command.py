"""`evenflow demo`: the command itself, with a terminal and without."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from evenflow.cli.demo.ending import Ending
from evenflow.cli.demo.keys import Keys
from evenflow.cli.demo.lines import move_lines, progress_line, summary_lines
from evenflow.cli.demo.screen import draw
from evenflow.cli.demo.script import Action, announcement, cues
from evenflow.cli.demo.session import PARTITIONS, Session, Summary
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.ports import Clock

CONSUMERS = 3
LOOK_S = 0.5
LINE_EVERY_S = 3.0
PRESSED: dict[str, Action] = {"a": "add", "s": "stop", "k": "kill"}


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, metavar="N", help="End after so many seconds, with a summary.")
    ] = None,
    rate: Annotated[float, typer.Option(min=1, metavar="N", help="Events per second.")] = 7_000,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with the hub, the store and the logs.")] = False,
) -> None:
    """Show a hub, three consumers and how they share it: add, stop and kill them while it runs.

    Ends with what was sent, handled, lost and handled twice; exit code 0 only if nothing was lost.
    """
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="evenflow-demo-"))
    try:
        summary = asyncio.run(_Demo(folder, console, system_clock(), rate=rate, seconds=seconds).run())
    finally:
        if keep:
            console.print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if summary is None:
        raise typer.Exit(130)
    console.print("\n".join(summary_lines(summary)))
    raise typer.Exit(0 if _is_fine(summary) else 1)


def _is_fine(summary: Summary) -> bool:
    return summary.tally.lost == 0 and summary.tally.twice == 0 and not summary.died


class _Demo:
    def __init__(self, folder: Path, console: Console, clock: Clock, *, rate: float, seconds: float | None) -> None:
        self._console = console
        self._clock = clock
        self._rate = rate
        self._seconds = seconds
        self._session = Session(folder, clock, rate=rate, seconds=seconds)
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._cues = cues(seconds) if seconds is not None or not self._live else []
        self._ending = Ending()

    async def run(self) -> Summary | None:
        """The summary; None when somebody was in too much of a hurry for one."""
        try:
            return await self._ending.played(self._play())
        finally:
            # Also what was begun while it was cancelled.
            await self._session.close()

    async def _play(self) -> Summary:
        self._greet()
        await self._session.start(CONSUMERS)
        await (self._show_table() if self._live else self._print_lines())
        self._console.print("The homes fall silent. Waiting for the last events to be handled ...")
        await self._session.drain()
        return await self._session.summary()

    def _greet(self) -> None:
        self._console.print(
            f"A hub of {PARTITIONS} partitions, {self._rate:,.0f} home-sensor events a second, {CONSUMERS} consumer"
            " processes.",
        )
        self._console.print(f"Watch it from another terminal: {self._session.invitation}", markup=False)
        if self._cues:
            self._console.print(announcement(self._seconds))

    @property
    def _over(self) -> bool:
        return self._ending.is_asked or (self._seconds is not None and self._session.elapsed_s >= self._seconds)

    async def _show_table(self) -> None:
        with Live(console=self._console, screen=True, auto_refresh=False) as live, Keys() as keys:
            while not self._over:
                scene = await self._session.look()
                width, height = self._console.size
                live.update(draw(scene, width, height, keys=keys.possible), refresh=True)
                await self._obey(await keys.next(LOOK_S))
                await self._follow_script()

    async def _print_lines(self) -> None:
        next_s = LINE_EVERY_S
        while not self._over:
            scene = await self._session.look()
            if scene.elapsed_s >= next_s:
                next_s += LINE_EVERY_S
                self._print(scene.elapsed_s, *move_lines(self._session.fresh_moves()), progress_line(scene))
            await self._clock.sleep(LOOK_S)
            await self._follow_script()

    async def _obey(self, key: str | None) -> None:
        if key in PRESSED:
            await self._session.act(PRESSED[key])
        elif key == "q":
            self._ending.ask()

    async def _follow_script(self) -> None:
        while self._cues and self._session.elapsed_s >= self._cues[0].at_s:
            done = await self._session.act(self._cues.pop(0).action)
            if not self._live:
                self._print(self._session.elapsed_s, done)

    def _print(self, elapsed_s: float, *lines: str) -> None:
        for line in lines:
            self._console.print(f"{elapsed_s:5.0f} s  {line}", markup=False)
