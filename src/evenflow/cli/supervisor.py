"""Keeps N worker processes running: starts them, starts them again when they die, ends them together.

What a worker writes to stderr goes on with its name in front. A worker that ends by itself without an error stays
ended; one that says that a restart cannot mend it ends all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.cli import leash
from evenflow.cli.output import show_time
from evenflow.cli.pulse import Health
from evenflow.cli.worker import WRONG
from evenflow.errors import EvenflowError, Misconfigured

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Sequence

    from evenflow.ports import Clock

PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 30.0
WELL_S = 60.0
"""A worker that has run for so long has run well: what comes next is not the same trouble."""
READ_BYTES = 1 << 16
LAST_WORDS_S = 1.0
ERROR = "error: "
"""How a worker's last line begins that says what was wrong."""


class Restarts(Struct, frozen=True):
    """How often a worker has died in a row."""

    deaths: int = 0

    def after(self, ran_s: float) -> Restarts:
        return Restarts(1 if ran_s >= WELL_S else self.deaths + 1)

    @property
    def pause_s(self) -> float:
        """Before it is started again."""
        return float(min(PAUSE_MOST_S, PAUSE_FIRST_S * 2 ** min(self.deaths - 1, 10)))


class Supervisor:
    def __init__(
        self, command: Sequence[str], workers: int, *, stop_s: float, clock: Clock, say: Callable[[str, str], None]
    ) -> None:
        self._command = command
        self._names = [f"worker-{number}" for number in range(1, workers + 1)]
        self._stop_s = stop_s
        self._clock = clock
        self._say = say
        """(who, line): a worker, or "run" itself."""
        self._running: dict[str, Process] = {}
        self._health = {name: Health(clock) for name in self._names}
        self._stopping = asyncio.Event()
        self._wrong: EvenflowError | None = None
        self._killed = 0

    async def run(self) -> None:
        """Until all have ended. Raises what no restart can mend, and when a worker had to be killed."""
        ending = asyncio.create_task(self._end_all())
        await asyncio.gather(*(self._keep(name) for name in self._names))
        ending.cancel()
        if self._wrong is not None:
            raise self._wrong
        if self._killed:
            raise EvenflowError(
                f"{self._killed} of the workers had to be killed before they had stopped:"
                " others take their partitions over after a time-to-live."
            )

    def stop(self) -> None:
        """Ask all to end; asked a second time, kill them."""
        if self._stopping.is_set():
            self._kill()
            return
        self.tell("run", "stopping the workers; asked once more, it kills them")
        self._stopping.set()

    # --- what a platform is told
    def why_not_live(self) -> str | None:
        stuck = [name for name, health in self._health.items() if health.is_stuck]
        return f"stuck: {', '.join(stuck)}" if stuck else None

    def why_not_ready(self) -> str | None:
        if self._stopping.is_set():
            return "stopping"
        waiting = [name for name, health in self._health.items() if not health.has_joined]
        return f"not joined: {', '.join(waiting)}" if waiting else None

    def tell(self, who: str, line: str) -> None:
        """Our own words; what a worker writes goes on as it is."""
        self._say(who, f"{show_time(self._clock.wall())} {line}")

    async def _keep(self, name: str) -> None:
        restarts = Restarts()
        while not self._stopping.is_set():
            started_s = self._clock.now()
            code, last_line = await self._live(name)
            if code == WRONG:
                self._wrong = Misconfigured(last_line.removeprefix(ERROR))
                self._stopping.set()
            if self._stopping.is_set():
                return
            if code == 0:
                del self._health[name]  # nobody waits for it to join again
                self.tell(name, "ended by itself, so it is not started again; to have it back, start it all anew")
                return
            restarts = restarts.after(self._clock.now() - started_s)
            self.tell(name, f"died ({_how(code)}); again in {restarts.pause_s:g} s")
            await self._pause(restarts.pause_s)

    async def _live(self, name: str) -> tuple[int, str]:
        """One life of a worker: its exit code, and the last line that it wrote."""
        pulse = self._health[name].begin()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *("--pulse", str(pulse)),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(pulse,),
                # Ctrl-C must reach only the supervisor, which passes it on.
                start_new_session=True,
            )
        finally:
            os.close(pulse)
        self._running[name] = process
        if self._stopping.is_set():
            leash.send(process, signal.SIGTERM)
        self.tell(name, f"started as process {process.pid}")
        voice = Voice(process, lambda line: self._say(name, line))
        code = await process.wait()
        del self._running[name]
        self._health[name].end()
        last_line = await voice.end()
        if code != WRONG and self._wrong is None:
            voice.release()
        return code, last_line

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _end_all(self) -> None:
        """Once asked to: SIGTERM to each, and to those who are left at the deadline, SIGKILL."""
        await self._stopping.wait()
        for process in self._running.values():
            leash.send(process, signal.SIGTERM)
        await self._clock.sleep(self._stop_s)
        self._kill()

    def _kill(self) -> None:
        for process in self._running.values():
            self._killed += leash.send(process, signal.SIGKILL)


class Voice:
    """Passes the lines on that a process writes to stderr, as they come.

    An error is held until it is known not to be the last word: what ends all is told once, by whoever ends it.
    """

    def __init__(self, process: Process, say: Callable[[str], None]) -> None:
        self._process = process
        self._say_line = say
        self._last_line = ""
        self._held: str | None = None
        self._task = asyncio.create_task(self._repeat())

    async def end(self) -> str:
        """After the process has ended: the last line. A grandchild that keeps the pipe open is not waited for."""
        await asyncio.wait([self._task], timeout=LAST_WORDS_S)
        self._task.cancel()
        return self._last_line

    async def _repeat(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > READ_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        self.release()
        self._last_line = line.decode(errors="replace")
        if self._last_line.startswith(ERROR):
            self._held = self._last_line
        else:
            self._say_line(self._last_line)

    def release(self) -> None:
        """Say what was held."""
        held, self._held = self._held, None
        if held is not None:
            self._say_line(held)


def worker_command(target: str, workers: int, log_level: str) -> list[str]:
    return [sys.executable, "-m", "evenflow.cli.worker", target, "--of", str(workers), "--log-level", log_level]


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
