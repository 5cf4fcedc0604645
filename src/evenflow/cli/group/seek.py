"""`evenflow group seek`: moves the checkpoints of a group, running or not, and shows them before and after."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.confirm import Partitions, Why, Yes, carry_out, confirm, operator, say_safely
from evenflow.cli.group.partitions import name_partitions, take_snapshot
from evenflow.cli.output import columns, print_json, say, show_time
from evenflow.cli.quantities import parse_past
from evenflow.cli.selection import (
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    opened,
    require_group,
    require_source,
    select_group,
)
from evenflow.model import Position
from evenflow.operate.steer import FromGroup, Shift, plan_seek
from evenflow.operate.steer import seek as seek_group
from evenflow.runtime.clock import system_clock
from evenflow.text import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.profiles import Profile
    from evenflow.cli.selection import OpenedGroup
    from evenflow.operate.steer import Operator, PartitionSeek, Target

HEADERS = ("PARTITION", "FROM", "TO", "LAG-BEFORE", "LAG-AFTER")


def seek(
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest event that is kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: skip all current events.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="To the first event enqueued at this time or later: 2026-02-03T04:05Z (local time without a zone), or"
            " a time ago such as 90m, 2h or 1d.",
        ),
    ] = None,
    to_offset: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="To after the event at this offset, as in the column OFFSET.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Forward by N events; backward if N is negative.")
    ] = None,
    from_group: Annotated[
        str | None, typer.Option(metavar="NAME", help="To the checkpoints of this group of the same hub.")
    ] = None,
    partition: Partitions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Move the checkpoints of a group. A running group is paused for this, and resumed."""
    to = target(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_datetime=to_datetime,
        to_offset=to_offset,
        shift_by=shift_by,
        from_group=from_group,
    )
    chosen = require_source(require_group(select_group(store, source, group, profile)), "it resolves the new positions")
    carry_out(_seek(chosen, to, partition, operator(why), dry_run=dry_run, yes=yes, as_json=as_json))


def target(
    *,
    to_earliest: bool = False,
    to_latest: bool = False,
    to_datetime: str | None = None,
    to_offset: str | None = None,
    shift_by: int | None = None,
    from_group: str | None = None,
) -> Target:
    """The one that was given."""
    given: list[Target] = ["earliest"] if to_earliest else []
    given += ["latest"] if to_latest else []
    if to_datetime is not None:
        moment = parse_past(to_datetime, system_clock().wall())
        if moment is None:
            raise typer.BadParameter(
                f"{to_datetime!r} is not a time; write 2026-02-03T04:05Z, or a time ago such as 90m.",
                param_hint="--to-datetime",
            )
        given.append(moment)
    if to_offset is not None:
        given.append(Position(to_offset))  # the source resolves its sequence
    given += [Shift(shift_by)] if shift_by is not None else []
    given += [FromGroup(from_group)] if from_group is not None else []
    if len(given) != 1:
        raise typer.BadParameter(
            "pass exactly one of --to-earliest, --to-latest, --to-datetime, --to-offset, --shift-by, --from-group."
        )
    return given[0]


async def _seek(
    chosen: Profile,
    to: Target,
    partitions: Sequence[str] | None,
    by: Operator,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    async with opened(chosen) as at:
        assert at.source is not None
        seekings = await plan_seek(at.store, at.source, at.group, to, partitions)
        _show(seekings, as_json=as_json)
        for line in remarks(to, seekings):
            say(line)
        what = f"{count_of(len(seekings), 'partition')} of {at.group}"
        if dry_run:
            say(f"would move {what}; nothing was changed")
        else:
            confirm(await _changes(at, seekings), yes=yes)
            planned = seekings
            seekings = await seek_group(at.store, at.source, at.group, planned, by, system_clock(), report=say_safely)
            say(f"moved {what}")
            if seekings != planned:
                say("the group advanced in the meantime; final positions:")
                _show(seekings, as_json=as_json)
    if as_json:
        named = {"namespace": at.group.namespace, "hub": at.group.hub, "group": at.group.name}
        then = show_time(to) if isinstance(to, datetime) else None
        rows = [_facts(seeking) for seeking in seekings]
        print_json({"done": not dry_run, **named, "to_datetime": then, "partitions": rows})


def remarks(to: Target, seekings: Sequence[PartitionSeek]) -> list[str]:
    """Notes below the table: the resolved time, and results that an operator may not expect."""
    lines = [seeking.note for seeking in seekings if seeking.note]
    if not isinstance(to, datetime):
        return lines
    lines.append(f"to the first event enqueued at {show_time(to)} or later")
    beyond = [seeking for seeking in seekings if seeking.lag_after == 0]
    skipping = [seeking.partition for seeking in beyond if seeking.lag_before != 0]
    if beyond and len(beyond) == len(seekings):
        lines.append("no event was enqueued since then: this skips all events")
    elif skipping:
        lines.append(f"no event was enqueued since then in {name_partitions(skipping)}: this skips all events there")
    return lines


async def _changes(at: OpenedGroup, seekings: Sequence[PartitionSeek]) -> list[str]:
    """A group with members may be running and advance until it is paused, so positions may differ in the end."""
    lines = [f"This moves the checkpoints of {count_of(len(seekings), 'partition')} of {at.group}."]
    if (await take_snapshot(at)).members and any(not isinstance(one.to, Position) for one in seekings):
        lines.append(
            "If the group runs, it is paused briefly. Positions are resolved then; the final ones are shown afterwards."
        )
    return lines


def _show(seekings: Sequence[PartitionSeek], *, as_json: bool) -> None:
    """Print the table: to stdout, or to stderr with `--json`, which prints its own result at the end."""
    text = "\n".join(columns(HEADERS, [_row(seeking) for seeking in seekings], HEADERS[1:]))
    if as_json:
        say(text)
    else:
        print(text, flush=True)


def _row(seeking: PartitionSeek) -> Sequence[object]:
    before = seeking.before.offset if seeking.before is not None else None
    return seeking.partition, before, seeking.after.offset, seeking.lag_before, seeking.lag_after


def _facts(seeking: PartitionSeek) -> dict[str, Any]:
    before = seeking.before.offset if seeking.before is not None else None
    lags = {"lag_before": seeking.lag_before, "lag_after": seeking.lag_after}
    note = {"note": seeking.note or None}
    return {"partition": seeking.partition, "from": before, "to": seeking.after.offset, **lags, **note}
