"""Whom a run waits for, since when, and what it heard last: a scheduled run ends rather than wait for ever.

What goes wrong is tried again without end, which is right for who runs all the time. Who was started to do what there
is to do, and cannot, has to say so: the next one would come beside it.
"""

from __future__ import annotations

from evenflow.errors import EvenflowError


class Waits:
    def __init__(self) -> None:
        self._open: dict[str, tuple[float, Exception]] = {}

    def begin(self, whom: str, error: Exception, tried_s: float) -> bool:
        """It failed, once more; whether that is new. Since when is counted from when the first try began."""
        is_new = whom not in self._open
        self._open[whom] = tried_s if is_new else self._open[whom][0], error
        return is_new

    def is_open(self, whom: str) -> bool:
        return whom in self._open

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
    tried = f"{after_s:.1f}" if after_s < 10 else f"{after_s:.0f}"
    told = type(error)(f"{error} It was tried for {tried} s (give_up_s), and this run ends. Nothing is lost.")
    told.__cause__ = error
    return told
