"""Actions that run in the background, with progress messages.

An action may take a while (a seek waits until owners have released their partitions), and continues when the page is
closed. Its progress and result are a section of the group, which every open page shows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import asdict

from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.console.watch import GroupWatch
    from evenflow.operate.steer import Operator
    from evenflow.ports import Clock

log = logging.getLogger(__name__)

KEPT = 12
LINES_MOST = 20
SOON_S = 2.0
"""A request waits this long for the result; later the result comes with the stream."""

Report: TypeAlias = "Callable[[str], None]"


class Job:
    """One action, running or finished."""

    def __init__(self, number: int, label: str, who: Operator, at: float) -> None:
        self.number, self.label, self.who, self.at = number, label, who, at
        self.state = "running"
        self.lines: list[str] = []
        self.outcome = ""
        self.details: Any = None
        self.ended_at: float | None = None

    def facts(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "label": self.label,
            **asdict(self.who),
            "at": self.at,
            "state": self.state,
            "lines": self.lines[-LINES_MOST:],
            "outcome": self.outcome,
            "details": self.details,
            "ended_at": self.ended_at,
        }


class Jobs:
    """The jobs of one group."""

    def __init__(self, watch: GroupWatch, clock: Clock) -> None:
        self._watch, self._clock = watch, clock
        self._all: list[Job] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, label: str, who: Operator, run: Callable[[Report], Awaitable[tuple[str, Any]]]) -> Job:
        """Start it; returns when it is done, or after `SOON_S`. `run` returns a sentence and details."""
        number = self._all[-1].number + 1 if self._all else 1
        job = Job(number, label, who, self._clock.wall())
        self._all = [*self._all, job][-KEPT:]
        task = asyncio.get_running_loop().create_task(self._run(job, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._show()
        await asyncio.wait([task], timeout=SOON_S)
        return job

    async def aclose(self) -> None:
        """Interrupts running jobs, which clean up: a seek resumes what it paused."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, job: Job, run: Callable[[Report], Awaitable[tuple[str, Any]]]) -> None:
        def report(line: str) -> None:
            job.lines.append(line)
            self._show()

        try:
            job.outcome, job.details = await run(report)
            job.state = "done"
        except EvenflowError as error:
            job.state, job.outcome = "failed", str(error)
        except asyncio.CancelledError:
            job.state, job.outcome = "failed", "interrupted: the console was stopped"
            raise
        except Exception as error:
            log.exception("%s failed", job.label)
            job.state, job.outcome = "failed", f"{type(error).__name__}; see the console's log"
        finally:
            job.ended_at = self._clock.wall()
            self._show()
            self._watch.hurry()

    def _show(self) -> None:
        self._watch.put("jobs", [job.facts() for job in reversed(self._all)])
