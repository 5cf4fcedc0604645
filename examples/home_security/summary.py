"""The result of a demo, and its summary in text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from examples.home_security.places import ALERTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from examples.home_security.accounts import HandledCounts
    from examples.home_security.truth import Verdict
    from examples.home_security.waiting import Waiting


SHOWN_MOST = 5


class Summary(Struct, frozen=True, kw_only=True):
    """The result of a demo."""

    sent: int
    verdict: Verdict
    tallies: Mapping[str, HandledCounts]
    moves: Mapping[str, Mapping[str, int]]
    """For each group, how many by kind."""
    delays_s: Mapping[str, tuple[float, float]]
    """For each group, from sensor to blob: the median, and the 99th percentile."""
    waiting: Mapping[str, Waiting] = {}
    """For each group, what is stored and not handled."""
    died: tuple[str, ...] = ()
    """Processes that died unexpectedly, each with the last line of its log."""

    @property
    def is_fine(self) -> bool:
        nothing_lost = not any(tally.lost or tally.twice for tally in self.tallies.values())
        all_handled = all(one.is_fine for one in self.waiting.values())
        return self._is_right and nothing_lost and all_handled and not self.died

    @property
    def _is_right(self) -> bool:
        """Alerts that a seek has passed over were not wanted."""
        verdict, tally = self.verdict, self.tallies.get(ALERTS)
        if tally is not None and tally.passed_over:
            verdict = replace(verdict, alerts_wrong=0)
        return verdict.is_fine


def summary_lines(summary: Summary) -> list[str]:
    verdict = summary.verdict
    lines = [
        f"events sent           {summary.sent:>12,}",
        *([f"injected              {verdict.injected:>12,}   by hand, in addition"] * bool(verdict.injected)),
        f"aggregated            {verdict.counted:>12,}   {_checked(summary)}",
        f"lost                  {verdict.lost:>12,}",
        f"counted twice         {verdict.twice:>12,}",
        f"alerts                {verdict.alerts:>12,}   {verdict.alerts_wrong} of them missing or too many",
    ]
    if verdict.wrong:
        lines.append(f"minutes that are wrong{verdict.wrong:>12,}")
    if verdict.damaged:
        lines.append(f"damaged blobs         {len(verdict.damaged):>12,}   {_some(verdict.damaged)}")
    for group in summary.tallies:
        lines += _group_lines(summary, group)
    return lines + [f"died by itself: {process}" for process in summary.died]


def _sought_lines(tally: HandledCounts) -> list[str]:
    """What operators requested with seeks; nothing when there were none."""
    return [
        f"  {label:<20}{count:>12,}   {why}"
        for label, count, why in (
            ("again, by a seek", tally.sought, "an operator requested them again"),
            ("passed over", tally.passed_over, "by a seek: an operator did not want them"),
        )
        if count
    ]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_MOST]) + (" and more" if len(names) > SHOWN_MOST else "")


def _checked(summary: Summary) -> str:
    """What was compared: all, or of so many events only some homes'."""
    verdict = summary.verdict
    share = "" if verdict.expected == summary.sent + verdict.injected else f"of {verdict.expected:,}: "
    return f"{share}{verdict.homes:,} homes compared, minute by minute"


def _waiting_lines(waiting: Waiting | None) -> list[str]:
    if waiting is None or not waiting.events:
        return []
    cause = waiting.cause.what if waiting.cause is not None else "no instance handled them in time"
    return [f"  waiting             {waiting.events:>12,}   {cause}; they are stored, not lost"]


def _group_lines(summary: Summary, group: str) -> list[str]:
    tally, moves, (half_s, most_s) = summary.tallies[group], summary.moves[group], summary.delays_s[group]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(moves.items()))
    return [
        group,
        f"  lost                {tally.lost:>12,}",
        *_waiting_lines(summary.waiting.get(group)),
        f"  handled twice       {tally.twice:>12,}   on planned moves",
        f"  handled again       {tally.again:>12,}   after a kill or a stall: since the last checkpoint",
        *_sought_lines(tally),
        f"  moves               {sum(moves.values()):>12,}   {kinds}",
        f"  sensor to blob      {half_s:>10.2f} s   half of them; 99 of 100 within {most_s:.2f} s"
        if most_s
        else "  sensor to blob                 -   there was none",
    ]
