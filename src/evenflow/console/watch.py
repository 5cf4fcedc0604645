"""Watches one group for all pages that show it, and backs off when the store does not answer.

While the store is unreachable, the last snapshot stays and says since when it is stale, and why. While the source is
unreachable or hangs, only what depends on it is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, json
from msgspec.structs import replace

from evenflow.console.history import GroupHistory, is_large
from evenflow.console.sections import InstanceTags, PageContext, sections
from evenflow.errors import EvenflowError, StoreUnavailable
from evenflow.operate.dead_letters.counter import DeadLetterCounter
from evenflow.operate.inspect.duplicates import DuplicateEstimator
from evenflow.operate.inspect.hints import Hints
from evenflow.operate.inspect.silences import SilenceHistory
from evenflow.operate.inspect.survey import identity_of, operable, survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import Group, Move
    from evenflow.operate.inspect.survey import Survey
    from evenflow.ports import Clock, DeadLetters, Source, Store

log = logging.getLogger(__name__)

EVERY_S = 1.0
LIST_EVERY_S = 2.0
"""The interval while only the list of groups is open."""
UNSEEN_EVERY_S = 60.0
"""The interval while no page is open: short enough for a history of lag. Each snapshot reads the store and the source,
and some services charge for that."""
FRESH_WITHIN_S = 5.0
"""A request for a fresh snapshot gets the last one when a new one takes longer."""
LIMIT_S = 15.0
"""A store or source that has not answered by then counts as unreachable."""
REST = 4
"""Between two snapshots it rests at least this many times the duration of one."""
BACK_OFF_S, BACK_OFF_MOST_S = 1.0, 15.0
MOVES_FIRST, MOVES = 1_000, 60
ACTIONS = 60
KEPT = ("jobs",)
"""Sections that do not come from snapshots."""


ExtraSections: TypeAlias = "Callable[[Group], dict[str, Any]]"
"""Makes additional sections of a group with every snapshot."""


class Subject(Struct, frozen=True, kw_only=True):
    """What a console shows: a store, and what belongs to it. The caller closes them."""

    store: Store
    source: Source | None = None
    """Without a source, lag is unknown."""
    dead_letters: Callable[[], DeadLetters] | None = None
    """Returns the target of dead letters, the same one each time; it may not exist before the first dead letter."""
    group: str | None = None
    """Show only the group with this name; None: all groups of the store."""
    hints: Hints | None = None
    """The command-line flags that name this group."""


def hints_of(subject: Subject, group: Group) -> Hints:
    """The flags that name a group: with its own name when the console shows several."""
    known = subject.hints or Hints()
    if subject.hints is not None and subject.group is not None:
        return known
    return replace(known, flags=f"{known.flags} --group {quote(group.name)}".strip())


class Revision:
    """A counter of changes that others can wait for."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = asyncio.Event()

    def change(self) -> None:
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int, within_s: float) -> None:
        """Wait for a number other than `seen`, at most this long."""
        changed = self._changed
        if self.number == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await changed.wait()


