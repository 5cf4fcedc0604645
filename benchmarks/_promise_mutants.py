"""The mutation score: small faults in the protocol, each of which a test or a simulated world must notice."""

from __future__ import annotations

from benchmarks.harness import Result, at_least, figure, say
from tests.mutants.hunt import Tried, hunt, mutants

LEAST = 60


def measure() -> Result:
    score = hunt(mutants(), cached=False, say=_say)
    return Result(
        [
            figure("mutants: tried", [len(score.tried)], "mutants"),
            figure("mutants: that change no behaviour", [len(score.equivalent)], "mutants"),
            figure("mutants: processor time", [score.cpu_s], "s"),
        ],
        [
            at_least("mutants: tried", len(score.tried), LEAST),
            at_least("mutants: share that is caught", score.share, 1.0),
        ],
        [
            *(f"fails without any mutant: {name}" for name in score.broken),
            *(f"survived: {mutant.name} ({mutant.what})" for mutant in score.survivors),
        ],
    )


def _say(tried: Tried) -> None:
    if tried.survived:
        say(f"survived: {tried.mutant.name}")
