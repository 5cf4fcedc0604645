"""One frame of `evenflow top`: a pure function from a snapshot to lines that fit the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from evenflow.cli.output import columns, show_time
from evenflow.cli.views import age, duration, epoch_of, findings_lines, part, without_unmeasured_load
from evenflow.text import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.operate.inspect.members import MemberRow
    from evenflow.operate.inspect.ownership import PartitionRow
    from evenflow.operate.inspect.rates import Trend
    from evenflow.operate.inspect.watcher import GroupSnapshot

PARTITION_HEADERS = (
    "PARTITION", "OWNER", "STATUS", "LAG", "TREND", "EVENTS/S", "LAG-TIME", "CATCH-UP", "LOAD", "EPOCH",
)  # fmt: skip
MEMBER_HEADERS = ("MEMBER", "STATUS", "PARTITIONS", "SHARE", "LOAD", "EVENTS/S", "LAST-HEARTBEAT", "HOST")
NUMBERS = ("EPOCH", "EVENTS/S", "LAG", "LAG-TIME", "CATCH-UP", "LOAD", "PARTITIONS", "SHARE", "LAST-HEARTBEAT")
ARROWS: dict[Trend | None, str | None] = {"grows": "↑", "shrinks": "↓", "steady": "→", None: None}
HEAD, QUIET, BAD = "bold", "bright_black", "bold red"
FINE = ("ok", "third-party", "waiting", "ended")


def frame(look: GroupSnapshot, height: int | None = None) -> list[Text]:
    """At most `height` lines. Partitions that do not fit are counted in one line; healthy ones are left out first."""
    top = [_title(look), _totals(look), *_findings(look, None if height is None else height // 3)]
    member_rows = [_member(row, look.wall_s) for row in look.members]
    members = _table(*without_unmeasured_load(MEMBER_HEADERS, member_rows, look.forecast))
    ended = [Text(count_of(len(look.ended), "ended partition"), QUIET)] if look.ended else []
    lines_left = None if height is None else max(1, height - len(top) - len(members) - len(ended) - 4)
    rows, left = fitting(look.open, lines_left)
    cells = without_unmeasured_load(PARTITION_HEADERS, [_partition(row) for row in rows], look.forecast)
    partitions = _table(*cells, [row.status in FINE for row in rows])
    more = [Text(f"and {count_of(left, 'more partition')}", QUIET)] if left else []
    lines = [*top, Text(), *partitions, *more, *ended, Text(), *members]
    return lines if height is None else lines[:height]


def fitting(rows: Sequence[PartitionRow], most: int | None) -> tuple[list[PartitionRow], int]:
    """The rows to show, in their order, and how many are left out: healthy ones with the least lag first."""
    if most is None or len(rows) <= most:
        return list(rows), 0
    worst = sorted(rows, key=lambda row: (row.status in FINE, -(row.lag or 0)))[:most]
    return [row for row in rows if row in worst], len(rows) - most


def _title(look: GroupSnapshot) -> Text:
    text = Text.assemble(("evenflow top", HEAD), f"   {look.group}   ", (show_time(look.wall_s), QUIET), "   ")
    return text.append(look.status, "" if look.status == "ok" else BAD)


def _totals(look: GroupSnapshot) -> Text:
    arrow = ARROWS[look.total.trend]
    lag = "-" if look.lag is None else f"{look.lag:,}{f' {arrow}' if arrow else ''}"
    unknown = f" ({look.unknown_lags} unknown)" if look.unknown_lags else ""
    facts = (
        ("events/s", rate(look.total.per_s) or "-"),
        ("lag", lag + unknown),
        ("behind", duration(look.lag_s) or "-"),
        ("catch-up", duration(look.total.catch_up_s) or "-"),
        ("members", str(look.running)),
        ("owned", f"{look.owned}/{len(look.open)}"),
    )
    return Text("   ").join(Text.assemble((f"{name} ", QUIET), value) for name, value in facts)


def _findings(look: GroupSnapshot, most: int | None) -> list[Text]:
    lines = [Text(line, BAD if line.startswith("!") else "") for line in findings_lines(look.findings)]
    return lines if most is None else lines[: max(3, most)]


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]], fine: Sequence[bool] = ()) -> list[Text]:
    head, *lines = columns(headers, rows, NUMBERS)
    styles = ["" if one else BAD for one in fine] or [""] * len(lines)
    return [Text(head, HEAD), *(Text(line, style) for line, style in zip(lines, styles, strict=True))]


def _partition(row: PartitionRow) -> Sequence[object]:
    pace = (row.lag, ARROWS[row.trend], rate(row.per_s), duration(row.lag_s), duration(row.catch_up_s))
    return row.partition, row.owner, row.status, *pace, part(row.load), epoch_of(row)


def _member(row: MemberRow, wall_s: float) -> Sequence[object]:
    heartbeat = age(row.heartbeat_at, wall_s) if row.silent_s is None else duration(row.silent_s)
    return row.id, row.status, row.partitions, row.share, part(row.load_of_mean), rate(row.per_s), heartbeat, row.host


def rate(per_s: float | None) -> str | None:
    """Events per second, without decimals from 10 on."""
    return None if per_s is None else f"{per_s:,.0f}" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}"
