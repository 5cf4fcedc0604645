"""Tells the application of trouble that is no partition's own: a source, or a store, that is away as a whole.

Once when it begins, and not with every try: `Waits` knows which is which. Each call is a task of its own, so that a
slow hook holds up neither the start nor a heartbeat.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.runtime.parts import call_hook
from evenflow.signals import Trouble

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from evenflow.runtime.parts import Hook
    from evenflow.runtime.threads import Threads
    from evenflow.signals import Announcer


class Alarm:
    def __init__(
        self,
        hook: Hook | None,
        announce: Announcer,
        threads: Threads,
        cut_off: asyncio.Event,
        gate: AbstractAsyncContextManager[object],
    ) -> None:
        self._hook, self._announce = hook, announce
        self._threads, self._cut_off, self._gate = threads, cut_off, gate
        self._calls: set[asyncio.Task[None]] = set()

    def ring(self, error: Exception) -> None:
        if self._hook is not None:
            call = asyncio.create_task(self._call(self._hook, error), name="alarm")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def aclose(self, within_s: float) -> None:
        """Nobody is called any more. What runs is cancelled, and given a little time to end."""
        for call in (calls := list(self._calls)):
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=within_s)

    async def _call(self, hook: Hook, error: Exception) -> None:
        try:
            async with self._gate:
                await call_hook(self._threads, self._cut_off, hook, error)
        except Exception as raised:
            self._announce(Trouble, where="hook", error=raised)
