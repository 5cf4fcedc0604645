"""Snapshots of groups as metrics in the Prometheus text format.

All are gauges, except sums that only grow while an instance runs. Unknown values have no sample: a gap in a plot is
true, a zero would not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from msgspec import Struct

from evenflow.operate.inspect.findings import FindingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from evenflow.operate.inspect.watcher import GroupSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = dict[str, str]
Sample: TypeAlias = tuple[Labels, float | None]


class Family(Struct, frozen=True):
    """All samples of one name."""

    name: str
    about: str
    samples: Sequence[Sample]
    kind: Literal["gauge", "counter"] = "gauge"

    def lines(self) -> Iterator[str]:
        """No lines at all when no value is known."""
        known = [(labels, value) for labels, value in self.samples if value is not None]
        if known:
            yield f"# HELP {self.name} {self.about}"
            yield f"# TYPE {self.name} {self.kind}"
        for labels, value in known:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{shown}}} {_number(value)}"


def exposition(snapshots: Sequence[GroupSnapshot]) -> str:
    """All samples of one metric stand together, as the format requires."""
    return "".join(f"{line}\n" for family in _families(snapshots) for line in family.lines())


def _families(snapshots: Sequence[GroupSnapshot]) -> Iterator[Family]:
    yield from _of_groups([(_of(snapshot), snapshot) for snapshot in snapshots])
    partitions = [
        (_of(snapshot) | {"partition": row.partition}, row) for snapshot in snapshots for row in snapshot.partitions
    ]
    open_ones = [(labels, row) for labels, row in partitions if row.status != "ended"]
    yield Family(
        "evenflow_partition_lag_events",
        "Events after the checkpoint that can still be read.",
        [(labels, row.lag) for labels, row in open_ones],
    )
    yield Family(
        "evenflow_partition_lag_seconds",
        "How long the oldest event after the checkpoint has waited.",
        [(labels, row.lag_s) for labels, row in open_ones],
    )
    yield Family(
        "evenflow_partition_checkpoint_timestamp_seconds",
        "When the checkpoint was last written.",
        [(labels, row.checkpoint_at) for labels, row in open_ones],
    )
    yield Family(
        "evenflow_partition_owned",
        "1 when it has an owner, which the label `owner` names; else 0.",
        [(labels | {"owner": row.owner or ""}, float(row.owner is not None)) for labels, row in open_ones],
    )
    yield Family(
        "evenflow_partition_status",
        "1 for the current status.",
        [(labels | {"status": row.status}, 1.0) for labels, row in open_ones],
    )
    yield Family(
        "evenflow_partition_busy_ratio",
        "Share of the time in which its handler runs.",
        [(labels, row.load) for labels, row in open_ones],
    )
    yield from _of_instances(snapshots)


def _of_groups(snapshots: Sequence[tuple[Labels, GroupSnapshot]]) -> Iterator[Family]:
    yield Family(
        "evenflow_group_events_per_second",
        "Events handled, by checkpoints.",
        [(labels, snapshot.total.per_s) for labels, snapshot in snapshots],
    )
    yield Family(
        "evenflow_group_lag_events",
        "Lag of all partitions whose lag is known.",
        [(labels, snapshot.lag) for labels, snapshot in snapshots],
    )
    yield Family(
        "evenflow_group_lag_seconds",
        "Lag of the partition that is furthest behind.",
        [(labels, snapshot.lag_s) for labels, snapshot in snapshots],
    )
    yield Family(
        "evenflow_group_lag_unknown_partitions",
        "Partitions whose lag is unknown.",
        [(labels, snapshot.unknown_lags) for labels, snapshot in snapshots],
    )
    yield Family(
        "evenflow_group_instances",
        "Live instances.",
        [(labels, snapshot.running) for labels, snapshot in snapshots],
    )
    yield Family(
        "evenflow_group_dead_letters",
        "Open dead letters.",
        [(labels, snapshot.found.dead_letters) for labels, snapshot in snapshots],
    )
    yield Family(
        "evenflow_group_findings",
        "Number of findings of each kind: what is wrong.",
        [
            (labels | {"kind": kind}, sum(finding.kind == kind for finding in snapshot.findings))
            for labels, snapshot in snapshots
            for kind in get_args(FindingKind)
        ],
    )
    yield Family(
        "evenflow_group_looked_timestamp_seconds",
        "When this snapshot was taken.",
        [(labels, snapshot.wall_s) for labels, snapshot in snapshots],
    )


def _of_instances(snapshots: Iterable[GroupSnapshot]) -> Iterator[Family]:
    members = [(_of(snapshot) | {"instance": row.id}, row) for snapshot in snapshots for row in snapshot.members]
    yield Family(
        "evenflow_instance_partitions",
        "Partitions that it owns.",
        [(labels, row.partitions) for labels, row in members],
    )
    yield Family(
        "evenflow_instance_events_per_second",
        "Events handled in its partitions, by checkpoints.",
        [(labels, row.per_s) for labels, row in members],
    )
    yield Family(
        "evenflow_instance_share",
        "Partitions that it should own: its fair share.",
        [(labels, row.share) for labels, row in members],
    )
    yield Family(
        "evenflow_instance_silent_seconds",
        "Seconds since its last new heartbeat, as observed.",
        [(labels, row.silent_s) for labels, row in members],
    )
    yield Family(
        "evenflow_instance_busy_ratio",
        "Mean number of its handlers that run at the same time.",
        [(labels, row.load) for labels, row in members],
    )
    yield Family(
        "evenflow_instance_status",
        "1 for the current status.",
        [(labels | {"status": row.status}, 1.0) for labels, row in members],
    )
    yield Family(
        "evenflow_instance_request_units_total",
        "Units that services have charged it since it started, by kind of operation.",
        [
            (labels | {"operation": kind}, units)
            for labels, row in members
            for kind, units in (row.charges or {}).items()
        ],
        kind="counter",
    )


def _of(snapshot: GroupSnapshot) -> Labels:
    return {"namespace": snapshot.group.namespace, "hub": snapshot.group.hub, "group": snapshot.group.name}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
