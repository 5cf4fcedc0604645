"""What is wrong with a group, in words, the worst first: what was found, and what to do about it.

Pure, from the ownership table. Nothing here changes anything: instances mend most of it by themselves, and a finding
says so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from msgspec import Struct

from evenflow.core.decide import is_released_done
from evenflow.model import made_and_mode
from evenflow.operate.inspect.hints import Hints
from evenflow.text import count_of, listed, show_duration, to_mend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import Identity, PartitionId
    from evenflow.operate.inspect.members import MemberRow
    from evenflow.operate.inspect.ownership import PartitionFailure, PartitionRow

FindingKind: TypeAlias = Literal[
    "another hub",
    "another mode",
    "unowned",
    "owner gone",
    "owner silent",
    "damaged",
    "stopped",
    "tripped",
    "held back",
    "stalled",
    "events gone",
    "position lost",
    "retrying",
    "careful",
    "parked",
    "dead letters",
    "paused",
    "imbalance",
    "between runs",
]
"""From the worst to what is only worth knowing."""

ALIKE: dict[FindingKind, tuple[str, str]] = {
    "unowned": ("nobody owns {it}", "An instance claims {it} at its next heartbeat; if {it} stays so, start one."),
    "owner gone": (
        "the owner of {it} has no member row any more",
        "The others take {it} over after its time-to-live; if {it} stays so, start an instance.",
    ),
    "owner silent": (
        "the owner of {it} sends no heartbeats",
        "The others take {it} over; if nobody does, start an instance.",
    ),
    "stalled": (
        "{it} has lag, and its checkpoint does not move",
        "Look at its owner's log: a handler call may hang, or take long.",
    ),
    "events gone": (
        "retention removed events of {it} before they were handled",
        "Go on with what is left: {seek}",
    ),
    "position lost": (
        "the store has lost the checkpoint of {it}, and no instance remembers it",
        "Say where to go on: {seek}, or another position.",
    ),
    "careful": (
        "epochs of {it} ended again and again without progress",
        "An event may end its process: {it} goes on one event at a time until it is found.",
    ),
}
"""Findings that are told for many partitions at once: what, and what to do."""


class Finding(Struct, frozen=True, kw_only=True):
    kind: FindingKind
    what: str
    """A sentence."""
    advice: str
    partitions: tuple[PartitionId, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.what.removesuffix('.')}. {self.advice}"


NO_HINTS = Hints()


def findings_of(
    partitions: Sequence[PartitionRow],
    members: Sequence[MemberRow],
    hints: Hints = NO_HINTS,
    dead_letters: int | None = None,
    strange: Finding | None = None,
) -> list[Finding]:
    """The worst first. `dead letters` is how many dead letters are open; None: nobody has looked. `strange` is what
    there is to say of a source that is not the group's.
    """
    found = _nobody_runs(partitions, members) or _alike(partitions, ("unowned", "owner gone", "owner silent"), hints)
    if strange is not None:
        # Who started an instance to read another hub would see it end at once.
        found = [strange] if strange.kind == "another hub" and _is_idle(members) else [strange, *found]
    found += [finding for row in partitions if (finding := _failure(row, hints)) is not None]
    found += _held(partitions)
    found += _alike(partitions, ("stalled", "events gone", "position lost", "careful"), hints)
    found += _parked(partitions, hints) + _dead_letters(dead_letters, hints)
    found += _damaged(partitions) + _paused(partitions, hints) + _imbalance(members)
    return sorted(found, key=lambda finding: get_args(FindingKind).index(finding.kind))


def strange_source(kept: str, identity: Identity, hints: Hints) -> Finding:
    """Of a group that keeps another source than was named: another making of its hub, or another way to read it."""
    (made, mode), (own, given) = made_and_mode(kept), made_and_mode(identity.source)
    if made == own:
        return Finding(
            kind="another mode",
            what=f"the group reads with mode={mode}, and the source that is named here has mode={given}: it cannot tell"
            " how far behind the group is.",
            advice=f"Name the source with ?mode={mode}.",
        )
    return Finding(
        kind="another hub",
        what=f"the checkpoints belong to another hub than the {identity.hub} that is named here: it was deleted and"
        " made again, or two have that name. Every instance that reads this one with them ends with HubReplaced.",
        advice="Name the group's own source, if this is not it; else use another group name, or delete this group, to"
        f" begin anew: {hints.group('delete')}",
    )


def _nobody_runs(partitions: Sequence[PartitionRow], members: Sequence[MemberRow]) -> list[Finding]:
    if not _is_idle(members) or not partitions:
        return []
    rows = [row for row in partitions if row.status not in ("paused", "ended")]
    idle = tuple(row.partition for row in rows)
    if (done := _all_done(rows)) is not None:
        return [done]
    what = "no instance runs in this group" if not members else "every instance of this group is silent"
    return [Finding(kind="unowned", what=f"{what}.", advice="Start one.", partitions=idle)] if idle else []


def _all_done(rows: Sequence[PartitionRow]) -> Finding | None:
    """The last ones who ran have left because all was handled, as jobs on a schedule do. (What has no lease has
    appeared since.)"""
    leased = [row for row in rows if row.reason is not None]
    if not leased or not all(row.owner is None and is_released_done(row.reason or "") for row in leased):
        return None
    left_at = max(row.changed_at or 0.0 for row in leased)
    when = f" on {datetime.fromtimestamp(left_at, UTC):%Y-%m-%d at %H:%M:%S} UTC" if left_at else ""
    return Finding(
        kind="between runs",
        what=f"no instance runs: the last one had caught up, and left{when}.",
        advice="If it runs on a schedule, nothing is to be done: lag tells whether the next run comes in time.",
        partitions=tuple(row.partition for row in rows),
    )


def _is_idle(members: Sequence[MemberRow]) -> bool:
    return all(member.status == "silent" for member in members)


def _alike(partitions: Sequence[PartitionRow], kinds: Sequence[FindingKind], hints: Hints) -> list[Finding]:
    found = []
    for kind in kinds:
        names = tuple(row.partition for row in partitions if row.status == kind)
        if names:
            what, advice = (_about(names, text, hints) for text in ALIKE[kind])
            found.append(Finding(kind=kind, what=f"{what}.", advice=advice, partitions=names))
    return found


def _about(names: tuple[PartitionId, ...], text: str, hints: Hints) -> str:
    seek = hints.group("seek --to-earliest", names)
    return text.replace("{it}", _called(names), 1).replace("{it}", "it").replace("{seek}", seek)


def _called(names: tuple[PartitionId, ...]) -> str:
    if len(names) == 1:
        return f"partition {names[0]}"
    return f"each of {count_of(len(names), 'partition')} ({listed(names)})"


def _held(partitions: Sequence[PartitionRow]) -> list[Finding]:
    """Whoever runs or does not: it would wait."""
    advice = "It goes on by itself when that has ended."
    return [
        Finding(
            kind="held back", what=f"partition {row.partition}: {row.held}.", advice=advice, partitions=(row.partition,)
        )
        for row in partitions
        if row.held is not None and row.status != "ended"
    ]


def _failure(row: PartitionRow, hints: Hints) -> Finding | None:
    failure = row.failure
    if failure is None or row.status == "ended":
        return None
    tell: Callable[[PartitionRow, PartitionFailure, Hints], tuple[str, str]] = {
        "stopped": _stopped,
        "tripped": _tripped,
    }.get(failure.kind, _retrying)
    what, advice = tell(row, failure, hints)
    return Finding(kind=failure.kind, what=f"{what.removesuffix('.')}.", advice=advice, partitions=(row.partition,))


def _stopped(row: PartitionRow, failure: PartitionFailure, hints: Hints) -> tuple[str, str]:
    tries = f" {count_of(failure.attempts, 'time')}" if failure.attempts else ""
    by = f", seen by {failure.by}" if failure.by else ""
    event = hints.event(row.partition, failure.offset)
    seen = f"Look at it: {event}; mend" if event else "Mend"
    return (
        f"partition {row.partition} stands before {failure.event}, which failed{tries}{by}: {failure.error}",
        f"{seen} {to_mend(failure.error)} and try it again: {hints.group('resume', [row.partition])}; or pass over the"
        f" event: {hints.group('seek --shift-by 1', [row.partition])}",
    )


def _tripped(row: PartitionRow, failure: PartitionFailure, hints: Hints) -> tuple[str, str]:
    return (
        f"too many events of partition {row.partition} fail, the last with: {failure.error}",
        "It is not the events: mend what the handler needs. It tries again by itself.",
    )


def _retrying(row: PartitionRow, failure: PartitionFailure, hints: Hints) -> tuple[str, str]:
    tries = count_of(failure.attempts or 1, "time")
    return f"the next event of partition {row.partition} has failed {tries}: {failure.error}", "It is tried again."


def _parked(partitions: Sequence[PartitionRow], hints: Hints) -> list[Finding]:
    rows = [row for row in partitions if row.parked]
    keys = [key for row in rows for key in row.parked_keys or ()]
    if not rows:
        return []
    names = tuple(row.partition for row in rows)
    count = count_of(sum(row.parked or 0 for row in rows), "key")
    named = f" ({listed(keys)})" if keys else ""
    what = f"events of {count}{named} follow an earlier one into the dead letters, in {_called(names)}."
    advice = f"Redrive the dead letters once they can work: {hints.redrive_or_drop('redrive --all')}"
    return [Finding(kind="parked", what=what, advice=advice, partitions=names)]


def _dead_letters(dead_letters: int | None, hints: Hints) -> list[Finding]:
    if not dead_letters:
        return []
    there = "it is" if dead_letters == 1 else "they are"
    what = f"{count_of(dead_letters, 'event')} could not be handled: {there} in the dead letters."
    return [Finding(kind="dead letters", what=what, advice=f"Look at them: {hints.redrive_or_drop('list')}")]


def _damaged(partitions: Sequence[PartitionRow]) -> list[Finding]:
    """One by one: each says what to do about it, and a resume is not it."""
    return [
        Finding(
            kind="damaged",
            what=f"the store cannot read what it keeps of partition {row.partition}, and nobody is to have it.",
            advice=row.pause.why,
            partitions=(row.partition,),
        )
        for row in partitions
        if row.pause is not None and row.pause.damaged
    ]


def _paused(partitions: Sequence[PartitionRow], hints: Hints) -> list[Finding]:
    there = [row for row in partitions if row.status != "ended" and not (row.pause is not None and row.pause.damaged)]
    rows = [row for row in there if row.status == "paused"]
    if not rows:
        return []
    names = tuple(row.partition for row in rows)
    pause = rows[0].pause
    # By those that a resume is about: of a group that is paused as a whole, none can be resumed alone.
    whole = len(rows) == len(there)
    who = f" by {pause.by}" if pause is not None and pause.by else ""
    why = f" ({pause.why})" if pause is not None and pause.why else ""
    what = f"{'the whole group' if whole else _called(names)} is paused{who}{why}."
    resume = hints.group("resume", () if whole else names)
    return [Finding(kind="paused", what=what, advice=f"Go on: {resume}", partitions=names)]


def _imbalance(members: Sequence[MemberRow]) -> list[Finding]:
    """Who has more than its share, of partitions or of load. Whoever is slow to pass it on is told with it."""
    rich = [
        member
        for member in members
        if member.share is not None and (member.excess or (member.load is None and member.partitions > member.share))
    ]
    if not rich:
        return []
    what = "; ".join(_too_much(member) for member in rich)
    heartbeat_s = max(member.heartbeat_s for member in members)
    advice = f"It passes them on within {show_duration(2 * heartbeat_s)}; if it does not, a handler call may take long."
    return [Finding(kind="imbalance", what=f"{what}.", advice=advice)]


def _too_much(member: MemberRow) -> str:
    if member.load_of_mean is None:
        return f"{member.id} has {member.partitions}, its share is {member.share}"
    moving = count_of(member.excess, "partition")
    return f"{member.id} is at {member.load_of_mean:.2f} of the mean load: {moving} of it should move"
