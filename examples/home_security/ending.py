"""How the demo ends: the first Ctrl-C stops it in order, with a summary; the second one ends it at once."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")


class Ending:
    """Ctrl-C, SIGTERM, and the end of the terminal are requests to end, while something is played."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    async def wait(self) -> None:
        """Until the first request."""
        await self._asked.wait()

    async def played(self, play: Coroutine[Any, Any, T]) -> T | None:
        """The result of `play`; None if a second request came before it was done. Then `play` is cancelled."""
        with self._heard():
            playing = asyncio.create_task(play)
            hurrying = asyncio.create_task(self._hurry.wait())
            try:
                await asyncio.wait([playing, hurrying], return_when=asyncio.FIRST_COMPLETED)
                return playing.result() if playing.done() else None
            finally:
                playing.cancel()
                hurrying.cancel()
                await asyncio.gather(playing, hurrying, return_exceptions=True)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.ask)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
