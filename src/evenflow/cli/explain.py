"""`evenflow explain PARTITION`: why a partition has its owner, and what the next plan would do with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.output import print_json, printable, say
from evenflow.cli.selection import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, require_group, select_group
from evenflow.cli.views import finding_facts, findings_lines, move_lines, partition_facts, timed
from evenflow.cli.watching import one_snapshot
from evenflow.operate.inspect.explanation import Explanation
from evenflow.operate.inspect.explanation import explain as explain_partition

if TYPE_CHECKING:
    from evenflow.model import Group

MOVES_READ = 1_000
"""The store keeps the moves of all partitions in one list; those of one partition are picked from it."""


def explain(
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="Partition id.", show_default=False)],
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    moves: Annotated[int, typer.Option(min=0, help="Number of recent moves to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Explain why a partition has its owner, show its recent moves, and what the next plan would do with it."""
    chosen = require_group(select_group(store, source, group, profile))
    look = asyncio.run(one_snapshot(chosen, moves=MOVES_READ, actions=0))
    explanation = explain_partition(look, partition)
    for problem in look.found.problems:
        say(f"warning: {problem}")
    if as_json:
        print_json(_facts(look.group, explanation, moves))
    else:
        typer.echo("\n".join(_lines(look.group, explanation, moves)))


def _facts(group: Group, explanation: Explanation, moves: int) -> dict[str, Any]:
    return {
        "namespace": group.namespace,
        "hub": group.hub,
        "group": group.name,
        **partition_facts(explanation.row),
        "where": explanation.where,
        "progress": explanation.progress,
        "findings": [finding_facts(finding) for finding in explanation.findings],
        "moves": [timed(move, "at") for move in explanation.moves[:moves]],
        "next": explanation.next,
        "next_owner": explanation.next_owner,
    }


def _lines(group: Group, explanation: Explanation, moves: int) -> list[str]:
    lines = [
        f"Partition {explanation.row.partition} of {group}: {explanation.row.status}",
        "",
        explanation.where,
        explanation.progress,
    ]
    return [
        *map(printable, lines),
        *findings_lines(explanation.findings),
        *move_lines(explanation.moves[:moves]),
        "",
        printable(explanation.next),
    ]
