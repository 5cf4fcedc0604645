"""Looks at one group again and again, for everybody who has its page open, and backs off when it gets no answer.

A store that is away leaves the last picture in place, which then says since when it is stale and why. A source that
is away, or hangs, leaves only what depends on it unknown.
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
"""How often to look while only a list of groups is open."""
UNSEEN_EVERY_S = 60.0
"""How often to look while no page is open, and nobody asks: often enough to know how lag went. Each look costs reads of
the store and of the source, and some services charge for them."""
FRESH_WITHIN_S = 5.0
"""Whoever asks for something fresh gets what is known when that takes longer."""
LIMIT_S = 15.0
"""Whoever has not answered by then is away."""
REST = 4
"""Between two looks it rests so many times what a look took."""
BACK_OFF_S, BACK_OFF_MOST_S = 1.0, 15.0
MOVES_FIRST, MOVES = 1_000, 60
ACTIONS = 60
KEPT = ("works",)
"""Sections that looks do not make."""


ExtraSections: TypeAlias = "Callable[[Group], dict[str, Any]]"
"""Sections of a group that are made with every look, but not from it."""


class Subject(Struct, frozen=True, kw_only=True):
    """What a console shows: a store, and what belongs to it. Whoever opened these closes them."""

    store: Store
    source: Source | None = None
    """Where events come from: without it, lag is unknown."""
    dead_letters: Callable[[], DeadLetters] | None = None
    """Gives the target of dead letters, the same one each time; it may not be there before the first letter is."""
    group: str | None = None
    """Show only the group of this name; None: all that the store has."""
    hints: Hints | None = None
    """How to name this group on a command line."""


def hints_of(subject: Subject, group: Group) -> Hints:
    """How to name a group in a command: with its own name, where the console shows several."""
    known = subject.hints or Hints()
    if subject.hints is not None and subject.group is not None:
        return known
    return replace(known, flags=f"{known.flags} --group {quote(group.name)}".strip())


class Revision:
    """Something that changes: whoever waits for the next one is woken."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = asyncio.Event()

    def change(self) -> None:
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int, within_s: float) -> None:
        """Until it is another one than was seen, or so long."""
        changed = self._changed
        if self.number == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await changed.wait()


