"""A survey made readable: the ownership table, the members and the last moves, as lines and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from evenflow.cli.output import columns, json_time, printable, show_time
from evenflow.cli.quantities import show_duration
from evenflow.model import EVERYTHING, show_epoch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Move, Owner
    from evenflow.observe.ownership import MemberRow, PartitionRow
    from evenflow.observe.survey import Survey

PARTITION_HEADERS = (
    "PARTITION", "OWNER", "EPOCH", "OFFSET", "SEQUENCE", "NEWEST", "LAG", "AGE", "STATUS", "REASON",
)  # fmt: skip
LONG_SILENT = 1.5
"""Times its time-to-live: wall clocks differ a little."""

MEMBER_HEADERS = ("MEMBER", "STATUS", "PARTITIONS", "WEIGHT", "LAST-BEAT", "HOST", "PID", "VERSION", "STARTED")
MOVE_HEADERS = ("WHEN", "PARTITION", "FROM", "TO", "EPOCH", "REASON")
NUMBERS = ("EPOCH", "OFFSET", "SEQUENCE", "NEWEST", "LAG", "AGE", "PARTITIONS", "WEIGHT", "LAST-BEAT", "PID")


class Picture:
    """A survey made readable at one moment: as JSON, and as lines."""

    def __init__(self, found: Survey, silences: dict[Owner, float | None], wall_s: float) -> None:
        self._found = found
        self._wall_s = wall_s
        self.problems = found.problems
        known = silences | _long_silent(found, silences, wall_s)
        self.partitions = found.partition_rows(known)
        self.members = found.member_rows(known)

    def as_facts(self) -> dict[str, Any]:
        found = self._found
        return {
            "namespace": found.group.namespace,
            "hub": found.group.hub,
            "group": found.group.name,
            "paused": EVERYTHING in found.ledger.state.pauses if found.ledger else None,
            "partitions": [_timed(row, "changed_at", "checkpoint_at") for row in self.partitions],
            "members": [_timed(row, "started_at", "beat_at") for row in self.members],
            "moves": [_timed(move, "at") for move in found.moves],
            "problems": list(found.problems),
        }

    def as_lines(self) -> list[str]:
        group = self._found.group
        lines = [f"NAMESPACE  {group.namespace or '-'}", f"HUB        {group.hub}", f"GROUP      {group.name}", ""]
        state = self._found.ledger.state if self._found.ledger else None
        pause = state.pause_of(EVERYTHING) if state is not None else None
        if pause is not None:
            lines.insert(3, f"PAUSED     by {pause.by or '-'}: {pause.why or '-'}")
        lines += columns(PARTITION_HEADERS, [self._partition(row) for row in self.partitions], NUMBERS)
        if self.members:
            lines += ["", *columns(MEMBER_HEADERS, [self._member(row) for row in self.members], NUMBERS)]
        if self._found.moves:
            lines += ["", *columns(MOVE_HEADERS, [self._move(move) for move in self._found.moves], NUMBERS)]
        return lines

    def _partition(self, row: PartitionRow) -> Sequence[object]:
        epoch = None if row.epoch is None else show_epoch(row.epoch)
        place = (row.offset, row.sequence, row.newest, row.lag)
        reason = None if row.reason is None else printable(row.reason)
        return row.partition, row.owner, epoch, *place, self._age(row.changed_at), row.status, reason

    def _member(self, row: MemberRow) -> Sequence[object]:
        beat = self._age(row.beat_at) if row.silent_s is None else show_duration(row.silent_s)
        origin = (row.host, row.pid or None, row.version, show_time(row.started_at or None))
        return row.id, row.status, row.partitions, f"{row.weight:g}", beat, *origin

    def _move(self, move: Move) -> Sequence[object]:
        when = show_time(move.at)
        return when, move.partition, move.before, move.after, show_epoch(move.epoch), printable(move.reason)

    def _age(self, at: float | None) -> str | None:
        return None if not at else show_duration(self._wall_s - at)


def _long_silent(found: Survey, silences: Mapping[Owner, float | None], wall_s: float) -> dict[Owner, float]:
    """Who has been silent for much longer than it may, by the wall clocks of the store and of this machine.

    That decides nothing, and is better than calling it fine because nobody has watched for long enough.
    """
    members = found.ledger.members if found.ledger is not None else ()
    ages = [(member, wall_s - member.beat_at) for member in members if member.beat_at]
    return {
        member.owner: age_s
        for member, age_s in ages
        if silences.get(member.owner) is None and age_s >= LONG_SILENT * member.ttl_s
    }


def _timed(record: Any, *times: str) -> dict[str, Any]:
    """A record for JSON: an unknown time is null."""
    return asdict(record) | {name: json_time(getattr(record, name) or None) for name in times}
