"""Renders a snapshot of a group, as lines of text and as JSON: partitions, members, findings, moves and actions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from evenflow.cli.output import brief, columns, json_time, printable, show_time
from evenflow.cli.quantities import show_duration
from evenflow.model import CHARGES_HEARTBEATS, show_epoch
from evenflow.operate.inspect.forecast import PlanForecast
from evenflow.text import count_of, listed, most_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Action, Move, Wish
    from evenflow.operate.inspect.findings import Finding
    from evenflow.operate.inspect.members import MemberRow
    from evenflow.operate.inspect.ownership import PartitionRow
    from evenflow.operate.inspect.watcher import GroupSnapshot

SHORT_HEADERS = ("PARTITION", "OWNER", "STATUS", "EPOCH", "LAG", "LAG-TIME", "AGE", "REASON")
PARTITION_HEADERS = (
    "PARTITION", "OWNER", "STATUS", "EPOCH", "LAG", "LAG-TIME", "TREND", "OFFSET", "SEQUENCE", "NEWEST",
    "CHECKPOINT-AGE", "LEASE-AGE", "EXPIRES", "LOAD", "REASON",
)  # fmt: skip
LAG_HEADERS = ("PARTITION", "STATUS", "SEQUENCE", "NEWEST", "LAG", "LAG-TIME", "TREND")
MEMBER_HEADERS = (
    "MEMBER", "STATUS", "PARTITIONS", "SHARE", "LOAD", "LAST-HEARTBEAT", "HOST", "PID", "VERSION", "WEIGHT", "STARTED",
)  # fmt: skip
MOVE_HEADERS = ("WHEN", "PARTITION", "FROM", "TO", "EPOCH", "REASON")
ACTION_HEADERS = ("WHEN", "ACTION", "BY", "WHAT", "WHY")
NUMBERS = (
    "EPOCH", "OFFSET", "SEQUENCE", "NEWEST", "LAG", "LAG-TIME", "AGE", "LEASE-AGE", "EXPIRES", "CHECKPOINT-AGE",
    "PARTITIONS", "SHARE", "LOAD", "WEIGHT", "LAST-HEARTBEAT", "PID",
)  # fmt: skip


WHAT_CELLS = 60
"""Width of the column WHAT on a terminal. A pipe and JSON get the whole text."""


class DescribeView:
    """`evenflow group describe`: everything."""

    def __init__(self, look: GroupSnapshot) -> None:
        self._look = look

    def as_facts(self) -> dict[str, Any]:
        look = self._look
        return {
            **group_facts(look),
            "pause": pause_facts(look.pause),
            "findings": [finding_facts(finding) for finding in look.findings],
            "partitions": [partition_facts(row) for row in look.partitions],
            "members": [timed(row, "started_at", "heartbeat_at") for row in look.members],
            "moves": [timed(move, "at") for move in look.found.moves],
            "actions": action_facts(look.found.actions),
            "dead_letters": look.found.dead_letters,
            "problems": list(look.found.problems),
        }

    def as_lines(self) -> list[str]:
        look = self._look
        lines = self.head() + findings_lines(look.findings)
        rows = [self._partition(row) for row in look.partitions]
        lines += ["", *columns(*without_unmeasured_load(PARTITION_HEADERS, rows, look.forecast), NUMBERS)]
        lines += member_lines(look)
        lines += move_lines(look.found.moves)
        if look.found.actions:
            lines += ["", *action_lines(look.found.actions)]
        return lines

    def head(self) -> list[str]:
        look, group = self._look, self._look.group
        lines = [f"NAMESPACE  {group.namespace or '-'}", f"HUB        {group.hub}", f"GROUP      {group.name}"]
        if look.pause is not None:
            lines.append(f"PAUSED     by {look.pause.by or '-'}: {printable(look.pause.why) or '-'}")
        lines += [f"STATUS     {look.status}", f"LAG        {show_total(look)}"]
        return [*lines, f"SPENT      {spent}"] if (spent := show_spent(look)) else lines

    def _partition(self, row: PartitionRow) -> Sequence[object]:
        wall_s = self._look.wall_s
        lag = (row.lag, duration(row.lag_s), row.trend)
        place = (row.offset, row.sequence, row.newest, age(row.checkpoint_at, wall_s))
        lease = (age(row.changed_at, wall_s), duration(row.expires_s), part(row.load), reason_of(row))
        return row.partition, row.owner, row.status, epoch_of(row), *lag, *place, *lease


class StatusView(DescribeView):
    """`evenflow status`: the short form."""

    def __init__(self, look: GroupSnapshot, *, whole: bool = False) -> None:
        """With `whole`, each ended partition gets a row of its own."""
        super().__init__(look)
        self._whole = whole

    def as_lines(self) -> list[str]:
        look = self._look
        lines = self.head() + findings_lines(look.findings)
        rows, ended = folded(look, whole=self._whole)
        lines += ["", *columns(SHORT_HEADERS, [self._short(row) for row in rows], NUMBERS), *ended]
        return lines + member_lines(look) + move_lines(look.found.moves)

    def _short(self, row: PartitionRow) -> Sequence[object]:
        lag = (row.lag, duration(row.lag_s))
        since = age(row.changed_at, self._look.wall_s)
        return row.partition, row.owner, row.status, epoch_of(row), *lag, since, reason_of(row)


class LagView:
    """`evenflow lag`: lag only."""

    def __init__(self, look: GroupSnapshot, *, whole: bool = False) -> None:
        self._look, self._whole = look, whole

    def as_facts(self) -> dict[str, Any]:
        keys = ("partition", "sequence", "newest", "lag", "lag_s", "trend", "catch_up_s", "status")
        rows = [partition_facts(row) for row in self._look.partitions]
        return {
            **group_facts(self._look),
            "partitions": [{key: row[key] for key in keys} for row in rows],
            "problems": list(self._look.found.problems),
        }

    def as_lines(self) -> list[str]:
        look = self._look
        shown, ended = folded(look, whole=self._whole)
        rows: list[Sequence[object]] = [
            (row.partition, row.status, row.sequence, row.newest, row.lag, duration(row.lag_s), row.trend)
            for row in shown
        ]
        unknown = f"{look.unknown_lags} unknown" if look.unknown_lags else None
        rows.append(("total", unknown or look.status, None, None, look.lag, duration(look.lag_s), look.total.trend))
        return [*columns(LAG_HEADERS, rows, NUMBERS), *ended]


def folded(look: GroupSnapshot, *, whole: bool) -> tuple[Sequence[PartitionRow], list[str]]:
    """The rows to show, and one line in place of the ended partitions, unless all are wanted."""
    if whole or not look.ended:
        return look.partitions, []
    names = listed([row.partition for row in look.ended])
    return look.open, [f"{count_of(len(look.ended), 'ended partition')}: {names} (--all shows each)"]


def group_facts(look: GroupSnapshot) -> dict[str, Any]:
    """The fields of a group as a whole, as `group list --json` prints them."""
    return {
        "namespace": look.group.namespace,
        "hub": look.group.hub,
        "group": look.group.name,
        "status": look.status,
        "paused": look.pause is not None if look.found.ledger is not None else None,
        "owned": look.owned,
        "ended": len(look.ended),
        "lag": look.lag,
        "lag_unknown": look.unknown_lags,
        "lag_s": look.lag_s,
        "trend": look.total.trend,
        "per_s": look.total.per_s,
        "catch_up_s": look.total.catch_up_s,
    }


def partition_facts(row: PartitionRow) -> dict[str, Any]:
    failure = timed(row.failure, "at") if row.failure is not None else None
    return timed(row, "changed_at", "checkpoint_at") | {"pause": pause_facts(row.pause), "failure": failure}


def finding_facts(finding: Finding) -> dict[str, Any]:
    return asdict(finding)


def pause_facts(request: Wish | None) -> dict[str, Any] | None:
    if request is None:
        return None
    return {name: value for name, value in timed(request, "at").items() if name != "visit"}


def findings_lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding with its advice below it, the worst first; no lines if there are no findings."""
    lines = [
        line for finding in findings for line in (f"! {finding.kind}: {printable(finding.what)}", f"  {finding.advice}")
    ]
    return ["", *lines] if lines else []


