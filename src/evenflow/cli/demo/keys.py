"""Single keys from the terminal, as they are pressed."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Keys:
    """While it is entered, keys come one by one and are not shown. Without a terminal none ever comes."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self._descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[int | list[bytes | int]] | None = None

    @property
    def possible(self) -> bool:
        return self._descriptor is not None

    def __enter__(self) -> Keys:
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
            asyncio.get_running_loop().add_reader(self._descriptor, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None and self._before is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    async def next(self, within_s: float) -> str | None:
        """The next key; None when none is pressed in time."""
        try:
            async with asyncio.timeout(within_s):
                return await self._pressed.get()
        except TimeoutError:
            return None

    def _take(self) -> None:
        assert self._descriptor is not None
        for dead_letter in os.read(self._descriptor, 64).decode(errors="ignore"):
            self._pressed.put_nowait(dead_letter)