class GroupWatch:
    """One group, watched."""

    def __init__(
        self,
        subject: Subject,
        group: Group,
        clock: Clock,
        *,
        every_s: float = EVERY_S,
        unseen_every_s: float = UNSEEN_EVERY_S,
        beside: ExtraSections = lambda group: {},
        is_listed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_listed` says whether somebody looks at a list with this group in it."""
        self.group = group
        self._beside, self._is_listed = beside, is_listed
        self._subject, self._clock = subject, clock
        self._every_s, self._unseen_every_s = every_s, max(every_s, unseen_every_s)
        self._looked_s = 0.0
        self._is_looking = False
        self._watcher = GroupWatcher(hints_of(subject, group))
        self._desk = DeadLetterCounter(subject.dead_letters, clock)
        self._moves: list[Move] = []
        self._source_rests_s = 0.0
        self._has_source = subject.source is not None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._tags, self._chronicle, self._repeats, self._pulses = (
            InstanceTags(),
            GroupHistory(),
            DuplicateEstimator(),
            SilenceHistory(),
        )
        self._since = clock.wall()
        self.look: GroupSnapshot | None = None
        self.known: PageContext | None = None
        self.fragments: dict[str, bytes] = {}
        """The sections of the last picture, as JSON."""
        self.version = Revision()
        self.stale: dict[str, Any] | None = None
        """Since when nothing new came, why, and in how many seconds it is tried again."""
        self.viewers = 0

    def start(self) -> None:
        if self._task is None:
            self._is_looking = True
            self._task = asyncio.get_running_loop().create_task(self._live(), name=f"console: {self.group}")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def hurry(self) -> None:
        """Something was done to the group: look now."""
        self._woken.set()

    async def freshen(self) -> None:
        """For whoever asks while no page is open: look now, unless that was done just now."""
        before, failed = self.look, self.stale
        if self.viewers or (before is not None and self._clock.now() - self._looked_s < self._every_s):
            return
        if not self._is_looking:
            self.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(FRESH_WITHIN_S if before is not None else LIMIT_S):
                while self.look is before and self.stale is failed:
                    await self.version.wait(self.version.number, LIMIT_S)

    def put(self, name: str, value: Any) -> None:
        """A section that is not made from looks."""
        self.fragments[name] = json.encode(value)
        self.version.change()

    def series(self) -> dict[str, Any]:
        large = self.look is not None and is_large(self.look)
        return self._chronicle.series(large, self._tags.names)

    async def refresh(self) -> GroupSnapshot:
        """One look, and everything that follows from it."""
        found = await self._survey()
        look = self._watcher.look(found, self._clock.now(), self._clock.wall())
        self._chronicle.note(look)
        self._repeats.look(look, self._clock.now())
        self._moves = await self._merged(found.moves) if found.ledger is not None else []
        self._pulses.look(look, self._moves)
        known = PageContext(
            moves=self._moves,
            actions=found.actions,
            repeats=self._repeats,
            pulses=self._pulses,
            chronicle=self._chronicle,
            tags=self._tags,
            watched_since=self._since,
            has_dead_letters=self._subject.dead_letters is not None,
            has_source=self._has_source,
        )
        made = await asyncio.to_thread(sections, look, known) if is_large(look) else sections(look, known)
        made |= self._beside(self.group)
        kept = {name: text for name, text in self.fragments.items() if name in KEPT}
        self.fragments = {name: json.encode(value) for name, value in made.items()} | kept
        self.look, self.known, self.stale = look, known, None
        self.fragments["now"] = json.encode({"at": look.wall_s, "stale": None})
        self.version.change()
        return look

    async def _live(self) -> None:
        failures = 0
        while True:
            began_s, self._is_looking = self._clock.now(), True
            try:
                await self.refresh()
                failures = 0
                self._looked_s = self._clock.now()
                rest_s = max(self._wanted_every_s(), REST * (self._looked_s - began_s))
            except Exception as error:
                failures += 1
                rest_s = min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** (failures - 1))
                self._fail(error, rest_s)
            self._is_looking = False
            await self._rest(rest_s)

    def _wanted_every_s(self) -> float:
        if self.viewers:
            return self._every_s
        return max(self._every_s, LIST_EVERY_S) if self._is_listed() else self._unseen_every_s

    def _fail(self, error: Exception, rest_s: float) -> None:
        """The picture stays as it was, and says so."""
        if not isinstance(error, EvenflowError):
            log.exception("a look at %s failed", self.group)
        since = self.stale["since"] if self.stale is not None else (self.look.wall_s if self.look else self._since)
        why = str(error) if isinstance(error, EvenflowError) else f"{type(error).__name__}; the log tells more"
        self.stale = {"since": since, "why": why, "again_s": round(rest_s, 1)}
        self.fragments["now"] = json.encode({"at": self.look.wall_s if self.look else None, "stale": self.stale})
        self.version.change()

    async def _rest(self, seconds: float) -> None:
        """Or until somebody hurries it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _survey(self) -> Survey:
        """With the source if it answers in time; else without, and the source is left alone for a while."""
        source = self._subject.source
        problems: tuple[str, ...] = ()
        if source is not None and self._clock.now() < self._source_rests_s:
            source, problems = None, ("the source did not answer in time; it is asked again soon",)
        try:
            found = await self._asked(source)
        except TimeoutError as error:
            if source is None:
                raise StoreUnavailable(f"The store did not answer within {LIMIT_S:.0f} s.") from error
            self._source_rests_s = self._clock.now() + 2 * LIMIT_S
            found, problems = await self._asked_alone(), (f"the source did not answer within {LIMIT_S:.0f} s",)
        counted = await self._desk.counted(self.group)
        every = (*found.problems, *problems, *counted.problems)
        return replace(found, problems=every, dead_letters=counted.open)

    async def _asked(self, source: Source | None) -> Survey:
        moves = MOVES if self._moves else MOVES_FIRST
        async with asyncio.timeout(LIMIT_S):
            identity = await identity_of(source) if source is not None else None
            if identity is not None and (identity.namespace, identity.hub) != (self.group.namespace, self.group.hub):
                source, identity, self._has_source = None, None, False
            return await survey(self._subject.store, self.group, source, moves, ACTIONS, identity)

    async def _asked_alone(self) -> Survey:
        try:
            return await self._asked(None)
        except TimeoutError as error:
            raise StoreUnavailable(f"The store did not answer within {LIMIT_S:.0f} s.") from error

    async def _merged(self, fresh: Sequence[Move]) -> list[Move]:
        """All moves that are known, the newest first. Read anew when some may have been missed in between."""
        known = {(move.partition, move.epoch) for move in self._moves}
        new = [move for move in fresh if (move.partition, move.epoch) not in known]
        if self._moves and new and len(new) == len(fresh):
            return list(await operable(self._subject.store).moves(self.group, MOVES_FIRST))
        return [*new, *self._moves][:MOVES_FIRST]
