"""What a demo came to, and how that is told."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from evenflow.cli.demo.accounts import Tally
from examples.home_security.truth import Verdict


class Summary(Struct, frozen=True, kw_only=True):
    """What it came to."""

    sent: int
    verdict: Verdict
    tallies: Mapping[str, Tally]
    moves: Mapping[str, Mapping[str, int]]
    """For each group, how many by kind."""
    delays_s: Mapping[str, tuple[float, float]]
    """For each group, from sensor to blob: the median, and the 99th percentile."""
    died: tuple[str, ...] = ()
    """Processes that died by themselves, each with its last words."""

    @property
    def is_fine(self) -> bool:
        nothing_lost = not any(tally.lost or tally.twice for tally in self.tallies.values())
        return self.verdict.is_fine and nothing_lost and not self.died


def summary_lines(summary: Summary) -> list[str]:
    verdict = summary.verdict
    lines = [
        f"events sent           {summary.sent:>12,}",
        f"aggregated            {verdict.counted:>12,}   of {verdict.expected:,}: {verdict.homes:,} homes, minute by minute",
        f"lost                  {verdict.lost:>12,}",
        f"counted twice         {verdict.twice:>12,}",
        f"alerts                {verdict.alerts:>12,}   {verdict.alerts_wrong} of them missing or too many",
    ]
    for group, tally in summary.tallies.items():
        moves = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.moves[group].items()))
        median_s, most_s = summary.delays_s[group]
        lines += [
            f"{group}",
            f"  lost                {tally.lost:>12,}",
            f"  handled twice       {tally.twice:>12,}   on planned moves",
            f"  handled again       {tally.again:>12,}   after a kill or a stall: since the last checkpoint",
            f"  moves               {sum(summary.moves[group].values()):>12,}   {moves}",
            f"  sensor to blob      {median_s:>11.2f}s   half of them; 99 of 100 within {most_s:.2f} s",
        ]
    if verdict.wrong:
        lines.append(f"minutes that are wrong{verdict.wrong:>12,}")
    return lines + [f"died by itself: {process}" for process in summary.died]
