"""Wake-ups where nobody can call: a look at the heart now and then, oftener while things move.

A look that finds nothing new carries nothing, and is the cheapest request there is. It is no part of what instances
agree on: whoever is woken heartbeats, and whoever is not heartbeats later.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError, Transient
from evenflow.stores.objects import codec as wire
from evenflow.stores.objects.client import Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from evenflow.model import Group
    from evenflow.stores.objects.client import Link, Version

log = logging.getLogger(__name__)

RESTLESS_S = 0.25
"""Between two looks, while leases move and members come and go."""
SETTLED_S = 15.0
"""So long after the last change."""


class Watcher:
    """Looks for leases that were given to one instance, and for what people ask of the group."""

    def __init__(
        self, link: Link, group: Group, instance: str, wake: Callable[[], None], own: Container[int], poll_s: float
    ) -> None:
        """`own` are the revisions that this client made itself: of those it need not be told."""
        self._link, self._group, self._instance, self._own = link, group, instance, own
        self._wake = wake
        self._poll_s = poll_s
        self._known: wire.HeartBody | None = None
        self._version: Version | None = None
        self._has_looked = False
        self._moved_at_s = -SETTLED_S
        self._ended = asyncio.Event()
        self.task = asyncio.create_task(self._live(), name=f"watch {group}")

    def end(self) -> None:
        self._ended.set()
        self.task.cancel()

    async def _live(self) -> None:
        while not self._ended.is_set():
            try:
                await self._look()
            except Transient:
                pass  # whoever heartbeats will say so
            except EvenflowError as error:
                log.warning("Nobody is woken before a heartbeat: %s", error)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._ended.wait()

    @property
    def _pause_s(self) -> float:
        is_settled = asyncio.get_running_loop().time() - self._moved_at_s > SETTLED_S
        return self._poll_s if is_settled else min(self._poll_s, RESTLESS_S)

    async def _look(self) -> None:
        path = wire.heart_path(self._group)
        try:
            found = await self._link.get(path, self._version)
        except Unchanged:
            return
        body = wire.unpack(found.data, wire.HeartBody, self._link.name(path)) if found is not None else None
        before, self._known = self._known, body
        self._version = found.version if found is not None else None
        if self._has_moved(before, body):
            self._moved_at_s = asyncio.get_running_loop().time()
        # What happened before the first look is not known: so that one wakes, too.
        is_first, self._has_looked = not self._has_looked, True
        if (is_first or self._is_called(before, body)) and not self._ended.is_set():
            self._wake()

    def _has_moved(self, before: wire.HeartBody | None, now: wire.HeartBody | None) -> bool:
        if before is None or now is None:
            return before is not now
        return now.roster > before.revision or any(lease.revision > before.revision for lease in now.leases)

    def _is_called(self, before: wire.HeartBody | None, now: wire.HeartBody | None) -> bool:
        """When it cannot be told what happened since the last look, something may have."""
        if before is None or now is None:
            return before is not now
        if now.state != before.state or now.floor > before.revision or now.revision < before.revision:
            return True
        return any(
            lease.revision > before.revision
            and lease.owner is not None
            and lease.owner.id == self._instance
            and lease.revision not in self._own
            for lease in now.leases
        )
