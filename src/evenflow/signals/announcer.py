"""Hands signals to listeners and to the log.

Listeners are called on the event loop, one after the other, and must be quick. A listener that raises is logged and
changes nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from evenflow.signals.failures import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.signals.base import Signal

logger = logging.getLogger("evenflow")


class Announcer:
    """Stamps signals and hands them to all listeners; the log is always one of them."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._listeners: list[Callable[[Signal], None]] = []
        self.instance = ""
        self.group = ""
        self.group_name = ""

    def listen(self, listener: Callable[[Signal], None]) -> None:
        self._listeners.append(listener)

    def __call__(self, kind: type[Signal], **facts: Any) -> None:
        if not self._listeners and not logger.isEnabledFor(kind.level):
            return
        who = {"instance": self.instance, "group": self.group, "group_name": self.group_name}
        signal = kind(at=self._wall(), **who, **facts)
        logger.log(signal.severity, "%s", signal, exc_info=_trace(signal))
        for listener in self._listeners:
            try:
                listener(signal)
            except Exception:
                logger.exception("a signal listener failed on %s", type(signal).__name__)


def _trace(signal: Signal) -> Any:
    """The traceback for the log: the application's own frames, without those of the runtime that called it."""
    error = signal.trace if isinstance(signal, Trouble) else None
    if error is None:
        return None
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("evenflow.runtime."):
        trace = trace.tb_next
    return type(error), error, trace
