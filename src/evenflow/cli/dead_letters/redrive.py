"""`evenflow dead-letters redrive`: requests a retry of dead letters and shows the progress of their owners."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evenflow.cli.confirm import Why, Yes, operator
from evenflow.cli.dead_letters.confirm import SHOWN, confirm_change, count, require_filter, select_open
from evenflow.cli.dead_letters.listing import group_facts
from evenflow.cli.dead_letters.options import (
    ErrorText,
    Everything,
    Ids,
    Keys,
    Partitions,
    SourceUrl,
    States,
    choice,
    opened,
    whose,
)
from evenflow.cli.output import print_json, say
from evenflow.cli.selection import AsJson, DeadLettersUrl, GroupName, ProfileName, StoreUrl
from evenflow.operate.dead_letters.redrive import (
    DeadLetterFilter,
    Redrive,
    RedriveProgress,
    Requester,
    overtaking,
    read_filed,
)
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from evenflow.cli.profiles import Profile
    from evenflow.core.filed import Filed
    from evenflow.model import Group

QUIET_S = 30.0
"""After this long without an answer, the command says why that may be."""


def redrive(
    ids: Ids = None,
    dead_letters: DeadLettersUrl = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    partition: Partitions = None,
    key: Keys = None,
    error: ErrorText = "",
    state: States = None,
    everything: Everything = False,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Request at most N dead letters per second.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all are handled.")] = True,
    why: Why = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retry dead letters: this group's handler gets them again; other groups do not.

    The owners of the partitions handle them in order. If you interrupt this command, requested dead letters are still
    redriven; run it again to request the rest: none is requested twice. Exit code 0 if all were handled.
    """
    wanted = choice(ids, partition, key, error, state)
    require_filter(wanted, everything=everything)
    chosen = whose(dead_letters, store, source, group, profile, needs_store=True)
    session = _RedriveSession(Requester(operator(why).by, why), rate, wait=wait, as_json=as_json)
    try:
        asyncio.run(session.run(chosen, wanted, yes=yes))
    except KeyboardInterrupt:
        session.interrupted = True
    session.report()


class _RedriveSession:
    """One run of the command: its options, and what it has seen so far."""

    def __init__(self, person: Requester, rate: float | None, *, wait: bool, as_json: bool) -> None:
        self._person = person
        self._rate = rate
        self._wait = wait
        self._as_json = as_json
        self._group: Group | None = None
        self._selected: list[Filed] = []
        self._errors: dict[str, str] = {}
        self._tally = RedriveProgress()
        self._redrive: Redrive | None = None
        self._warned = False
        self._bar: Progress | None = None
        self.interrupted = False

    async def run(self, chosen: Profile, wanted: DeadLetterFilter, *, yes: bool) -> None:
        async with opened(chosen) as at:
            operated, self._group = at.operated, at.group
            filed = await read_filed(at.dead_letters, at.group)
            self._selected = select_open(filed, wanted)
            if not self._selected:
                return
            for one in overtaking(filed, self._selected):
                say(
                    f"warning: {one.dead_letter.id} follows an earlier dead letter of the same key, which is not"
                    " selected: it will be handled out of order"
                )
            confirm_change(f"Redrive {count(len(self._selected))} of group {at.group}?", self._selected, yes=yes)
            self._redrive = Redrive(at.dead_letters, operated, at.group, system_clock(), self._person)
            with self._progress():
                await self._redrive.run(self._selected, rate=self._rate, wait=self._wait, report=self._update)
            if self._tally.failed:
                filed = await read_filed(at.dead_letters, at.group)
                self._errors = {one.dead_letter.id: one.error for one in filed}

    def report(self) -> None:
        tally = self._tally
        if self._as_json:
            print_json(self._facts())
        elif self._selected:
            self._say_results()
        elif not self.interrupted:
            say("no dead letters to redrive")
        left = tally.failed or (tally.waiting and self._wait)
        if left or self.interrupted:
            raise typer.Exit(1)

    def _progress(self) -> AbstractContextManager[object]:
        if self._as_json:
            return nullcontext()
        progress = (TextColumn("redriving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*progress, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
        self._bar.add_task("", total=len(self._selected), note="")
        return self._bar

    def _update(self, tally: RedriveProgress) -> None:
        self._tally = tally
        if self._bar is not None:
            note = tally.problem or (f"{len(tally.failed)} failed" if tally.failed else "")
            self._bar.update(self._bar.task_ids[0], completed=tally.answered, note=note)
        if tally.waiting and not tally.unattended and tally.quiet_s >= QUIET_S and not self._warned:
            self._warned = True
            say(
                f"warning: no answer for {QUIET_S:.0f} s from live owners. They may be busy, or they use another"
                " dead-letter target: check dead_letter= of their processors. Ctrl-C ends the wait; the requests stay."
            )

    def _say_results(self) -> None:
        tally = self._tally
        for name in tally.failed[:SHOWN]:
            say(f"{name} failed again: {self._errors.get(name, '-')}")
        if len(tally.failed) > SHOWN:
            say(f"... and {len(tally.failed) - SHOWN} more; `evenflow dead-letters list` shows all")
        for partition, why in tally.unattended.items():
            say(f"partition {partition}: {why}")
        parts = [f"{len(tally.redriven)} redriven", f"{len(tally.failed)} failed"]
        parts += [f"{len(tally.dropped)} dropped in the meantime"] if tally.dropped else []
        parts += [f"{len(tally.waiting)} requested"] if tally.waiting else []
        say(", ".join(parts))
        if tally.unattended:
            say("requested; they will be handled when an instance runs")
        elif self.interrupted:
            say("interrupted: the requests stay; run it again to request the rest and to see the results")

    def _facts(self) -> dict[str, Any]:
        tally = self._tally
        return {
            **(group_facts(self._group) if self._group is not None else {}),
            "asked": self._redrive.asked if self._redrive is not None else 0,
            "redriven": list(tally.redriven),
            "failed": [{"dead_letter": name, "error": self._errors.get(name)} for name in tally.failed],
            "dropped": list(tally.dropped),
            "waiting": list(tally.waiting),
            "unattended": dict(tally.unattended),
            "interrupted": self.interrupted,
        }
