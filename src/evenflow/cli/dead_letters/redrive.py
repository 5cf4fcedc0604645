"""`evenflow dead-letters redrive`: the owners of their partitions handle the dead letters; this asks, and watches."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evenflow.cli.asking import Why, Yes, who
from evenflow.cli.dead_letters.asking import SHOWN, ask, check_said, count, open_ones
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
from evenflow.cli.which import AsJson, DeadLettersUrl, GroupName, ProfileName, StoreUrl
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
"""So long without an answer, and it is said why that may be."""


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
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="N", help="Ask for so many a second.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until they are handled.")] = True,
    why: Why = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have dead letters handled again, by this group's handler alone.

    The owners of their partitions do it, in the order of the dead letters. Interrupted, what was asked for goes on; run
    again, it asks nothing twice. The exit code is 0 when all went well.
    """
    wanted = choice(ids, partition, key, error, state)
    check_said(wanted, everything=everything)
    chosen = whose(dead_letters, store, source, group, profile, steers=True)
    session = _Session(Requester(who(why).by, why), rate, wait=wait, as_json=as_json)
    try:
        asyncio.run(session.run(chosen, wanted, yes=yes))
    except KeyboardInterrupt:
        session.interrupted = True
    session.report()


class _Session:
    """One run of the command: what it was told, and what it has seen."""

    def __init__(self, person: Requester, rate: float | None, *, wait: bool, as_json: bool) -> None:
        self._person = person
        self._rate = rate
        self._wait = wait
        self._as_json = as_json
        self._group: Group | None = None
        self._meant: list[Filed] = []
        self._errors: dict[str, str] = {}
        self._tally = RedriveProgress()
        self._asking: Redrive | None = None
        self._warned = False
        self._bar: Progress | None = None
        self.interrupted = False

    async def run(self, chosen: Profile, wanted: DeadLetterFilter, *, yes: bool) -> None:
        async with opened(chosen) as desk:
            operated, self._group = desk.operated, desk.group
            filed = await read_filed(desk.dead_letters, desk.group)
            self._meant = open_ones(filed, wanted)
            if not self._meant:
                return
            for one in overtaking(filed, self._meant):
                say(
                    f"warning: {one.dead_letter.id} follows an earlier dead letter of its key, which is not among these"
                )
            ask(f"Have {count(len(self._meant))} of group {desk.group} handled again?", self._meant, yes=yes)
            self._asking = Redrive(desk.dead_letters, operated, desk.group, system_clock(), self._person)
            with self._progress():
                await self._asking.run(self._meant, rate=self._rate, wait=self._wait, report=self._told)
            if self._tally.failed:
                filed = await read_filed(desk.dead_letters, desk.group)
                self._errors = {one.dead_letter.id: one.error for one in filed}

    def report(self) -> None:
        tally = self._tally
        if self._as_json:
            print_json(self._facts())
        elif self._meant:
            self._say_what_became()
        elif not self.interrupted:
            say("no dead letters to handle again")
        left = tally.failed or (tally.waiting and self._wait)
        if left or self.interrupted:
            raise typer.Exit(1)

    def _progress(self) -> AbstractContextManager[object]:
        if self._as_json:
            return nullcontext()
        looks = (TextColumn("redriving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*looks, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
        self._bar.add_task("", total=len(self._meant), note="")
        return self._bar

    def _told(self, tally: RedriveProgress) -> None:
        self._tally = tally
        if self._bar is not None:
            note = tally.problem or (f"{len(tally.failed)} failed" if tally.failed else "")
            self._bar.update(self._bar.task_ids[0], completed=tally.answered, note=note)
        if tally.waiting and not tally.unattended and tally.quiet_s >= QUIET_S and not self._warned:
            self._warned = True
            say(
                f"warning: no answer for {QUIET_S:.0f} s, though the owners are there. They may be busy; or they do "
                "not use this target: see dead_letter= of their processors. Ctrl-C leaves what was asked for to them."
            )

    def _say_what_became(self) -> None:
        tally = self._tally
        for name in tally.failed[:SHOWN]:
            say(f"{name} failed again: {self._errors.get(name, '-')}")
        if len(tally.failed) > SHOWN:
            say(f"... and {len(tally.failed) - SHOWN} more: evenflow dead-letters list shows all")
        for partition, why in tally.unattended.items():
            say(f"partition {partition}: {why}")
        parts = [f"{len(tally.redriven)} redriven", f"{len(tally.failed)} failed"]
        parts += [f"{len(tally.dropped)} dropped meanwhile"] if tally.dropped else []
        parts += [f"{len(tally.waiting)} asked for"] if tally.waiting else []
        say(", ".join(parts))
        if tally.unattended:
            say("asked for; they will be handled when an instance runs")
        elif self.interrupted:
            say(
                "interrupted: what was asked for goes on; run it again to ask for the rest and to see what became of it"
            )

    def _facts(self) -> dict[str, Any]:
        tally = self._tally
        return {
            **(group_facts(self._group) if self._group is not None else {}),
            "asked": self._asking.asked if self._asking is not None else 0,
            "redriven": list(tally.redriven),
            "failed": [{"dead_letter": name, "error": self._errors.get(name)} for name in tally.failed],
            "dropped": list(tally.dropped),
            "waiting": list(tally.waiting),
            "unattended": dict(tally.unattended),
            "interrupted": self.interrupted,
        }
