"""`evenflow sim`: runs the real runtime in simulated worlds with faults, and checks all invariants."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evenflow.cli.output import print_json, say
from evenflow.testing.simulated import draw
from evenflow.testing.simulated.run import Found, run_seed, run_seeds


def sim(
    seed: Annotated[int | None, typer.Option(help="Replay the world of this seed, step by step.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of worlds to run.")] = 1000,
    start: Annotated[int, typer.Option("--from", min=0, help="First seed.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of worker processes.", show_default="one per core")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test the runtime in simulated worlds with crashes, stalls, lost replies and more, each generated from a seed.

    Every invariant is checked at every step. If one is violated, the exit code is 1, and its seed replays it.
    """
    if seed is not None:
        _replay(seed, as_json=as_json)
        return
    started_s = perf_counter()
    found = _run_with_progress(range(start, start + seeds), workers)
    _report(found, seeds, perf_counter() - started_s, as_json=as_json)
    if found:
        raise typer.Exit(1)


def _replay(seed: int, *, as_json: bool) -> None:
    """Print each step, or only the result with `--json`."""
    logging.disable(logging.CRITICAL)
    started_s = perf_counter()
    if not as_json:
        typer.echo(f"{draw(seed)}\n")
    found = run_seed(seed, None if as_json else typer.echo)
    if as_json:
        _report([found] if found else [], 1, perf_counter() - started_s, as_json=True)
    elif found is None:
        typer.echo(f"\nseed {seed}: no invariant violated")
    else:
        say(f"seed {seed}: {found.violation}")
    if found is not None:
        raise typer.Exit(1)


def _run_with_progress(seeds: range, workers: int | None) -> list[Found]:
    found: list[Found] = []
    columns = (TextColumn("worlds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("worlds", total=len(seeds))
        for chunk in run_seeds(seeds, workers):
            progress.advance(task, len(chunk))
            for bad in filter(None, chunk):
                found.append(bad)
                say(f"seed {bad.seed}: {bad.violation}\n  replay with: {bad.command}")
    return found


def _report(found: list[Found], seeds: int, seconds: float, *, as_json: bool) -> None:
    if as_json:
        broken = [{"seed": bad.seed, "violation": bad.violation, "replay": bad.command} for bad in found]
        print_json({"worlds": seeds, "seconds": round(seconds, 1), "violations": broken})
    else:
        verdict = "no invariant violated" if not found else f"an invariant was violated in {len(found)}"
        typer.echo(f"{seeds:,} worlds in {seconds:.0f} s: {verdict}")
