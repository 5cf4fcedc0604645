"""Turns a snapshot into what the page shows: named sections of plain values, each sent only when it has changed.

Pure. It selects, sorts and names what `operate.inspect` computed. Unknown is null, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from evenflow.console.history import is_large
from evenflow.model import show_epoch
from evenflow.operate.inspect.bands import bands_of, longest_gap_s
from evenflow.operate.inspect.explanation import explain
from evenflow.operate.inspect.forecast import forecast_plan
from evenflow.operate.inspect.move_groups import group_moves
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.console.history import GroupHistory
    from evenflow.model import Action, Group, Lease, Move, PartitionId, Wish
    from evenflow.operate.inspect.bands import Band
    from evenflow.operate.inspect.duplicates import DuplicateEstimate, DuplicateEstimator
    from evenflow.operate.inspect.findings import Finding
    from evenflow.operate.inspect.forecast import PlanForecast
    from evenflow.operate.inspect.members import MemberRow
    from evenflow.operate.inspect.move_groups import MoveGroup
    from evenflow.operate.inspect.ownership import PartitionRow
    from evenflow.operate.inspect.silences import SilenceHistory
    from evenflow.operate.inspect.watcher import GroupSnapshot

BLOCK = 25
"""Partitions in one section."""
CROWD_BLOCK = 500
STORY_MOST = 60
ROWS_MOST = 200
ENDED_MOST = 200
"""The most ended partitions that are shown, the latest ones; others are only counted."""
COLUMNS = (
    "id", "owner", "status", "epoch", "lag", "lag_s", "trend", "per_s", "catch_up_s", "expires_s", "lease_at",
    "checkpoint_at", "offset", "newest", "load", "reason",
)  # fmt: skip
BAND_KINDS = ("owned", "silent", "unowned", "halted", "ended")
FINE = ("ok", "third-party", "waiting", "ended", "starting", "moving")
RECENT_S = 600.0
FIRST_EPOCH = 1


class InstanceTags:
    """A number for each instance ever seen, so that its colour and initial never change."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str | None) -> int | None:
        if name is None:
            return None
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


class PageContext(Struct, frozen=True, kw_only=True):
    """What is known of a group beyond the snapshot itself."""

    moves: Sequence[Move]
    """Newest first."""
    actions: Sequence[Action] = ()
    duplicates: DuplicateEstimator
    silence_history: SilenceHistory
    history: GroupHistory
    tags: InstanceTags
    watched_since: float
    has_dead_letters: bool = False
    has_source: bool = True


def sections(snapshot: GroupSnapshot, known: PageContext) -> dict[str, Any]:
    """All sections by name. A name with a number is a part of a larger section."""
    for member in snapshot.members:
        known.tags.of(member.id)
    for move in reversed(known.moves):
        known.tags.of(move.before)
        known.tags.of(move.after)
    bands = bands_of(known.moves, _leases(snapshot), known.silence_history.silences)
    found: dict[str, Any] = {
        "head": _head(snapshot, known),
        "sums": _sums(snapshot, known, bands),
        "members": [_member(row, snapshot, known) for row in snapshot.members],
        "findings": [finding_facts(finding) for finding in snapshot.findings],
        "story": _story(known),
        "actions": [action_facts(action) for action in known.actions],
        "plans": _plans(snapshot),
        "names": known.tags.names,
    }
    if is_large(snapshot):
        return found | _crowd(snapshot, known)
    return found | _each(snapshot, known, bands)


def explanation(snapshot: GroupSnapshot, known: PageContext, partition: PartitionId) -> dict[str, Any]:
    """Everything about one partition. Misconfigured when it does not exist."""
    explained = explain(snapshot, partition)
    moves = [move for move in known.moves if move.partition == partition]
    row = explained.row
    return {
        "row": dict(zip(COLUMNS, _row(row, known.tags), strict=True)),
        "where": explained.where,
        "progress": explained.progress,
        "next": explained.next,
        "findings": [finding_facts(finding) for finding in explained.findings],
        "moves": [_move(move, known) for move in moves[:STORY_MOST]],
        "pause": pause_facts(row.pause),
        "failure": asdict(row.failure) if row.failure is not None else None,
        "parked": list(row.parked_keys or ()),
        "without_progress": row.without_progress,
    }


