"""Keeps N worker processes running: starts them, restarts them when they die, stops them together.

Lines that a worker writes to stderr are passed on with its name in front. A worker that exits with code 0 is not
restarted. A worker that reports an error which a restart cannot fix stops all workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.cli import parent_watch
from evenflow.cli.liveness import WorkerLiveness
from evenflow.cli.output import show_time
from evenflow.cli.worker import NO_RESTART
from evenflow.errors import EvenflowError, Misconfigured
from evenflow.text import count_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Sequence

    from evenflow.ports import Clock

DELAY_FIRST_S = 1.0
DELAY_MOST_S = 30.0
STABLE_S = 60.0
"""A worker that ran for this long was healthy: its next death starts a new count."""
READ_BYTES = 1 << 16
LAST_LINES_S = 1.0
ERROR = "error: "
"""The beginning of a worker's last line if it names an error."""


class RestartBackoff(Struct, frozen=True):
    """How often a worker has died in a row, and how long to wait before it is restarted."""

    deaths: int = 0

    def after(self, ran_s: float) -> RestartBackoff:
        return RestartBackoff(1 if ran_s >= STABLE_S else self.deaths + 1)

    @property
    def delay_s(self) -> float:
        return float(min(DELAY_MOST_S, DELAY_FIRST_S * 2 ** min(self.deaths - 1, 10)))


class Supervisor:
    def __init__(
        self, command: Sequence[str], workers: int, *, stop_s: float, clock: Clock, say: Callable[[str, str], None]
    ) -> None:
        self._command = command
        self._names = [f"worker-{number}" for number in range(1, workers + 1)]
        self._stop_s = stop_s
        self._clock = clock
        self._say = say
        """Called with the name of a worker (or "run" for the supervisor itself) and a line."""
        self._running: dict[str, Process] = {}
        self._health = {name: WorkerLiveness(clock) for name in self._names}
        self._stopping = asyncio.Event()
        self._fatal: EvenflowError | None = None
        self._killed = 0

    async def run(self) -> None:
        """Run until all workers have ended. Raises an error that no restart can fix, and if a worker was killed."""
        ending = asyncio.create_task(self._end_all())
        await asyncio.gather(*(self._keep(name) for name in self._names))
        ending.cancel()
        if self._fatal is not None:
            raise self._fatal
        if self._killed:
            raise EvenflowError(
                f"{count_of(self._killed, 'worker')} did not stop in time and had to be killed:"
                " other instances take over the partitions when the leases expire."
            )

    def stop(self) -> None:
        """Ask all workers to stop; called a second time, kill them."""
        if self._stopping.is_set():
            self._kill()
            return
        self.log("run", "stopping workers; press Ctrl-C (or send SIGTERM) again to kill them")
        self._stopping.set()

    # --- health endpoints
    def why_not_live(self) -> str | None:
        stuck = [name for name, health in self._health.items() if health.is_stuck]
        return f"stuck: {', '.join(stuck)}" if stuck else None

    def why_not_ready(self) -> str | None:
        if self._stopping.is_set():
            return "stopping"
        waiting = [name for name, health in self._health.items() if not health.has_joined]
        return f"not joined: {', '.join(waiting)}" if waiting else None

    def log(self, name: str, line: str) -> None:
        """A line of the supervisor itself, with the time. Lines of a worker are passed on unchanged."""
        self._say(name, f"{show_time(self._clock.wall())} {line}")

    async def _keep(self, name: str) -> None:
        backoff = RestartBackoff()
        while not self._stopping.is_set():
            started_s = self._clock.now()
            code, last_line = await self._run_once(name)
            if code == NO_RESTART:
                self._fatal = Misconfigured(last_line.removeprefix(ERROR))
                self._stopping.set()
            if self._stopping.is_set():
                return
            if code == 0:
                del self._health[name]  # /ready no longer waits for it
                self.log(name, "exited normally and is not restarted; restart `evenflow run` to bring it back")
                return
            backoff = backoff.after(self._clock.now() - started_s)
            self.log(name, f"died ({_how(code)}); restarting in {backoff.delay_s:g} s")
            await self._wait(backoff.delay_s)

    async def _run_once(self, name: str) -> tuple[int, str]:
        """Start a worker and wait for its end: its exit code, and the last line that it wrote."""
        liveness = self._health[name].begin()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *("--liveness", str(liveness)),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(liveness,),
                # Ctrl-C must reach only the supervisor, which passes it on.
                start_new_session=True,
            )
        finally:
            os.close(liveness)
        self._running[name] = process
        if self._stopping.is_set():
            parent_watch.send(process, signal.SIGTERM)
        self.log(name, f"started (pid {process.pid})")
        relay = StderrRelay(process, lambda line: self._say(name, line))
        code = await process.wait()
        del self._running[name]
        self._health[name].end()
        last_line = await relay.end()
        if code != NO_RESTART and self._fatal is None:
            relay.release()
        return code, last_line

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _end_all(self) -> None:
        """When asked to stop: SIGTERM to each worker; at the deadline, SIGKILL to those that still run."""
        await self._stopping.wait()
        for process in self._running.values():
            parent_watch.send(process, signal.SIGTERM)
        await self._clock.sleep(self._stop_s)
        self._kill()

    def _kill(self) -> None:
        for process in self._running.values():
            self._killed += parent_watch.send(process, signal.SIGKILL)


class StderrRelay:
    """Passes on the lines that a process writes to stderr, as they arrive.

    A line that begins with "error: " is held back until another follows: if it is the last one and stops all workers,
    the supervisor's caller prints it, once.
    """

    def __init__(self, process: Process, say: Callable[[str], None]) -> None:
        self._process = process
        self._say_line = say
        self._last_line = ""
        self._held: str | None = None
        self._task = asyncio.create_task(self._relay())

    async def end(self) -> str:
        """The last line of a process that has ended. It does not wait for a grandchild that keeps the pipe open."""
        await asyncio.wait([self._task], timeout=LAST_LINES_S)
        self._task.cancel()
        return self._last_line

    async def _relay(self) -> None:
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
        """Pass on the line that was held back."""
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
