"""The real clock: the only place where the time of day, sleeping and chance are asked for."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.ports import Clock


def _monotonic() -> Callable[[], float]:
    """A monotonic clock that runs on while the machine is suspended, which time.monotonic() does not on Linux."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name):
            return partial(time.clock_gettime, getattr(time, name))
    return time.monotonic


class SystemClock:
    def __init__(self) -> None:
        self.now = _monotonic()
        self.wall = time.time
        self.chance = random.random
        self.sleep = asyncio.sleep

    def nonce(self) -> str:
        return secrets.token_hex(8)


def system_clock() -> Clock:
    return SystemClock()