def planned(snapshot: GroupSnapshot, members: int) -> dict[str, Any]:
    """The plan for this number of instances, move by move."""
    seen = forecast_plan(snapshot.found, snapshot.silences, members)
    moves = sorted(seen.plan.moves, key=lambda move: natural(move.partition))
    return _plan(seen) | {"moves": [move._asdict() for move in moves[:ROWS_MOST]]}


def page_of_rows(
    snapshot: GroupSnapshot, tags: InstanceTags, *, text: str, status: str, owner: str, start: int
) -> dict[str, Any]:
    """A page of the matching rows, from `start`: the worst first, ended ones last.

    Lag sorts by its number of digits, so that rows do not change places with every snapshot.
    """
    fitting = [
        row
        for row in snapshot.partitions
        if text in row.partition
        and (not owner or row.owner == owner)
        and (not status or row.status == status or (status == "problems" and row.status not in FINE))
    ]
    order = sorted(fitting, key=lambda row: (row.status == "ended", row.status in FINE, -_level(row.lag)))
    rows = order[start : start + ROWS_MOST]
    return {"total": len(fitting), "start": start, "rows": [_row(row, tags) for row in rows]}


def brief(group: Group, snapshot: GroupSnapshot | None, problem: str = "") -> dict[str, Any]:
    """A group in the list. Without a snapshot everything is unknown, and `problem` says why."""
    named = {"namespace": group.namespace, "hub": group.hub, "name": group.name, "problem": problem or None}
    if snapshot is None:
        unknown = dict.fromkeys(("status", "running", "partitions", "owned", "lag", "lag_s", "per_s", "paused"))
        return named | unknown | {"unknown_lags": 0, "shares": []}
    return named | {
        "status": snapshot.status,
        "running": snapshot.running,
        "partitions": len(snapshot.open),
        "owned": snapshot.owned,
        "lag": snapshot.lag,
        "unknown_lags": snapshot.unknown_lags,
        "lag_s": _brief(snapshot.lag_s),
        "per_s": _brief(snapshot.total.per_s),
        "paused": snapshot.pause is not None,
        "shares": [row.partitions for row in snapshot.members],
        "problem": problem or "; ".join(snapshot.found.problems) or None,
    }


def finding_facts(finding: Finding) -> dict[str, Any]:
    return asdict(finding)


def action_facts(action: Action) -> dict[str, Any]:
    return asdict(action)


def pause_facts(request: Wish | None) -> dict[str, Any] | None:
    return {"by": request.by, "why": request.why, "at": request.at or None} if request is not None else None


def _leases(snapshot: GroupSnapshot) -> dict[PartitionId, Lease]:
    ledger = snapshot.found.ledger
    return {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}


def _head(snapshot: GroupSnapshot, known: PageContext) -> dict[str, Any]:
    group = snapshot.group
    return {
        "namespace": group.namespace,
        "hub": group.hub,
        "name": group.name,
        "status": snapshot.status,
        "settled": _is_settled(snapshot),
        "partitions": len(snapshot.open),
        "ended": len(snapshot.ended),
        "owned": snapshot.owned,
        "running": snapshot.running,
        "exists": snapshot.found.ledger is not None,
        "pause": pause_facts(snapshot.pause),
        "problems": list(snapshot.found.problems),
        "has_source": known.has_source,
        "has_dead_letters": known.has_dead_letters,
        "large": is_large(snapshot),
        "by_load": snapshot.forecast.loads is not None,
        "watched_since": known.watched_since,
        "step_s": known.history.step_s(len(snapshot.open)),
        "columns": COLUMNS,
    }


def _is_settled(snapshot: GroupSnapshot) -> bool:
    """Everything is owned, no move is planned, and all members are alive."""
    return (
        bool(snapshot.members)
        and not snapshot.forecast.plan.moves
        and all(m.status == "alive" for m in snapshot.members)
    )


