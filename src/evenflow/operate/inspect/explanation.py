"""Why a partition is where it is, and what the next plan would do with it: sentences, from the facts alone."""

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

TOLD = {
    "claimed": "{owner} claimed it",
    "taken over": "{owner} took it over",
    "taken again": "{owner} took it again",
    "handed over": "it was handed over to {owner}",
    "released": "it was released",
    "appeared": "it appeared",
    "ended": "it ended",
    "seek": "its checkpoint was moved",
}
"""The first words of a lease's reason, as the beginning of a sentence."""

NOTICED_S = 0.1
"""Less than this is not worth a word."""


class Explanation(Struct, frozen=True, kw_only=True):
    row: PartitionRow
    where: str
    """Who has it, and since when and why."""
    progress: str
    """How far it is."""
    findings: Sequence[Finding]
    moves: Sequence[Move]
    """Its own, newest first."""
    heir: str | None
    """Who owns it by the next plan."""
    next: str
    """What the next plan would do, and why."""


def explain(look: GroupSnapshot, partition: PartitionId) -> Explanation:
    """Misconfigured when there is no such partition."""
    row = next((row for row in look.partitions if row.partition == partition), None)
    if row is None:
        names = listed([row.partition for row in look.partitions])
        raise Misconfigured(f"{look.group} has no partition {partition!r}. It has: {names or 'none yet'}.")
    return Explanation(
        row=row,
        where=_where(row, look.wall_s),
        progress=_progress(row, look.wall_s),
        findings=[finding for finding in look.findings if partition in finding.partitions],
        moves=[move for move in look.found.moves if move.partition == partition],
        heir=look.foresight.plan.owners.get(partition),
        next=_next(row, look),
    )


def _where(row: PartitionRow, wall_s: float) -> str:
    if row.epoch is None:
        return f"Nobody has ever owned it.{_origin(row)}"
    kind, _, why = (row.reason or "").partition(":")
    told = TOLD.get(kind, row.reason or "its lease changed").format(owner=row.owner or "nobody")
    ago = f" {show_duration(wall_s - row.changed_at)} ago" if row.changed_at else ""
    is_first = bool(row.parents) and epoch_parts(row.epoch)[1] == 1  # then where it came from tells more
    because = f"{_link(kind, why.strip())}{why.strip()}" if why and kind in TOLD and not is_first else ""
    holder = f"{row.owner} owns it" if row.owner is not None else "Nobody owns it"
    return f"{holder}, in epoch {show_epoch(row.epoch)}: {told}{ago}{because}.{_origin(row)}"


def _origin(row: PartitionRow) -> str:
    if not row.parents:
        return ""
    became = "was split" if len(row.parents) == 1 else "were merged"
    return f" It came from {listed(row.parents)}, which {became}."


def _link(kind: str, why: str) -> str:
    """Between what happened and its reason."""
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
        return f"Its checkpoint is at {row.offset}{age}; how many events come after it is unknown."
    behind = f" ({show_duration(row.lag_s)})" if row.lag_s and row.lag_s >= NOTICED_S else ""
    lag = f"{count_of(row.lag, 'event')}{behind} behind the newest" if row.lag else "nothing comes after it"
    return f"Its checkpoint is at {row.offset}{age}; {lag}."


def _next(row: PartitionRow, look: GroupSnapshot) -> str:
    foresight = look.foresight
    if row.status == "ended":
        return "It has ended: no plan names it any more."
    if row.status == "unborn":
        return f"It follows {listed(row.waits_for)}: no plan gives it to anybody before that has ended."
    if row.partition in foresight.paused:
        return "It is paused, so no plan gives it to anybody until it is resumed."
    move = next((move for move in foresight.plan.moves if move.partition == row.partition), None)
    heir = foresight.plan.owners.get(row.partition)
    if move is not None and move.after is not None:
        return f"The next plan gives it to {move.after}, because {move.reason}.{_shares(look, move.after)}"
    if heir is None:
        why = "there is no instance that could have it" if not foresight.seats else "every instance has all it may have"
        return f"The next plan leaves it without an owner: {why}."
    return f"The next plan leaves it with {heir}.{_shares(look, heir)}"


def _shares(look: GroupSnapshot, member: str) -> str:
    foresight = look.foresight
    share, owned = foresight.plan.shares.get(member), foresight.owned(member)
    if share is None:
        return ""
    row = next((row for row in look.members if row.id == member), None)
    if row is None or row.load_of_mean is None:
        return f" {member} has {owned}, its share is {share} of {len(foresight.plan.owners)}."
    return f" {member} has {owned} of {len(foresight.plan.owners)}, and is at {row.load_of_mean:.2f} of the mean load."
