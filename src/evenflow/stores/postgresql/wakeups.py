"""Wake-ups of a PostgreSQL store: who is meant by what was announced."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.postgresql.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.drivers.postgresql.pool import Door
    from evenflow.model import Group


class _GroupWatch(NamedTuple):
    group: str
    instance: str
    wake: Callable[[], None]


def group_key(group: Group) -> str:
    """As the function `wake` of the schema says it."""
    text = f"{group.namespace}\n{group.hub}\n{group.name}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class PostgreSQLWakeups:
    def __init__(self, door: Door, channel: str) -> None:
        self._watches: list[_GroupWatch] = []
        self._listener = Listener(door, channel, self._told)

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

    def _told(self, payload: str) -> None:
        """Without a group all are meant, without an instance all of the group."""
        group, _, instance = payload.partition(" ")
        for watch in list(self._watches):
            if group in ("", watch.group) and instance in ("", watch.instance):
                watch.wake()
