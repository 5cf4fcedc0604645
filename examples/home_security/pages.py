"""Both pages on one port: the residents' page at the root, and the operator console with the buttons of this demo."""

from __future__ import annotations

from contextlib import asynccontextmanager
from shlex import quote
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Mount

from evenflow.console import (
    LOOPBACK_NAMES,
    ActionCall,
    ActionResult,
    Console,
    ConsoleAccess,
    CustomAction,
    CustomFigure,
    Subject,
)
from evenflow.errors import Misconfigured
from evenflow.operate.inspect.hints import Hints
from evenflow.urls import open_dead_letters
from examples.home_security.residents import residents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from evenflow.model import Group
    from evenflow.ports import Clock
    from examples.home_security.fleet import ConsumerProcess
    from examples.home_security.places import Place
    from examples.home_security.session import Session

CONSOLE = "/console"


class Pages:
    """An ASGI application. Actions require the token."""

    def __init__(self, session: Session, clock: Clock, token: str) -> None:
        self._session = session
        self._dead_letters = open_dead_letters(f"jsonl:{session.place.dead_letters}")
        self._console = Console(
            Subject(
                store=session.store,
                source=session.source,
                dead_letters=lambda: self._dead_letters,
                hints=_hints(session.place),
            ),
            clock,
            access=ConsoleAccess(token=token, allow_actions=True, hosts=LOOPBACK_NAMES),
            actions=self._offers(),
            figures=self._figures,
            unseen_every_s=2.0,  # its store is a file, so reads are free, and a page shows the past at once
        )
        routes = [Mount(CONSOLE, self._console), Mount("/", residents(session.blobs))]
        self._app = Starlette(routes=routes, lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def end_streams(self) -> None:
        self._console.end_streams()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._console.start()
        try:
            yield
        finally:
            await self._console.aclose()
            await self._dead_letters.aclose()

    def _offers(self) -> list[CustomAction]:
        return [
            CustomAction(
                name="add",
                label="Add an instance",
                run=self._add,
                hint="Starts one more consumer process of this group.",
                confirm=False,
            ),
            CustomAction(
                name="detectors",
                label="Add carbon-monoxide detectors",
                run=self._add_detectors,
                hint="Every home gets one, live: a quarter more events.",
                confirm=False,
            ),
            CustomAction(
                name="break-in",
                label="Break into a home",
                run=self._break_in,
                hint="At a home with an armed alarm: its door opens, and its motion sensor reports.",
                confirm=False,
            ),
            CustomAction(
                name="kill",
                label="Kill -9",
                about="instance",
                run=self._to_consumer(self._session.kill),
                hint="As if its machine had crashed: no handover, no final checkpoint.",
                danger=True,
                subjects=self._running,
            ),
            CustomAction(
                name="stall",
                label="Stall",
                about="instance",
                run=self._to_consumer(self._session.stall),
                hint="SIGSTOP: the process exists but does nothing. It continues after a while.",
                danger=True,
                subjects=self._running,
            ),
        ]

    def _running(self, group: Group) -> list[str]:
        fleet = self._session.fleets.get(group.name)
        return [consumer.name for consumer in fleet.running] if fleet is not None else []

    async def _add(self, asked: ActionCall) -> str:
        consumer = await self._session.fleets[asked.group.name].add()
        return f"{consumer.name} was started. It gets its share within a few heartbeats."

    async def _add_detectors(self, asked: ActionCall) -> str:
        return self._session.add_detectors()

    async def _break_in(self, asked: ActionCall) -> ActionResult:
        home = await self._session.break_in()
        return ActionResult(text=f"Break-in at home {home}.", link=f"/homes/{home}")

    def _to_consumer(self, act: Callable[[str, ConsumerProcess], str]) -> Callable[[ActionCall], Awaitable[str]]:
        async def run(asked: ActionCall) -> str:
            consumer = self._session.consumer(asked.group.name, asked.subject)
            if consumer is None:
                raise Misconfigured(f"{asked.subject} is no longer running.")
            return act(asked.group.name, consumer)

        return run

    def _figures(self, group: Group) -> list[CustomFigure]:
        counts = self._session.counts.get(group.name)
        account = self._session.account
        if counts is None or account is None:
            return []
        tally, lost_blobs = counts.tally, self._session.lost_blobs
        damage = (
            [CustomFigure(label="damaged blobs", value=len(lost_blobs), note=lost_blobs[0], mood="bad")]
            if lost_blobs
            else []
        )
        return [
            *damage,
            CustomFigure(label="events sent", value=account.sent, note=f"{self._session.sent_per_s:,.0f} a second"),
            CustomFigure(label="events lost", value=tally.lost, mood="bad" if tally.lost else "good"),
            CustomFigure(
                label="handled twice",
                value=tally.twice,
                note="on planned moves",
                mood="bad" if tally.twice else "good",
            ),
            CustomFigure(label="handled again", value=tally.again, note="after a crash or a stall; still counted once"),
            *(
                [CustomFigure(label="duplicates (seek)", value=tally.sought, note="requested by an operator")]
                if tally.sought
                else []
            ),
            *([CustomFigure(label="skipped", value=tally.passed_over, note="by a seek")] if tally.passed_over else []),
        ]


def _hints(place: Place) -> Hints:
    """Flags for the commands that the console suggests; they work in any terminal while the demo runs."""
    where = {"store": f"sqlite:{place.leases}", "source": f"hub:{place.hub}"}
    return Hints(
        flags=" ".join(f"--{name} {quote(url)}" for name, url in where.items()),
        hub=str(place.hub),
        dead_letters=f"--dead-letters {quote(f'jsonl:{place.dead_letters}')}",
    )
