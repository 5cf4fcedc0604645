"""One frame of `evenflow top`: it fits the terminal, and the worst partitions are never left out."""

from __future__ import annotations

from evenflow.cli.top_frame import fitting, frame, rate
from evenflow.model import BEGINNING, Bounds, Checkpoint, Cursor, Group, Lease, Ledger, Member, Owner, Position
from evenflow.operate.inspect.survey import Survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher

ADA = Owner("ada", 1)


def survey(ordinal: int, partitions: int = 30) -> Survey:
    names = [str(number) for number in range(partitions)]
    ledger = Ledger(
        cursor=Cursor("x", 0, 1),
        me=None,
        whole=True,
        leases=tuple(
            Lease(partition=name, owner=None if name == "29" else ADA, epoch=1, revision=1, ttl_s=8.0) for name in names
        ),
        members=(Member(id="ada", nonce="a", incarnation=1, mark=ordinal, ttl_s=8.0),),
    )
    return Survey(
        group=Group("local", "homes", "alerts"),
        ledger=ledger,
        checkpoints=[
            Checkpoint(partition=name, epoch=1, position=Position(str(ordinal), ordinal), ordinal=ordinal)
            for name in names
        ],
        moves=(),
        partitions=names,
        bounds={name: Bounds(BEGINNING, Position("1000", 1000)) for name in names},
    )


def two_snapshots() -> tuple[GroupSnapshot, GroupSnapshot]:
    watcher = GroupWatcher()
    return watcher.observe(survey(100), 0.0, 1_000.0), watcher.observe(survey(300), 2.0, 1_002.0)


def test_findings_come_first_and_rates_from_the_second_snapshot_on() -> None:
    first, second = ([line.plain for line in frame(look)] for look in two_snapshots())
    assert "lag 27,000   behind -   catch-up -" in first[1]
    assert "events/s 3,000   lag 21,000 ↓" in second[1]
    assert "catch-up 7.0s" in second[1]
    assert second[3].startswith("! unowned: partition 29 has no owner")
    head = next(line for line in second if line.startswith("PARTITION"))
    assert head.split() == [
        "PARTITION", "OWNER", "STATUS", "LAG", "TREND", "EVENTS/S", "LAG-TIME", "CATCH-UP", "EPOCH",
    ]  # fmt: skip
    assert second[second.index(head) + 1].split() == ["0", "ada", "ok", "700", "↓", "100", "-", "7.0s", "1"]
    assert second[-1].split()[:5] == ["ada", "alive", "29", "30", "2,900"]


def test_partitions_that_do_not_fit_are_counted_and_the_worst_are_shown() -> None:
    look = two_snapshots()[1]
    lines = [line.plain for line in frame(look, 20)]
    assert len(lines) <= 20
    assert any(line.startswith("29 ") and "unowned" in line for line in lines)
    assert any(line.startswith("and ") and line.endswith(" more partitions") for line in lines)
    assert any(line.startswith("ada ") for line in lines)
    assert fitting(look.partitions, 30) == (list(look.partitions), 0)
    assert [row.partition for row in fitting(look.partitions, 2)[0]] == ["0", "29"]


def test_high_rates_have_no_decimals_and_unknown_is_not_zero() -> None:
    assert [rate(None), rate(0.0), rate(0.25), rate(12_345.6)] == [None, "0", "0.2", "12,346"]
