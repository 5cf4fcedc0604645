"""What is wrong with a group, in sentences, the worst first: what was found, and what to do about it.

Pure, from the ownership table. Nothing here changes anything: instances fix most of it by themselves, and a finding
says so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from msgspec import Struct

from evenflow.core.decide import is_released_done
from evenflow.model import made_and_mode
from evenflow.operate.inspect.hints import Hints
from evenflow.text import count_of, listed, show_duration, what_to_fix

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
"""From the worst to what is merely informative."""

ALIKE: dict[FindingKind, tuple[str, str]] = {
    "unowned": (
        "{it} has no owner",
        "An instance claims {it} at its next heartbeat; if it still has no owner then, start an instance.",
    ),
    "owner gone": (
        "the owner of {it} is no longer a member of the group",
        "Other instances take {it} over after its time-to-live; if they do not, start an instance.",
    ),
    "owner silent": (
        "the owner of {it} sends no heartbeats",
        "Other instances take {it} over; if they do not, start an instance.",
    ),
    "stalled": (
        "{it} has lag, and its checkpoint does not move",
        "Look at its owner's log: a handler call may hang or be slow.",
    ),
    "events gone": (
        "retention removed events of {it} before they were handled",
        "To continue with the oldest event that is left: {seek}",
    ),
    "position lost": (
        "the store lost the checkpoint of {it}, and no instance remembers it",
        "Choose where to continue: {seek}, or another position.",
    ),
    "careful": (
        "owners of {it} died repeatedly without progress",
        "An event may crash its process: {it} is handled one event at a time until that event is found.",
    ),
}
"""Findings that name many partitions at once: what is wrong, and what to do."""


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
    different_source: Finding | None = None,
) -> list[Finding]:
    """The worst first. `dead_letters` is the number of open dead letters; None: not counted. `different_source` is the
    finding about a source that is not the one the group reads.
    """
    found = _no_instances(partitions, members) or _alike(partitions, ("unowned", "owner gone", "owner silent"), hints)
    if different_source is not None:
        # An instance that is started to read another hub ends at once, so "start one" would be wrong advice.
        is_useless = different_source.kind == "another hub" and _is_idle(members)
        found = [different_source] if is_useless else [different_source, *found]
    found += [finding for row in partitions if (finding := _failure(row, hints)) is not None]
    found += _held(partitions)
    found += _alike(partitions, ("stalled", "events gone", "position lost", "careful"), hints)
    found += _parked(partitions, hints) + _dead_letters(dead_letters, hints)
    found += _damaged(partitions) + _paused(partitions, hints) + _imbalance(members)
    return sorted(found, key=lambda finding: get_args(FindingKind).index(finding.kind))


def different_source_finding(kept: str, identity: Identity, hints: Hints) -> Finding:
    """The finding when the source named here is not the one the group reads: another hub, or another mode."""
    (made, mode), (own, given) = made_and_mode(kept), made_and_mode(identity.source)
    if made == own:
        return Finding(
            kind="another mode",
            what=f"the group reads with mode={mode}, but the source named here has mode={given}: positions cannot be"
            " compared, so lag is unknown.",
            advice=f"Name the source with ?mode={mode}.",
        )
    return Finding(
        kind="another hub",
        what=f"the checkpoints do not belong to the {identity.hub} named here: that hub was deleted and created again,"
        " or two hubs have this name. Any instance that starts on it with these checkpoints ends with HubReplaced.",
        advice="If this is the wrong source, name the group's own. To start over on this one, use another group name,"
        f" or delete this group: {hints.group('delete')}",
    )


def _no_instances(partitions: Sequence[PartitionRow], members: Sequence[MemberRow]) -> list[Finding]:
    if not _is_idle(members) or not partitions:
        return []
    rows = [row for row in partitions if row.status not in ("paused", "ended")]
    idle = tuple(row.partition for row in rows)
    if (done := _all_done(rows)) is not None:
        return [done]
    what = "this group has no instances" if not members else "this group has no live instances: all are silent"
    return [Finding(kind="unowned", what=f"{what}.", advice="Start an instance.", partitions=idle)] if idle else []


def _all_done(rows: Sequence[PartitionRow]) -> Finding | None:
    """The last instances left because everything was handled, as jobs on a schedule do. (A partition without a lease
    has appeared since.)"""
    leased = [row for row in rows if row.reason is not None]
    if not leased or not all(row.owner is None and is_released_done(row.reason or "") for row in leased):
        return None
    left_at = max(row.changed_at or 0.0 for row in leased)
    when = f" on {datetime.fromtimestamp(left_at, UTC):%Y-%m-%d at %H:%M:%S} UTC" if left_at else ""
    return Finding(
        kind="between runs",
        what=f"no instance is running: the last one had caught up and left{when}.",
        advice="If the group runs on a schedule, do nothing: lag shows whether the next run starts in time.",
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
    """These wait whether an instance runs or not."""
    advice = "It continues by itself when that is over."
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
    describe: Callable[[PartitionRow, PartitionFailure, Hints], tuple[str, str]] = {
        "stopped": _stopped,
        "tripped": _tripped,
    }.get(failure.kind, _retrying)
    what, advice = describe(row, failure, hints)
    return Finding(kind=failure.kind, what=f"{what.removesuffix('.')}.", advice=advice, partitions=(row.partition,))


def _stopped(row: PartitionRow, failure: PartitionFailure, hints: Hints) -> tuple[str, str]:
    tries = f" {count_of(failure.attempts, 'time')}" if failure.attempts else ""
    by = f", as {failure.by} reported" if failure.by else ""
    event = hints.event(row.partition, failure.offset)
    fix = f"Look at it: {event}; fix" if event else "Fix"
    return (
        f"partition {row.partition} is blocked at {failure.event}, which failed{tries}{by}: {failure.error}",
        f"{fix} {what_to_fix(failure.error)}, then resume: {hints.group('resume', [row.partition])}; or skip the"
        f" event: {hints.group('seek --shift-by 1', [row.partition])}",
    )


def _tripped(row: PartitionRow, failure: PartitionFailure, hints: Hints) -> tuple[str, str]:
    return (
        f"too many events of partition {row.partition} fail, the last one with: {failure.error}",
        "The events are not the cause: fix what the handler depends on. The partition retries by itself.",
    )


def _retrying(row: PartitionRow, failure: PartitionFailure, hints: Hints) -> tuple[str, str]:
    tries = count_of(failure.attempts or 1, "time")
    return f"the next event of partition {row.partition} has failed {tries}: {failure.error}", "Retrying automatically."


def _parked(partitions: Sequence[PartitionRow], hints: Hints) -> list[Finding]:
    rows = [row for row in partitions if row.parked]
    keys = [key for row in rows for key in row.parked_keys or ()]
    if not rows:
        return []
    names = tuple(row.partition for row in rows)
    count = count_of(sum(row.parked or 0 for row in rows), "key")
    named = f" ({listed(keys)})" if keys else ""
    what = f"{count}{named} parked in {_called(names)}: later events of a dead-lettered key are dead-lettered too."
    advice = f"Redrive the dead letters once they can succeed: {hints.redrive_or_drop('redrive --all')}"
    return [Finding(kind="parked", what=what, advice=advice, partitions=names)]


def _dead_letters(dead_letters: int | None, hints: Hints) -> list[Finding]:
    if not dead_letters:
        return []
    what = f"{count_of(dead_letters, 'open dead letter')}: events that could not be handled."
    return [Finding(kind="dead letters", what=what, advice=f"Look at them: {hints.redrive_or_drop('list')}")]


def _damaged(partitions: Sequence[PartitionRow]) -> list[Finding]:
    """One finding each: each needs its own repair, and a resume does not help."""
    return [
        Finding(
            kind="damaged",
            what=f"the store cannot read its record of partition {row.partition}, so no instance may own it.",
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
    # When the whole group is paused, no partition can be resumed alone.
    whole = len(rows) == len(there)
    who = f" by {pause.by}" if pause is not None and pause.by else ""
    why = f" ({pause.why})" if pause is not None and pause.why else ""
    what = f"{'the whole group' if whole else _called(names)} is paused{who}{why}."
    resume = hints.group("resume", () if whole else names)
    return [Finding(kind="paused", what=what, advice=f"Resume: {resume}", partitions=names)]


def _imbalance(members: Sequence[MemberRow]) -> list[Finding]:
    """Instances that have more than their share, of partitions or of load, and how soon that should change."""
    rich = [
        member
        for member in members
        if member.share is not None and (member.excess or (member.load is None and member.partitions > member.share))
    ]
    if not rich:
        return []
    what = "; ".join(_too_much(member) for member in rich)
    heartbeat_s = max(member.heartbeat_s for member in members)
    advice = f"It hands over the rest within {show_duration(2 * heartbeat_s)}; if not, a handler call may be slow."
    return [Finding(kind="imbalance", what=f"{what}.", advice=advice)]


def _too_much(member: MemberRow) -> str:
    if member.load_of_mean is None:
        return f"{member.id} has {count_of(member.partitions, 'partition')}; its fair share is {member.share}"
    moving = count_of(member.excess, "partition")
    return f"{member.id} has {member.load_of_mean:.2f} times the mean load: {moving} should move away"
