"""The actions of the page: decodes requests and calls the operations in `steer`. Nothing is decided here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from evenflow.console.custom_actions import ActionCall, ActionResult
from evenflow.errors import Misconfigured
from evenflow.model import Position
from evenflow.operate.dead_letters.redrive import (
    DeadLetterFilter,
    OperatedStore,
    Redrive,
    RedriveProgress,
    Requester,
    matching,
    read_filed,
)
from evenflow.operate.steer import FromGroup, Operator, Shift, pause, plan_seek, resume, retire, seek
from evenflow.operate.steer.operator import called, steerable
from evenflow.text import count_of, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.console.custom_actions import CustomAction
    from evenflow.console.jobs import Report
    from evenflow.console.watch import Subject
    from evenflow.model import Group, PartitionId
    from evenflow.operate.steer import PartitionSeek, Target
    from evenflow.ports import Clock, DeadLetters, Source, Store

SeekStart: TypeAlias = Literal["earliest", "latest", "time", "offset", "shift", "group"]

NAME_MOST, WHY_MOST = 80, 500


class ActionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an action's request."""

    by: str = ""
    why: str = ""
    partitions: tuple[str, ...] | None = None
    """None: the whole group."""
    instance: str = ""
    to: SeekStart = "earliest"
    time: float | None = None
    offset: str = ""
    shift: int | None = None
    group: str = ""
    dead_letters: tuple[str, ...] | None = None
    """None: all open ones."""
    subject: str = ""


class ActionRunner:
    """Carries out actions on one group."""

    def __init__(self, subject: Subject, group: Group, clock: Clock) -> None:
        self._subject, self._group, self._clock = subject, group, clock

    @property
    def _store(self) -> Store:
        return self._subject.store

    @property
    def _source(self) -> Source:
        if self._subject.source is None:
            raise Misconfigured("A seek needs the source. Start the console with --source.")
        return self._subject.source

    async def pause(self, wanted: ActionRequest, who: Operator, report: Report) -> tuple[str, Any]:
        await pause(self._store, self._group, wanted.partitions, who)
        return f"paused {_named(wanted.partitions)}: owners finish events in progress, then release it", None

    async def resume(self, wanted: ActionRequest, who: Operator, report: Report) -> tuple[str, Any]:
        cleared = await resume(self._store, self._group, wanted.partitions, who, self._clock, report)
        retried = f"; retrying {called(cleared)}" if cleared else ""
        return f"resumed {_named(wanted.partitions)}{retried}", None

    async def retire(self, wanted: ActionRequest, who: Operator, report: Report) -> tuple[str, Any]:
        owner = await retire(self._store, self._group, wanted.instance, who)
        return f"asked {owner.id} to retire: it hands over its partitions and leaves", None

    async def preview(self, wanted: ActionRequest) -> list[dict[str, Any]]:
        """What a seek would change."""
        plan = await plan_seek(self._store, self._source, self._group, _target(wanted), wanted.partitions)
        return [_seeking(one) for one in plan]

    async def seek(self, wanted: ActionRequest, who: Operator, report: Report) -> tuple[str, Any]:
        source = self._source
        plan = await plan_seek(self._store, source, self._group, _target(wanted), wanted.partitions)
        done = await seek(self._store, source, self._group, plan, who, self._clock, report)
        return f"moved the checkpoints of {count_of(len(done), 'partition')}", [_seeking(one) for one in done]

    async def redrive(self, wanted: ActionRequest, who: Operator, report: Report) -> tuple[str, Any]:
        if self._subject.dead_letters is None:
            raise Misconfigured("The location of the dead letters is unknown. Start the console with --dead-letters.")
        store: object = self._store
        if not isinstance(store, OperatedStore):
            raise Misconfigured(f"{type(store).__name__} cannot steer groups: it does not store operator requests.")
        return await self._redrive(self._subject.dead_letters(), store, wanted, who, report)

    async def _redrive(
        self, dead_letters: DeadLetters, store: OperatedStore, wanted: ActionRequest, who: Operator, report: Report
    ) -> tuple[str, Any]:
        choice = DeadLetterFilter(
            ids=frozenset(wanted.dead_letters or ()), partitions=frozenset(wanted.partitions or ())
        )
        meant = [one for one in matching(await read_filed(dead_letters, self._group), choice) if one.is_open]
        if not meant:
            return "none of these dead letters is open", None
        reported: list[str] = []

        def report_progress(tally: RedriveProgress) -> None:
            line = f"{tally.answered} of {tally.total} answered" + (f"; {tally.problem}" if tally.problem else "")
            if line not in reported:
                reported.append(line)
                report(line)

        redriving = Redrive(dead_letters, store, self._group, self._clock, Requester(who.by, who.why))
        return _redriven(await redriving.run(meant, report=report_progress)), None

    async def run_custom(
        self, action: CustomAction, wanted: ActionRequest, who: Operator, report: Report
    ) -> tuple[str, Any]:
        """A custom action of the embedding program. It is recorded first, because it may end this very process."""
        what = f"{action.label}{f': {wanted.subject}' if wanted.subject else ''}"
        await steerable(self._store).record(self._group, who.did(action.name, what))
        said = await action.run(ActionCall(group=self._group, subject=wanted.subject, who=who))
        if isinstance(said, ActionResult):
            return said.text, {"link": said.link}
        return said or f"{action.label}: done", None


def operator_of(wanted: ActionRequest, origin: str) -> Operator:
    """For the record: the given name, and the address of the browser."""
    name = " ".join(wanted.by.split())[:NAME_MOST] or "unnamed operator"
    return Operator(f"{name} (console, {origin})", " ".join(wanted.why.split())[:WHY_MOST])


def _named(partitions: Sequence[PartitionId] | None) -> str:
    return "the whole group" if partitions is None else called(partitions)


def _target(wanted: ActionRequest) -> Target:
    if wanted.to == "time":
        return _moment(wanted.time)
    if wanted.to == "offset":
        return _place(wanted.offset.strip())
    if wanted.to == "shift":
        if not wanted.shift:
            raise Misconfigured("Enter the number of events to shift by; a negative number moves back.")
        return Shift(wanted.shift)
    if wanted.to == "group":
        if not wanted.group:
            raise Misconfigured("Enter the name of another group of the same hub.")
        return FromGroup(wanted.group)
    return wanted.to


def _moment(time: float | None) -> datetime:
    try:
        if time is not None:
            return datetime.fromtimestamp(time, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise Misconfigured("Enter a valid date and time.")


def _place(offset: str) -> Position:
    if not offset:
        raise Misconfigured("Enter an offset.")
    return Position(offset, int(offset) if offset.removeprefix("-").isdecimal() else None)


def _seeking(one: PartitionSeek) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "before": one.before.offset if one.before is not None else None,
        "after": one.after.offset,
        "lag_before": one.lag_before,
        "lag_after": one.lag_after,
        "note": one.note or None,
    }


def _redriven(tally: RedriveProgress) -> str:
    parts = [f"{len(tally.redriven)} redriven", f"{len(tally.failed)} failed"]
    parts += [f"{len(tally.waiting)} requested; they are handled when an instance runs"] if tally.waiting else []
    parts += [f"{len(tally.dropped)} dropped meanwhile"] if tally.dropped else []
    failed = f": {listed(list(tally.failed))}" if tally.failed else ""
    return ", ".join(parts) + failed
