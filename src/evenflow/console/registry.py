"""All groups of a store: which there are, and a watch for each that somebody looks at."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import json

from evenflow.console.actions import ActionRunner
from evenflow.console.dead_letters import read_dead_letters
from evenflow.console.jobs import Jobs
from evenflow.console.sections import brief
from evenflow.console.watch import EVERY_S, LIMIT_S, LIST_EVERY_S, UNSEEN_EVERY_S, GroupWatch, Revision
from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable
from evenflow.operate.inspect.survey import operable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.console.dead_letters import DeadLetterList
    from evenflow.console.watch import ExtraSections, Subject
    from evenflow.model import Group
    from evenflow.operate.inspect.watcher import GroupSnapshot
    from evenflow.ports import Clock

log = logging.getLogger(__name__)

KEPT_WATCHED = 16
"""So many groups are watched all the time, so that their past is known when somebody opens them."""


def key_of(group: Group) -> str:
    """What a group is called in an address."""
    return "/".join(quote(part, safe="") for part in (group.namespace, group.hub, group.name))


class OpenGroup:
    """One group with all that a page needs of it."""

    def __init__(self, subject: Subject, group: Group, clock: Clock, watch: GroupWatch) -> None:
        self._subject = subject
        self.watch = watch
        self.works = Jobs(self.watch, clock)
        self.actor = ActionRunner(subject, group, clock)

    async def dead_letters(self) -> DeadLetterList:
        """Misconfigured when nobody said where they are."""
        if self._subject.dead_letters is None:
            raise Misconfigured("Nobody said where the dead letters are: start the console with --dead-letters.")
        return await read_dead_letters(self._subject.dead_letters(), self.watch.group)

    async def aclose(self) -> None:
        await self.works.aclose()
        await self.watch.aclose()


class GroupRegistry:
    def __init__(
        self,
        subject: Subject,
        clock: Clock,
        *,
        every_s: float = EVERY_S,
        unseen_every_s: float = UNSEEN_EVERY_S,
        beside: ExtraSections = lambda group: {},
    ) -> None:
        self.subject, self._clock, self._beside = subject, clock, beside
        self._every_s, self._unseen_every_s = every_s, unseen_every_s
        self.viewers = 0
        """Of the list."""
        self._woken = asyncio.Event()
        self._rooms: dict[str, OpenGroup] = {}
        self._groups: dict[str, Group] = {}
        self._task: asyncio.Task[None] | None = None
        self.ended = False
        self._stale_since: float | None = None
        self.version = Revision()
        self.fragments: dict[str, bytes] = {}
        """The list of groups, as JSON."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name="console: groups")

    def hurry(self) -> None:
        """Somebody has opened the list: look now, at it and at all that is in it."""
        self._woken.set()
        for room in self._rooms.values():
            room.watch.hurry()

    def end_streams(self) -> None:
        """Whoever still reads is let go, so that the server can end."""
        self.ended = True
        for room in self._rooms.values():
            room.watch.version.change()
        self.version.change()

    async def aclose(self) -> None:
        self.end_streams()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for room in self._rooms.values():
            await room.aclose()

    async def looks(self) -> list[GroupSnapshot]:
        """A fresh one of each group that is watched. Of one that cannot be seen now, or is deleted, there is none."""
        if not self._groups:
            await self._find()
            for key in [*self._groups][:KEPT_WATCHED]:
                self._open(key)
        watches = [room.watch for room in self._rooms.values()]
        await asyncio.gather(*(watch.freshen() for watch in watches))
        seen = [watch.look for watch in watches if watch.look is not None and watch.stale is None]
        return [look for look in seen if look.found.ledger is not None]

    async def room(self, key: str) -> OpenGroup:
        """Misconfigured when there is no such group."""
        if key not in self._groups:
            await self._find()
        if key not in self._groups:
            known = ", ".join(map(str, self._groups.values())) or "none yet"
            raise Misconfigured(f"The store knows no group {key}. It has: {known}.")
        return self._open(key)

    def _open(self, key: str) -> OpenGroup:
        if key not in self._rooms:
            group = self._groups[key]
            watch = GroupWatch(
                self.subject,
                group,
                self._clock,
                every_s=self._every_s,
                unseen_every_s=self._unseen_every_s,
                beside=self._beside,
                is_listed=lambda: self.viewers > 0,
            )
            self._rooms[key] = OpenGroup(self.subject, group, self._clock, watch)
            watch.start()
        return self._rooms[key]

    async def _find(self) -> Sequence[Group]:
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await operable(self.subject.store).groups()
        except TimeoutError as error:
            raise StoreUnavailable(f"The store did not answer within {LIMIT_S:.0f} s.") from error
        wanted = [group for group in found if self.subject.group in (None, group.name)]
        # A group that was deleted stays, for those who have its page open.
        self._groups |= {key_of(group): group for group in wanted}
        return wanted

    async def _live(self) -> None:
        while True:
            try:
                groups = await self._find()
                for group in groups[:KEPT_WATCHED]:
                    self._open(key_of(group))
                self._show({"groups": [self._brief(group) for group in groups]}, None)
            except EvenflowError as error:
                self._show({}, str(error))
            except Exception as error:
                log.exception("the groups could not be listed")
                self._show({}, type(error).__name__)
            await self._rest()

    def _list_every_s(self) -> float:
        return max(self._every_s, LIST_EVERY_S if self.viewers else self._unseen_every_s)

    async def _rest(self) -> None:
        """Or until somebody opens the list."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._list_every_s()):
                await self._woken.wait()
        self._woken.clear()

    def _brief(self, group: Group) -> dict[str, Any]:
        room = self._rooms.get(key_of(group))
        watch = room.watch if room is not None else None
        look = watch.look if watch is not None else None
        stale = watch.stale["why"] if watch is not None and watch.stale is not None else ""
        return {"key": key_of(group), "watched": watch is not None, **brief(group, look, stale)}

    def _show(self, made: dict[str, Any], problem: str | None) -> None:
        self.fragments |= {name: json.encode(value) for name, value in made.items()}
        at = self._clock.wall()
        self._stale_since = None if problem is None else self._stale_since or at
        again_s = self._list_every_s()
        stale = {"since": self._stale_since, "why": problem, "again_s": again_s} if problem is not None else None
        self.fragments["now"] = json.encode({"at": at, "stale": stale})
        self.version.change()