def member_lines(look: GroupSnapshot) -> list[str]:
    rows = [_member(row, look.wall_s) for row in look.members]
    return ["", *columns(*without_unmeasured_load(MEMBER_HEADERS, rows, look.forecast), NUMBERS)] if rows else []


def without_unmeasured_load(
    headers: Sequence[str], rows: Sequence[Sequence[object]], forecast: PlanForecast
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """The table without its column LOAD if shares are balanced by count: load is not measured then."""
    if forecast.loads is not None:
        return headers, rows
    kept = [at for at, header in enumerate(headers) if header != "LOAD"]
    return [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]


def move_lines(moves: Sequence[Move]) -> list[str]:
    return ["", *columns(MOVE_HEADERS, [_move(move) for move in moves], NUMBERS)] if moves else []


def show_total(look: GroupSnapshot) -> str:
    """The lag of all partitions, and how many of them have an unknown lag."""
    if look.lag is None:
        return "-" if look.lag_s is None else f"{duration(look.lag_s)} (events unknown)"
    known = f"{look.lag} {'event' if look.lag == 1 else 'events'}"
    known += f", {duration(look.lag_s)}" if look.lag_s is not None else ""
    return f"{known} ({look.unknown_lags} unknown)" if look.unknown_lags else known


def show_spent(look: GroupSnapshot) -> str:
    """Request units of all live members, each since its start; "" if no service charges for requests."""
    charged = [row for row in look.members if row.charges and row.status != "silent"]
    sums: Counter[str] = Counter()
    for row in charged:
        sums.update(row.charges or {})
    if not sums:
        return ""
    most, by = most_units(sums), count_of(len(charged), "member")
    # The time of each report is unknown; only the interval between reports is.
    age_s = max(row.heartbeat_s for row in charged) * CHARGES_HEARTBEATS
    return f"{sums.total():,.1f} request units by {by}{f': {most}' if most else ''} (up to {show_duration(age_s)} old)"


def epoch_of(row: PartitionRow) -> str | None:
    return None if row.epoch is None else show_epoch(row.epoch)


def reason_of(row: PartitionRow) -> str | None:
    return None if row.reason is None else printable(row.reason)


def part(share: float | None) -> str | None:
    return None if share is None else f"{share:.2f}"


def duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return "0s" if seconds == 0 else "<0.1s" if seconds < 0.1 else show_duration(seconds)


def age(at: float | None, wall_s: float) -> str | None:
    return None if not at else show_duration(wall_s - at)


def timed(record: Any, *times: str) -> dict[str, Any]:
    """A record for JSON; its named times become text, or null if unknown."""
    return asdict(record) | {name: json_time(getattr(record, name) or None) for name in times}


def _member(row: MemberRow, wall_s: float) -> Sequence[object]:
    heartbeat = age(row.heartbeat_at, wall_s) if row.silent_s is None else show_duration(row.silent_s)
    origin = (row.host, row.pid or None, row.version)
    return (
        row.id,
        row.status,
        row.partitions,
        row.share,
        part(row.load_of_mean),
        heartbeat,
        *origin,
        f"{row.weight:g}",
        show_time(row.started_at or None),
    )


def _move(move: Move) -> Sequence[object]:
    when = show_time(move.at)
    return when, move.partition, move.before, move.after, show_epoch(move.epoch), printable(move.reason)


def action_facts(actions: Sequence[Action]) -> list[dict[str, Any]]:
    return [timed(action, "at") for action in actions]


def action_lines(actions: Sequence[Action]) -> list[str]:
    return columns(ACTION_HEADERS, [_action(action) for action in actions])


def _action(action: Action) -> Sequence[object]:
    return (
        show_time(action.at or None),
        action.kind,
        printable(action.by),
        brief(printable(action.what), WHAT_CELLS),
        printable(action.why),
    )
