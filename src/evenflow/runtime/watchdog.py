"""Finds out when a handler holds the event loop, and tells where: heartbeats cannot be sent meanwhile."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from evenflow.signals import LoopBlocked

if TYPE_CHECKING:
    from evenflow.signals import Announcer

logger = logging.getLogger("evenflow")

LIMIT_S = 1.0


class LoopWatch:
    """A thread that asks the loop for a sign of life, and takes its stack when none comes."""

    def __init__(self, announce: Announcer, limit_s: float = LIMIT_S) -> None:
        self._announce = announce
        self._limit_s = limit_s
        self._end = threading.Event()

    def start(self) -> None:
        self._end = threading.Event()
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(
            target=self._live, args=(self._end, loop, thread_id), name="evenflow-loop-watch", daemon=True
        ).start()

    def stop(self) -> None:
        self._end.set()

    def _live(self, end: threading.Event, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        while not end.wait(self._limit_s):
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
                if answered.wait(self._limit_s):
                    continue
                stack = _stack_of(thread_id)
                logger.warning("the event loop has been blocked for %.1f s, by:\n%s", self._limit_s, stack)
                waited_s = self._limit_s
                while not answered.wait(self._limit_s) and not end.is_set():
                    waited_s += self._limit_s
                loop.call_soon_threadsafe(self._tell, waited_s, stack)
            except RuntimeError:
                return  # the loop is closed

    def _tell(self, seconds: float, stack: str) -> None:
        self._announce(LoopBlocked, seconds=seconds, stack=stack)


def _stack_of(thread_id: int) -> str:
    frame = sys._current_frames().get(thread_id)
    return "".join(traceback.format_stack(frame, limit=12)) if frame is not None else "(the thread is gone)"
