"""Wake-ups of a PostgreSQL store: dispatches notifications to the watches of groups and instances."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.postgresql.listener import NotificationListener

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.drivers.postgresql.pool import ConnectionFactory
    from evenflow.model import Group


class _GroupWatch(NamedTuple):
    group: str
    instance: str
    wake: Callable[[], None]


def group_key(group: Group) -> str:
    """The group's key in notifications, as the function `wake` of the schema computes it."""
    text = f"{group.namespace}\n{group.hub}\n{group.name}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class PostgreSQLWakeups:
    def __init__(self, factory: ConnectionFactory, channel: str) -> None:
        self._watches: list[_GroupWatch] = []
        self._listener = NotificationListener(factory, channel, self._notified)

    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        watch = _GroupWatch(group_key(group), instance, wake)
        self._watches.append(watch)
        self._listener.begin()

        def end() -> None:
            # By identity: two watches may be equal.
            self._watches[:] = [one for one in self._watches if one is not watch]

        return end

    async def aclose(self) -> None:
        self._watches.clear()
        await self._listener.aclose()

    def _notified(self, payload: str) -> None:
        """An empty group means all groups; an empty instance means all instances of the group."""
        group, _, instance = payload.partition(" ")
        for watch in list(self._watches):
            if group in ("", watch.group) and instance in ("", watch.instance):
                watch.wake()
