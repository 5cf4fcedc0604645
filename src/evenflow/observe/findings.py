"""What is wrong with a group, in words, the worst first: what was found, and what to do about it.

Pure, from the ownership table. Nothing here changes anything: instances mend most of it by themselves, and a finding
says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from msgspec import Struct

from evenflow.observe.hints import Hints
from evenflow.observe.words import count_of, listed, show_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import PartitionId
    from evenflow.observe.ownership import Failure, MemberRow, PartitionRow

FindingKind: TypeAlias = Literal[
    "unowned",
    "owner gone",
    "owner silent",
    "damaged",
    "stopped",
    "tripped",
    "held back",
    "stalled",
    "events gone",
    "retrying",
    "careful",
    "parked",
    "dead letters",
    "paused",
    "imbalance",
]
"""From the worst to what is only worth knowing."""

ALIKE: dict[FindingKind, tuple[str, str]] = {
    "unowned": ("nobody owns {it}", "An instance claims {it} at its next beat; if {it} stays so, start one."),
    "owner gone": (
        "the owner of {it} has no member row any more",
        "The others take {it} over after its time-to-live; if {it} stays so, start an instance.",
    ),
    "owner silent": (
        "the owner of {it} sends no beats",
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
    letters: int | None = None,
) -> list[Finding]:
    """The worst first. `letters` is how many dead letters are open; None: nobody has looked."""
    found = _nobody_runs(partitions, members) or _alike(partitions, ("unowned", "owner gone", "owner silent"), hints)
    found += [finding for row in partitions if (finding := _failure(row, hints)) is not None]
    found += _held(partitions)
    found += _alike(partitions, ("stalled", "events gone", "careful"), hints)
    found += _parked(partitions, hints) + _letters(letters, hints)
    found += _damaged(partitions) + _paused(partitions, hints) + _imbalance(members)
    return sorted(found, key=lambda finding: get_args(FindingKind).index(finding.kind))


def _nobody_runs(partitions: Sequence[PartitionRow], members: Sequence[MemberRow]) -> list[Finding]:
    if any(member.status != "silent" for member in members) or not partitions:
        return []
    idle = tuple(row.partition for row in partitions if row.status not in ("paused", "ended"))
    what = "no instance runs in this group" if not members else "every instance of this group is silent"
    return [Finding(kind="unowned", what=f"{what}.", advice="Start one.", partitions=idle)] if idle else []


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
    tell: Callable[[PartitionRow, Failure, Hints], tuple[str, str]] = {"stopped": _stopped, "tripped": _tripped}.get(
        failure.kind, _retrying
    )
    what, advice = tell(row, failure, hints)
    return Finding(kind=failure.kind, what=f"{what.removesuffix('.')}.", advice=advice, partitions=(row.partition,))


def _stopped(row: PartitionRow, failure: Failure, hints: Hints) -> tuple[str, str]:
    tries = f" {count_of(failure.attempts, 'time')}" if failure.attempts else ""
    by = f", seen by {failure.by}" if failure.by else ""
    event = hints.event(row.partition, failure.offset)
    seen = f"Look at it: {event}; mend" if event else "Mend"
    return (
        f"partition {row.partition} stands before the event at {failure.offset}, which failed{tries}{by}:"
        f" {failure.error}",
        f"{seen} the handler and try it again: {hints.group('resume', [row.partition])}; or pass over the event:"
        f" {hints.group('seek --shift-by 1', [row.partition])}",
    )


def _tripped(row: PartitionRow, failure: Failure, hints: Hints) -> tuple[str, str]:
    return (
        f"too many events of partition {row.partition} fail, the last with: {failure.error}",
        "It is not the events: mend what the handler needs. It tries again by itself.",
    )


def _retrying(row: PartitionRow, failure: Failure, hints: Hints) -> tuple[str, str]:
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
    advice = f"Redrive the dead letters once they can work: {hints.dead_letters('redrive --all')}"
    return [Finding(kind="parked", what=what, advice=advice, partitions=names)]


def _letters(letters: int | None, hints: Hints) -> list[Finding]:
    if not letters:
        return []
    there = "it is" if letters == 1 else "they are"
    what = f"{count_of(letters, 'event')} could not be handled: {there} in the dead letters."
    return [Finding(kind="dead letters", what=what, advice=f"Look at them: {hints.dead_letters('list')}")]


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
    rows = [row for row in partitions if row.status == "paused" and not (row.pause is not None and row.pause.damaged)]
    if not rows:
        return []
    names = tuple(row.partition for row in rows)
    pause = rows[0].pause
    whole = len(rows) == len(partitions)
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
    beat_s = max(member.beat_s for member in members)
    advice = f"It passes them on within {show_duration(2 * beat_s)}; if it does not, a handler call may take long."
    return [Finding(kind="imbalance", what=f"{what}.", advice=advice)]


def _too_much(member: MemberRow) -> str:
    if member.load_of_mean is None:
        return f"{member.id} has {member.partitions}, its share is {member.share}"
    moving = count_of(member.excess, "partition")
    return f"{member.id} is at {member.load_of_mean:.2f} of the mean load: {moving} of it should move"
