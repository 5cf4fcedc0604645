"""Explains one partition in sentences: who owns it and why, its progress, and what the next plan would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.errors import Misconfigured
from evenflow.model import epoch_parts, show_epoch
from evenflow.text import count_of, listed, show_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Move, PartitionId
    from evenflow.operate.inspect.findings import Finding
    from evenflow.operate.inspect.ownership import PartitionRow
    from evenflow.operate.inspect.watcher import GroupSnapshot

SENTENCES = {
    "claimed": "{owner} claimed it",
    "taken over": "{owner} took it over",
    "taken again": "{owner} reclaimed it",
    "handed over": "it was handed over to {owner}",
    "released": "it was released",
    "appeared": "it appeared",
    "ended": "it ended",
    "seek": "its checkpoint was moved",
}
"""For the first words of a lease's reason, the beginning of a sentence."""

NOTICED_S = 0.1
"""A shorter lag is not mentioned."""


class Explanation(Struct, frozen=True, kw_only=True):
    row: PartitionRow
    where: str
    """Who owns it, since when, and why."""
    progress: str
    findings: Sequence[Finding]
    moves: Sequence[Move]
    """Of this partition, newest first."""
    next_owner: str | None
    """By the next plan."""
    next: str
    """What the next plan would do, and why."""


def explain(snapshot: GroupSnapshot, partition: PartitionId) -> Explanation:
    """Misconfigured when there is no such partition."""
    row = next((row for row in snapshot.partitions if row.partition == partition), None)
    if row is None:
        names = listed([row.partition for row in snapshot.partitions])
        raise Misconfigured(f"{snapshot.group} has no partition {partition!r}. It has: {names or 'none yet'}.")
    return Explanation(
        row=row,
        where=_where(row, snapshot.wall_s),
        progress=_progress(row, snapshot.wall_s),
        findings=[finding for finding in snapshot.findings if partition in finding.partitions],
        moves=[move for move in snapshot.found.moves if move.partition == partition],
        next_owner=snapshot.forecast.plan.owners.get(partition),
        next=_next(row, snapshot),
    )


def _where(row: PartitionRow, wall_s: float) -> str:
    if row.epoch is None:
        return f"It has never had an owner.{_origin(row)}"
    kind, _, why = (row.reason or "").partition(":")
    event = SENTENCES.get(kind, row.reason or "its lease changed").format(owner=row.owner or "no instance")
    ago = f" {show_duration(wall_s - row.changed_at)} ago" if row.changed_at else ""
    is_first = bool(row.parents) and epoch_parts(row.epoch)[1] == 1  # then its origin says more
    because = f"{_link(kind, why.strip())}{why.strip()}" if why and kind in SENTENCES and not is_first else ""
    holder = f"{row.owner} owns it" if row.owner is not None else "It has no owner"
    return f"{holder} (epoch {show_epoch(row.epoch)}): {event}{ago}{because}.{_origin(row)}"


def _origin(row: PartitionRow) -> str:
    if not row.parents:
        return ""
    became = "was split" if len(row.parents) == 1 else "were merged"
    return f" It came from {listed(row.parents)}, which {became}."


def _link(kind: str, why: str) -> str:
    """The words between what happened and its reason."""
    if kind == "seek":
        return " "
    if kind == "ended":
        return ", "
    return ", because it was " if why.startswith("paused") else ", because "


def _progress(row: PartitionRow, wall_s: float) -> str:
    if row.offset is None:
        return "It has no checkpoint yet."
    age = f", written {show_duration(wall_s - row.checkpoint_at)} ago" if row.checkpoint_at else ""
    if row.lag is None:
        return f"Its checkpoint is at {row.offset}{age}; its lag is unknown."
    behind = f" ({show_duration(row.lag_s)})" if row.lag_s and row.lag_s >= NOTICED_S else ""
    lag = f"{count_of(row.lag, 'event')}{behind} behind the newest" if row.lag else "no events are left to handle"
    return f"Its checkpoint is at {row.offset}{age}; {lag}."


def _next(row: PartitionRow, snapshot: GroupSnapshot) -> str:
    forecast = snapshot.forecast
    if row.status == "ended":
        return "It has ended: plans no longer include it."
    if row.status == "waiting":
        return f"It waits for {listed(row.waits_for)} to end: no plan assigns it before that."
    if row.partition in forecast.paused:
        return "It is paused: no plan assigns it until it is resumed."
    move = next((move for move in forecast.plan.moves if move.partition == row.partition), None)
    next_owner = forecast.plan.owners.get(row.partition)
    if move is not None and move.after is not None:
        return f"The next plan moves it to {move.after}, because {move.reason}.{_shares(snapshot, move.after)}"
    if next_owner is None:
        why = "there are no live instances" if not forecast.seats else "all instances are at max_partitions"
        return f"The next plan leaves it without an owner: {why}."
    return f"No move planned; it stays with {next_owner}.{_shares(snapshot, next_owner)}"


def _shares(snapshot: GroupSnapshot, member: str) -> str:
    forecast = snapshot.forecast
    share, owned = forecast.plan.shares.get(member), forecast.owned(member)
    if share is None:
        return ""
    row = next((row for row in snapshot.members if row.id == member), None)
    if row is None or row.load_of_mean is None:
        return (
            f" {member} has {count_of(owned, 'partition')}; its fair share is {share} of {len(forecast.plan.owners)}."
        )
    of = len(forecast.plan.owners)
    return f" {member} has {owned} of {of} partitions, and {row.load_of_mean:.2f} times the mean load."