def _sums(snapshot: GroupSnapshot, known: PageContext, bands: Mapping[PartitionId, Sequence[Band]]) -> dict[str, Any]:
    since = snapshot.wall_s - RECENT_S
    recent = [move for move in known.moves if move.at >= since]
    duplicates = [(move, known.duplicates.of(move)) for move in recent]
    shares = [(row.partitions, row.share) for row in snapshot.members if row.share is not None]
    return {
        "per_s": _brief(snapshot.total.per_s),
        "lag": snapshot.lag,
        "unknown_lags": snapshot.unknown_lags,
        "lag_s": _brief(snapshot.lag_s),
        "trend": snapshot.total.trend,
        "catch_up_s": _brief(snapshot.total.catch_up_s),
        "uneven": max((abs(has - share) for has, share in shares), default=None),
        "to_move": sum(move.after is not None for move in snapshot.forecast.plan.moves),
        "planned": _duplicates([repeat for move, repeat in duplicates if move.kind in ("handed over", "released")]),
        "planned_moves": sum(move.kind in ("handed over", "released") for move in recent),
        "unplanned_moves": sum(move.kind in ("taken over", "taken again") for move in recent),
        "crashed": _duplicates([repeat for move, repeat in duplicates if move.kind in ("taken over", "taken again")]),
        "gap_s": _brief(longest_gap_s(bands, since, snapshot.wall_s, known.silence_history.silent_since)),
        "dead_letters": snapshot.found.dead_letters,
    }


def _duplicates(duplicates: Sequence[DuplicateEstimate]) -> dict[str, Any]:
    """The total of these moves, and for how many moves it is unknown."""
    known = [repeat for repeat in duplicates if repeat.events is not None]
    return {
        "events": sum(repeat.events or 0 for repeat in known) if known else None,
        "cut_off": sum(repeat.cut_off or 0 for repeat in known) if known else None,
        "unknown": len(duplicates) - len(known),
    }


def _member(row: MemberRow, snapshot: GroupSnapshot, known: PageContext) -> dict[str, Any]:
    request = (
        snapshot.found.ledger.state.retired.get(f"{row.id}#{row.incarnation}")
        if snapshot.found.ledger is not None
        else None
    )
    return {
        "id": row.id,
        "tag": known.tags.of(row.id),
        "incarnation": row.incarnation,
        "status": row.status,
        "by_wall_clock": row.by_wall_clock,
        "partitions": row.partitions,
        "share": row.share,
        "excess": row.excess,
        "per_s": _brief(row.per_s),
        "busy": _brief(row.load),
        "busy_of_mean": _brief(row.load_of_mean),
        "charges": row.charges,
        "weight": row.weight,
        "silent_s": _brief(row.silent_s),
        "longest_silence_s": _brief(known.history.longest_silence_s(row.id)),
        "heartbeat_at": row.heartbeat_at or None,
        "heartbeat_s": row.heartbeat_s,
        "ttl_s": row.ttl_s,
        "host": row.host,
        "pid": row.pid or None,
        "version": row.version,
        "started_at": row.started_at or None,
        "retired": pause_facts(request),
    }


def _story(known: PageContext) -> list[dict[str, Any]]:
    """Groups of moves, newest first, with their duplicates."""
    return [_move_group(one, known) for one in group_moves(known.moves[: STORY_MOST * 8])[:STORY_MOST]]


def _move_group(group: MoveGroup, known: PageContext) -> dict[str, Any]:
    duplicates = [known.duplicates.of(move) for move in group.moves]
    counted = [repeat for repeat in duplicates if repeat.events is not None]
    certainties = {repeat.certainty for repeat in duplicates}
    return {
        "at": group.at,
        "began": min(move.at for move in group.moves),
        "kind": group.kind,
        "before": known.tags.of(group.before),
        "after": known.tags.of(group.after),
        "partitions": sorted(group.partitions, key=natural),
        "reason": group.reason,
        "duplicates": sum(repeat.events or 0 for repeat in counted) if counted else None,
        "cut_off": sum(repeat.cut_off or 0 for repeat in counted) if counted else None,
        "certainty": certainties.pop() if len(certainties) == 1 else "at most" if counted else "unknown",
    }


