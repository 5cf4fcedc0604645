"""All groups of a store, with a watch for each one that is displayed."""

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
"""This many groups are watched all the time, so that their pages open with history."""


def key_of(group: Group) -> str:
    """The group as a part of a URL."""
    return "/".join(quote(part, safe="") for part in (group.namespace, group.hub, group.name))


class OpenGroup:
    """One group with everything that its page needs."""

    def __init__(self, subject: Subject, group: Group, clock: Clock, watch: GroupWatch) -> None:
        self._subject = subject
        self.watch = watch
        self.jobs = Jobs(self.watch, clock)
        self.runner = ActionRunner(subject, group, clock)

    async def dead_letters(self) -> DeadLetterList:
        """Misconfigured when their location is unknown."""
        if self._subject.dead_letters is None:
            raise Misconfigured("The location of the dead letters is unknown. Start the console with --dead-letters.")
        return await read_dead_letters(self._subject.dead_letters(), self.watch.group)

    async def aclose(self) -> None:
        await self.jobs.aclose()
        await self.watch.aclose()


class GroupRegistry:
    def __init__(
        self,
        subject: Subject,
        clock: Clock,
        *,
        every_s: float = EVERY_S,
        unseen_every_s: float = UNSEEN_EVERY_S,
        extra: ExtraSections = lambda group: {},
    ) -> None:
        self.subject, self._clock, self._extra = subject, clock, extra
        self._every_s, self._unseen_every_s = every_s, unseen_every_s
        self.viewers = 0
        """Pages that show the list of groups."""
        self._woken = asyncio.Event()
        self._opened: dict[str, OpenGroup] = {}
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
        """A page has opened the list: refresh it and its groups now."""
        self._woken.set()
        for opened in self._opened.values():
            opened.watch.hurry()

    def end_streams(self) -> None:
        """Ends all streams to pages, so that the server can end."""
        self.ended = True
        for opened in self._opened.values():
            opened.watch.version.change()
        self.version.change()

    async def aclose(self) -> None:
        self.end_streams()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for opened in self._opened.values():
            await opened.aclose()

    async def snapshots(self) -> list[GroupSnapshot]:
        """A fresh snapshot of each watched group, except deleted groups and those that cannot be read now."""
        if not self._groups:
            await self._find()
            for key in [*self._groups][:KEPT_WATCHED]:
                self._open(key)
        watches = [opened.watch for opened in self._opened.values()]
        await asyncio.gather(*(watch.freshen() for watch in watches))
        seen = [watch.snapshot for watch in watches if watch.snapshot is not None and watch.stale is None]
        return [snapshot for snapshot in seen if snapshot.found.ledger is not None]

    async def open(self, key: str) -> OpenGroup:
        """Misconfigured when there is no such group."""
        if key not in self._groups:
            await self._find()
        if key not in self._groups:
            known = ", ".join(map(str, self._groups.values())) or "none yet"
            raise Misconfigured(f"The store has no group {key}. It has: {known}.")
        return self._open(key)

    def _open(self, key: str) -> OpenGroup:
        if key not in self._opened:
            group = self._groups[key]
            watch = GroupWatch(
                self.subject,
                group,
                self._clock,
                every_s=self._every_s,
                unseen_every_s=self._unseen_every_s,
                extra=self._extra,
                is_listed=lambda: self.viewers > 0,
            )
            self._opened[key] = OpenGroup(self.subject, group, self._clock, watch)
            watch.start()
        return self._opened[key]

    async def _find(self) -> Sequence[Group]:
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await operable(self.subject.store).groups()
        except TimeoutError as error:
            raise StoreUnavailable(f"The store did not answer within {LIMIT_S:.0f} s.") from error
        wanted = [group for group in found if self.subject.group in (None, group.name)]
        # A deleted group stays, for pages that show it.
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
        """Until the next refresh, or until a page opens the list."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._list_every_s()):
                await self._woken.wait()
        self._woken.clear()

    def _brief(self, group: Group) -> dict[str, Any]:
        opened = self._opened.get(key_of(group))
        watch = opened.watch if opened is not None else None
        snapshot = watch.snapshot if watch is not None else None
        stale = watch.stale["why"] if watch is not None and watch.stale is not None else ""
        return {"key": key_of(group), "watched": watch is not None, **brief(group, snapshot, stale)}

    def _show(self, made: dict[str, Any], problem: str | None) -> None:
        self.fragments |= {name: json.encode(value) for name, value in made.items()}
        at = self._clock.wall()
        self._stale_since = None if problem is None else self._stale_since or at
        again_s = self._list_every_s()
        stale = {"since": self._stale_since, "why": problem, "again_s": again_s} if problem is not None else None
        self.fragments["now"] = json.encode({"at": at, "stale": stale})
        self.version.change()
