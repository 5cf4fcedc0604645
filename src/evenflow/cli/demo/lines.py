"""The demo where there is no terminal: a line now and then, and the summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.operate.inspect.move_groups import group_moves
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.demo.accounts import Tally
    from evenflow.cli.demo.scene import Scene
    from evenflow.cli.demo.session import Summary
    from evenflow.model import Move
    from evenflow.operate.inspect.move_groups import MoveGroup


def progress_line(scene: Scene) -> str:
    owners = ", ".join(f"{sight.name} has {sight.partitions}" for sight in scene.consumers)
    return (
        f"sent {scene.sent:,}  handled {scene.tally.handled:,}  lag {scene.lag:,}"
        f"  {scene.handled_per_s:,.0f}/s  {owners}"
    )


def move_lines(moves: Sequence[Move]) -> list[str]:
    """Moves, the newest first, as lines, the newest last."""
    return [_move_line(move) for move in reversed(group_moves(moves))]


def summary_lines(summary: Summary) -> list[str]:
    tally = summary.tally
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.moves.items()))
    lines = [
        f"events sent           {summary.sent:>12,}",
        f"handled               {tally.handled:>12,}",
        f"lost                  {tally.lost:>12,}",
        f"handled twice         {tally.twice:>12,}   on planned moves",
        f"handled again         {tally.again:>12,}   after a kill: since the last checkpoint",
        f"moves                 {sum(summary.moves.values()):>12,}   {kinds}",
    ]
    return lines + sought_lines(tally) + [f"died by itself: {consumer}" for consumer in summary.died]


def sought_lines(tally: Tally) -> list[str]:
    """What somebody wanted; nothing when nobody did."""
    return [
        f"{label:<22}{count:>12,}   {why}"
        for label, count, why in (
            ("again, by a seek", tally.sought, "somebody wanted them again"),
            ("passed over", tally.passed_over, "by a seek: somebody wanted none of them"),
        )
        if count
    ]


def _move_line(move: MoveGroup) -> str:
    names = ", ".join(sorted(move.partitions, key=natural))
    return f"  {move.before or 'nobody'} -> {move.after or 'nobody'}: {names} ({move.reason})"