def _move(move: Move, known: PageContext) -> dict[str, Any]:
    repeat = known.duplicates.of(move)
    return {
        "at": move.at,
        "kind": move.kind,
        "before": known.tags.of(move.before),
        "after": known.tags.of(move.after),
        "epoch": show_epoch(move.epoch),
        "reason": move.reason,
        "duplicates": repeat.events,
        "cut_off": repeat.cut_off,
        "certainty": repeat.certainty,
    }


def _plans(snapshot: GroupSnapshot) -> list[dict[str, Any]]:
    """With one instance fewer, with the current ones, and with one more."""
    now = len(snapshot.forecast.seats)
    wanted: list[PlanForecast] = [snapshot.forecast, forecast_plan(snapshot.found, snapshot.silences, now + 1)]
    if now:
        wanted.insert(0, forecast_plan(snapshot.found, snapshot.silences, now - 1))
    return [_plan(seen) for seen in wanted]


def _plan(seen: PlanForecast) -> dict[str, Any]:
    moves = [move for move in seen.plan.moves if move.after is not None]
    carried = seen.carried(seen.plan.owners)
    return {
        "members": len(seen.seats),
        "added": list(seen.added),
        "removed": list(seen.removed),
        "moving": len(moves),
        "of": len(seen.plan.owners),
        "unowned": sum(owner is None for owner in seen.plan.owners.values()),
        "shares": [[seat.id, seen.plan.shares.get(seat.id, 0)] for seat in seen.seats][:ROWS_MOST],
        "load_most": _brief(max(carried.values())) if carried else None,
    }


def _each(snapshot: GroupSnapshot, known: PageContext, bands: Mapping[PartitionId, Sequence[Band]]) -> dict[str, Any]:
    """Every partition, ended ones last."""
    last = sorted(snapshot.ended, key=lambda row: row.changed_at or 0.0)[-ENDED_MOST:]
    shown = [*snapshot.open, *sorted(last, key=lambda row: natural(row.partition))]
    rows = [_row(row, known.tags) for row in shown]
    stories = [_lane(row.partition, bands.get(row.partition, ()), known.tags) for row in shown]
    return _blocks("rows", rows, BLOCK) | _blocks("bands", stories, BLOCK)


def _crowd(snapshot: GroupSnapshot, known: PageContext) -> dict[str, Any]:
    """For many partitions: owner, status and the magnitude of lag of each. The page requests rows separately."""
    statuses = sorted({row.status for row in snapshot.open})
    cells = [
        [row.partition, _number(known.tags.of(row.owner)), statuses.index(row.status), _level(row.lag)]
        for row in snapshot.open
    ]
    found: dict[str, Any] = {"statuses": statuses, "counts": _counted(row.status for row in snapshot.open)}
    return found | _blocks("crowd", cells, CROWD_BLOCK)


def _blocks(name: str, items: Sequence[Any], size: int) -> dict[str, Any]:
    return {f"{name}/{at // size}": list(items[at : at + size]) for at in range(0, len(items), size)}


def _counted(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def _number(tag: int | None) -> int:
    return -1 if tag is None else tag


def _level(lag: int | None) -> int:
    """The number of digits of lag, which seldom changes; -1: unknown."""
    return -1 if lag is None else len(str(lag)) if lag else 0


def _row(row: PartitionRow, tags: InstanceTags) -> list[Any]:
    return [
        row.partition,
        tags.of(row.owner),
        row.status,
        show_epoch(row.epoch) if row.epoch is not None else None,
        row.lag,
        _brief(row.lag_s),
        row.trend,
        _brief(row.per_s),
        _brief(row.catch_up_s),
        _brief(row.expires_s),
        row.changed_at,
        row.checkpoint_at,
        row.offset,
        row.newest,
        _brief(row.load),
        row.reason,
    ]


def _lane(partition: PartitionId, bands: Sequence[Band], tags: InstanceTags) -> list[Any]:
    """The bands of a partition, and whether the first one is the first it ever had."""
    return [partition, [_band(band, tags) for band in bands], bool(bands) and bands[0].epoch == FIRST_EPOCH]


def _band(band: Band, tags: InstanceTags) -> list[Any]:
    return [band.since, band.until, tags.of(band.owner), BAND_KINDS.index(band.kind), band.reason]


def _brief(number: float | None) -> float | None:
    """Two decimal places are enough for display."""
    return None if number is None else round(number, 2)
