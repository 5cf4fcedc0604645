"""Whom a run waits for, since when, and what it heard last: a scheduled run ends rather than wait for ever.

What goes wrong is tried again without end, which is right for who runs all the time. Who was started to do what there
is to do, and cannot, has to say so: the next one would come beside it.
"""

from __future__ import annotations

from evenflow.errors import EvenflowError


class Waits:
    def __init__(self) -> None:
        self._open: dict[str, tuple[float, Exception]] = {}

    def begin(self, whom: str, error: Exception, now_s: float) -> None:
        """It failed, once more. Since when is counted from the first time."""
        since_s = self._open[whom][0] if whom in self._open else now_s
        self._open[whom] = since_s, error

    def end(self, whom: str) -> None:
        """It went on."""
        self._open.pop(whom, None)

    def given_up(self, after_s: float, now_s: float) -> Exception | None:
        """What to end with, if somebody has been waited for in vain for so long."""
        for since_s, error in self._open.values():
            if now_s - since_s >= after_s:
                return given_up(error, now_s - since_s)
        return None


def given_up(error: Exception, after_s: float) -> Exception:
    """The last error, and that nobody tries any more; an application's own is raised as it is."""
    if not isinstance(error, EvenflowError):
        return error
    told = type(error)(f"{error} It was tried for {after_s:.0f} s (give_up_s), and this run ends. Nothing is lost.")
    told.__cause__ = error
    return told
