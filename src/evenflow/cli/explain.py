"""`evenflow explain PARTITION`: why it is where it is, and what the next plan would do with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.looking import one_look
from evenflow.cli.output import print_json, printable, say
from evenflow.cli.picture import finding_facts, findings_lines, move_lines, partition_facts, timed
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, which, with_group
from evenflow.operate.inspect.explanation import Explanation
from evenflow.operate.inspect.explanation import explain as explain_partition

if TYPE_CHECKING:
    from evenflow.model import Group

MOVES_READ = 1_000
"""The moves of one partition stand among those of all."""


def explain(
    partition: Annotated[str, typer.Argument(metavar="PARTITION", show_default=False)],
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    moves: Annotated[int, typer.Option(min=0, help="How many of its last moves to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Tell why a partition is where it is, its last moves, and what the next plan would do with it."""
    chosen = with_group(which(store, source, group, profile))
    look = asyncio.run(one_look(chosen, moves=MOVES_READ, actions=0))
    told = explain_partition(look, partition)
    for problem in look.found.problems:
        say(f"warning: {problem}")
    if as_json:
        print_json(_facts(look.group, told, moves))
    else:
        typer.echo("\n".join(_lines(look.group, told, moves)))


def _facts(group: Group, told: Explanation, moves: int) -> dict[str, Any]:
    return {
        "namespace": group.namespace,
        "hub": group.hub,
        "group": group.name,
        **partition_facts(told.row),
        "where": told.where,
        "progress": told.progress,
        "findings": [finding_facts(finding) for finding in told.findings],
        "moves": [timed(move, "at") for move in told.moves[:moves]],
        "next": told.next,
        "next_owner": told.next_owner,
    }


def _lines(group: Group, told: Explanation, moves: int) -> list[str]:
    lines = [f"Partition {told.row.partition} of {group}: {told.row.status}", "", told.where, told.progress]
    return [
        *map(printable, lines),
        *findings_lines(told.findings),
        *move_lines(told.moves[:moves]),
        "",
        printable(told.next),
    ]
