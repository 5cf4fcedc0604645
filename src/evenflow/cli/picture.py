"""A look made readable: the ownership table, members, findings, moves and actions, as lines and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from evenflow.cli.output import brief, columns, json_time, printable, show_time
from evenflow.cli.quantities import show_duration
from evenflow.model import CHARGES_HEARTBEATS, show_epoch
from evenflow.text import count_of, listed, most_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Action, Move, Wish
    from evenflow.operate.inspect.findings import Finding
    from evenflow.operate.inspect.forecast import PlanForecast
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
"""Of what was done, in a table on a terminal; the whole is in a pipe and in JSON."""


class Picture:
    """All of it: `evenflow group describe`."""

    def __init__(self, look: GroupSnapshot) -> None:
        self._look = look

    def as_facts(self) -> dict[str, Any]:
        look = self._look
        return {
            **group_facts(look),
            "pause": wish_facts(look.pause),
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
        lines += ["", *columns(*told(PARTITION_HEADERS, rows, look.forecast), NUMBERS)]
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


class Short(Picture):
    """`evenflow status`: the short form."""

    def __init__(self, look: GroupSnapshot, *, whole: bool = False) -> None:
        """With `whole`, partitions that have ended are told one by one."""
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


class LagPicture:
    """`evenflow lag`: lag alone."""

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
    """The rows to show, and a line in place of those that have ended, which are no more than history."""
    if whole or not look.ended:
        return look.partitions, []
    names = listed([row.partition for row in look.ended])
    return look.open, [f"{count_of(len(look.ended), 'ended partition')}: {names} (--all shows each)"]


def group_facts(look: GroupSnapshot) -> dict[str, Any]:
    """A group in one object: what `group list` tells of each."""
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
    return timed(row, "changed_at", "checkpoint_at") | {"pause": wish_facts(row.pause), "failure": failure}


def finding_facts(finding: Finding) -> dict[str, Any]:
    return asdict(finding)


def wish_facts(wish: Wish | None) -> dict[str, Any] | None:
    if wish is None:
        return None
    return {name: value for name, value in timed(wish, "at").items() if name != "visit"}


def findings_lines(findings: Sequence[Finding]) -> list[str]:
    """The worst first, each with what to do below it; nothing when there is nothing to say."""
    lines = [
        line for finding in findings for line in (f"! {finding.kind}: {printable(finding.what)}", f"  {finding.advice}")
    ]
    return ["", *lines] if lines else []


def member_lines(look: GroupSnapshot) -> list[str]:
    rows = [_member(row, look.wall_s) for row in look.members]
    return ["", *columns(*told(MEMBER_HEADERS, rows, look.forecast), NUMBERS)] if rows else []


def told(
    headers: Sequence[str], rows: Sequence[Sequence[object]], foresight: PlanForecast
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Without the column LOAD where shares are by count: nobody measures it there."""
    if foresight.loads is not None:
        return headers, rows
    kept = [at for at, header in enumerate(headers) if header != "LOAD"]
    return [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]


def move_lines(moves: Sequence[Move]) -> list[str]:
    return ["", *columns(MOVE_HEADERS, [_move(move) for move in moves], NUMBERS)] if moves else []


def show_total(look: GroupSnapshot) -> str:
    """Of all partitions, and how many of them are not in it."""
    if look.lag is None:
        return "-" if look.lag_s is None else f"{duration(look.lag_s)} (events unknown)"
    known = f"{look.lag} {'event' if look.lag == 1 else 'events'}"
    known += f", {duration(look.lag_s)}" if look.lag_s is not None else ""
    return f"{known} ({look.unknown_lags} unknown)" if look.unknown_lags else known


def show_spent(look: GroupSnapshot) -> str:
    """By all members that are there, each since it started; nothing where no service charges."""
    told = [row for row in look.members if row.charges and row.status != "silent"]
    sums: Counter[str] = Counter()
    for row in told:
        sums.update(row.charges or {})
    if not sums:
        return ""
    most, by = most_units(sums), count_of(len(told), "member")
    # When each told it is not known: only how often they do.
    age_s = max(row.heartbeat_s for row in told) * CHARGES_HEARTBEATS
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
    """A record for JSON: an unknown time is null."""
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
