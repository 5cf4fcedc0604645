"""Wake-ups for a store without notifications: polls the group object, more often while leases are moving.

A poll that finds nothing new is a conditional read without a body, the cheapest request there is. Polling is only an
optimization: an instance that is woken sends a heartbeat at once, and otherwise it sends its next one on time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError, Transient
from evenflow.stores.objects import codec as wire
from evenflow.stores.objects.client import ObjectUnchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from evenflow.model import Group
    from evenflow.stores.objects.client import BucketClient, ObjectVersion

log = logging.getLogger(__name__)

ACTIVE_POLL_S = 0.25
"""The poll interval while leases move and members join or leave."""
SETTLED_AFTER_S = 15.0
"""Without changes for this long, the normal poll interval applies again."""


class GroupWatcher:
    """Watches for leases that are handed to one instance, and for operator requests to the group."""

    def __init__(
        self,
        client: BucketClient,
        group: Group,
        instance: str,
        wake: Callable[[], None],
        own: Container[int],
        poll_s: float,
    ) -> None:
        """`own` are the revisions that this client made itself; they cause no wake-up."""
        self._client, self._group, self._instance, self._own = client, group, instance, own
        self._wake = wake
        self._poll_s = poll_s
        self._known: wire.GroupObjectBody | None = None
        self._version: ObjectVersion | None = None
        self._has_polled = False
        self._moved_at_s = -SETTLED_AFTER_S
        self._ended = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"watch {group}")

    def end(self) -> None:
        self._ended.set()
        self.task.cancel()

    async def _run(self) -> None:
        while not self._ended.is_set():
            try:
                await self._poll()
            except Transient:
                pass  # the next heartbeat reports it
            except EvenflowError as error:
                log.warning("Wake-ups are disabled; instances react with their next heartbeat: %s", error)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._ended.wait()

    @property
    def _pause_s(self) -> float:
        is_settled = asyncio.get_running_loop().time() - self._moved_at_s > SETTLED_AFTER_S
        return self._poll_s if is_settled else min(self._poll_s, ACTIVE_POLL_S)

    async def _poll(self) -> None:
        path = wire.group_object_path(self._group)
        try:
            found = await self._client.get(path, self._version)
        except ObjectUnchanged:
            return
        body = wire.unpack(found.data, wire.GroupObjectBody, self._client.name(path)) if found is not None else None
        before, self._known = self._known, body
        self._version = found.version if found is not None else None
        if self._has_moved(before, body):
            self._moved_at_s = asyncio.get_running_loop().time()
        # Changes before the first poll are unknown, so the first poll always wakes.
        is_first, self._has_polled = not self._has_polled, True
        if (is_first or self._concerns_instance(before, body)) and not self._ended.is_set():
            self._wake()

    def _has_moved(self, before: wire.GroupObjectBody | None, now: wire.GroupObjectBody | None) -> bool:
        if before is None or now is None:
            return before is not now
        return now.roster > before.revision or any(lease.revision > before.revision for lease in now.leases)

    def _concerns_instance(self, before: wire.GroupObjectBody | None, now: wire.GroupObjectBody | None) -> bool:
        """Returns True if the changes since the last poll are unknown."""
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