class GroupWatch:
    """Watches one group."""

    def __init__(
        self,
        subject: Subject,
        group: Group,
        clock: Clock,
        *,
        every_s: float = EVERY_S,
        unseen_every_s: float = UNSEEN_EVERY_S,
        extra: ExtraSections = lambda group: {},
        is_listed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_listed` says whether a page shows a list with this group."""
        self.group = group
        self._extra, self._is_listed = extra, is_listed
        self._subject, self._clock = subject, clock
        self._every_s, self._unseen_every_s = every_s, max(every_s, unseen_every_s)
        self._refreshed_s = 0.0
        self._is_refreshing = False
        self._watcher = GroupWatcher(hints_of(subject, group))
        self._dead_letters = DeadLetterCounter(subject.dead_letters, clock)
        self._moves: list[Move] = []
        self._source_rests_s = 0.0
        self._has_source = subject.source is not None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._tags, self._history, self._duplicates, self._silence_history = (
            InstanceTags(),
            GroupHistory(),
            DuplicateEstimator(),
            SilenceHistory(),
        )
        self._since = clock.wall()
        self.snapshot: GroupSnapshot | None = None
        self.known: PageContext | None = None
        self.fragments: dict[str, bytes] = {}
        """The current sections, as JSON."""
        self.version = Revision()
        self.stale: dict[str, Any] | None = None
        """Since when snapshots fail, why, and the seconds until the next attempt."""
        self.viewers = 0

    def start(self) -> None:
        if self._task is None:
            self._is_refreshing = True
            self._task = asyncio.get_running_loop().create_task(self._live(), name=f"console: {self.group}")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def hurry(self) -> None:
        """The group has changed: refresh now."""
        self._woken.set()

    async def freshen(self) -> None:
        """For requests while no page is open: refresh now, unless that was done just before."""
        before, failed = self.snapshot, self.stale
        if self.viewers or (before is not None and self._clock.now() - self._refreshed_s < self._every_s):
            return
        if not self._is_refreshing:
            self.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(FRESH_WITHIN_S if before is not None else LIMIT_S):
                while self.snapshot is before and self.stale is failed:
                    await self.version.wait(self.version.number, LIMIT_S)

    def put(self, name: str, value: Any) -> None:
        """Set a section that does not come from snapshots."""
        self.fragments[name] = json.encode(value)
        self.version.change()

    def series(self) -> dict[str, Any]:
        large = self.snapshot is not None and is_large(self.snapshot)
        return self._history.series(large, self._tags.names)

    async def refresh(self) -> GroupSnapshot:
        """Take a snapshot, and update everything that depends on it."""
        found = await self._survey()
        snapshot = self._watcher.observe(found, self._clock.now(), self._clock.wall())
        self._history.note(snapshot)
        self._duplicates.observe(snapshot, self._clock.now())
        self._moves = await self._merged(found.moves) if found.ledger is not None else []
        self._silence_history.observe(snapshot, self._moves)
        known = PageContext(
            moves=self._moves,
            actions=found.actions,
            duplicates=self._duplicates,
            silence_history=self._silence_history,
            history=self._history,
            tags=self._tags,
            watched_since=self._since,
            has_dead_letters=self._subject.dead_letters is not None,
            has_source=self._has_source,
        )
        made = await asyncio.to_thread(sections, snapshot, known) if is_large(snapshot) else sections(snapshot, known)
        made |= self._extra(self.group)
        kept = {name: text for name, text in self.fragments.items() if name in KEPT}
        self.fragments = {name: json.encode(value) for name, value in made.items()} | kept
        self.snapshot, self.known, self.stale = snapshot, known, None
        self.fragments["now"] = json.encode({"at": snapshot.wall_s, "stale": None})
        self.version.change()
        return snapshot

    async def _live(self) -> None:
        failures = 0
        while True:
            began_s, self._is_refreshing = self._clock.now(), True
            try:
                await self.refresh()
                failures = 0
                self._refreshed_s = self._clock.now()
                rest_s = max(self._wanted_every_s(), REST * (self._refreshed_s - began_s))
            except Exception as error:
                failures += 1
                rest_s = min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** (failures - 1))
                self._fail(error, rest_s)
            self._is_refreshing = False
            await self._rest(rest_s)

    def _wanted_every_s(self) -> float:
        if self.viewers:
            return self._every_s
        return max(self._every_s, LIST_EVERY_S) if self._is_listed() else self._unseen_every_s

    def _fail(self, error: Exception, rest_s: float) -> None:
        """Keep the last snapshot, marked as stale."""
        if not isinstance(error, EvenflowError):
            log.exception("reading group %s failed", self.group)
        since = (
            self.stale["since"] if self.stale is not None else (self.snapshot.wall_s if self.snapshot else self._since)
        )
        why = str(error) if isinstance(error, EvenflowError) else f"{type(error).__name__}; see the log"
        self.stale = {"since": since, "why": why, "again_s": round(rest_s, 1)}
        self.fragments["now"] = json.encode(
            {"at": self.snapshot.wall_s if self.snapshot else None, "stale": self.stale}
        )
        self.version.change()

    async def _rest(self, seconds: float) -> None:
        """Until the time has passed, or `hurry` is called."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _survey(self) -> Survey:
        """With the source if it answers in time; else without it, and the source is not queried for a while."""
        source = self._subject.source
        problems: tuple[str, ...] = ()
        if source is not None and self._clock.now() < self._source_rests_s:
            source, problems = None, ("the source did not answer in time; retrying soon",)
        try:
            found = await self._read(source)
        except TimeoutError as error:
            if source is None:
                raise StoreUnavailable(f"The store did not answer within {LIMIT_S:.0f} s.") from error
            self._source_rests_s = self._clock.now() + 2 * LIMIT_S
            found, problems = await self._read_without_source(), (f"the source did not answer within {LIMIT_S:.0f} s",)
        counted = await self._dead_letters.counted(self.group)
        every = (*found.problems, *problems, *counted.problems)
        return replace(found, problems=every, dead_letters=counted.open)

    async def _read(self, source: Source | None) -> Survey:
        moves = MOVES if self._moves else MOVES_FIRST
        async with asyncio.timeout(LIMIT_S):
            identity = await identity_of(source) if source is not None else None
            if identity is not None and (identity.namespace, identity.hub) != (self.group.namespace, self.group.hub):
                source, identity, self._has_source = None, None, False
            return await survey(self._subject.store, self.group, source, moves, ACTIONS, identity)

    async def _read_without_source(self) -> Survey:
        try:
            return await self._read(None)
        except TimeoutError as error:
            raise StoreUnavailable(f"The store did not answer within {LIMIT_S:.0f} s.") from error

    async def _merged(self, fresh: Sequence[Move]) -> list[Move]:
        """All known moves, newest first. Reads them all again when some may have been missed."""
        known = {(move.partition, move.epoch) for move in self._moves}
        new = [move for move in fresh if (move.partition, move.epoch) not in known]
        if self._moves and new and len(new) == len(fresh):
            return list(await operable(self._subject.store).moves(self.group, MOVES_FIRST))
        return [*new, *self._moves][:MOVES_FIRST]
