"""What people have asked for on the page: carried out beside the page, with words on how far it is.

An action may take a while (a seek waits until owners have let go), and goes on when the page is closed. What becomes of
it is a section of the group's picture, for everybody who looks.
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
"""Whoever asked waits so long for the end; later it comes with the picture."""

Report: TypeAlias = "Callable[[str], None]"


class Job:
    """One of them."""

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
    """Those of one group."""

    def __init__(self, watch: GroupWatch, clock: Clock) -> None:
        self._watch, self._clock = watch, clock
        self._all: list[Job] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, label: str, who: Operator, do: Callable[[Report], Awaitable[tuple[str, Any]]]) -> Job:
        """Carry it out; returns when it is done, or has not ended soon. `do` returns a sentence and details."""
        number = self._all[-1].number + 1 if self._all else 1
        work = Job(number, label, who, self._clock.wall())
        self._all = [*self._all, work][-KEPT:]
        task = asyncio.get_running_loop().create_task(self._carry_out(work, do))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._show()
        await asyncio.wait([task], timeout=SOON_S)
        return work

    async def aclose(self) -> None:
        """What goes on is interrupted, and tidies up: a seek resumes what it paused."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, work: Job, do: Callable[[Report], Awaitable[tuple[str, Any]]]) -> None:
        def tell(line: str) -> None:
            work.lines.append(line)
            self._show()

        try:
            work.outcome, work.details = await do(tell)
            work.state = "done"
        except EvenflowError as error:
            work.state, work.outcome = "failed", str(error)
        except asyncio.CancelledError:
            work.state, work.outcome = "failed", "interrupted: the console has ended"
            raise
        except Exception as error:
            log.exception("%s failed", work.label)
            work.state, work.outcome = "failed", f"{type(error).__name__}; the console's log tells more"
        finally:
            work.ended_at = self._clock.wall()
            self._show()
            self._watch.hurry()

    def _show(self) -> None:
        self._watch.put("works", [work.facts() for work in reversed(self._all)])
