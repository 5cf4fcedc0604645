"""The console as an ASGI application: the page, its data, its stream, its actions. Mountable in any other one.

    console = Console(Subject(store=store, source=source), clock)
    app = Starlette(routes=[Mount("/console", console)])

It begins to look with the first request, or with the lifespan where it is the whole application. Whoever mounts it ends
it with `aclose`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from evenflow.console.access import AccessGuard, ConsoleAccess, refused
from evenflow.console.actions import ActionRequest, operator_of
from evenflow.console.dead_letters import dead_letter_facts, dead_letters_facts
from evenflow.console.registry import GroupRegistry
from evenflow.console.sections import explanation, page_of_rows, planned
from evenflow.console.stream import changes
from evenflow.console.watch import EVERY_S, UNSEEN_EVERY_S, hints_of
from evenflow.errors import EvenflowError, Misconfigured, Transient
from evenflow.operate.inspect.metrics import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from evenflow.console.custom_actions import CustomAction, CustomFigures
    from evenflow.console.registry import OpenGroup
    from evenflow.console.sections import PageContext
    from evenflow.console.watch import Subject
    from evenflow.model import Group
    from evenflow.operate.inspect.watcher import GroupSnapshot
    from evenflow.ports import Clock

PAGE = Path(__file__).parent / "page"
ACTIONS = ("pause", "resume", "retire", "seek", "redrive")
BODY_MOST = 64 * 1024
MEMBERS_MOST = 10_000


class Console:
    def __init__(
        self,
        subject: Subject,
        clock: Clock,
        *,
        access: ConsoleAccess | None = None,
        offers: Sequence[CustomAction] = (),
        figures: CustomFigures | None = None,
        every_s: float = EVERY_S,
        unseen_every_s: float = UNSEEN_EVERY_S,
    ) -> None:
        """Without `access` it can be read by whoever reaches it, and changes nothing. It looks every `every_s` while a
        page is open, once for whoever asks for metrics, and else every `unseen_every_s`."""
        self._access = access or ConsoleAccess()
        if self._access.allow_actions and not self._access.token:
            raise Misconfigured("Actions ask for a token: give the console one.")
        if self._access.reading_needs_token and not self._access.token:
            raise Misconfigured("Nobody could read this console: give it a token.")
        self._subject, self._offers, self._figures = subject, {offer.name: offer for offer in offers}, figures
        self._hall = GroupRegistry(subject, clock, every_s=every_s, unseen_every_s=unseen_every_s, beside=self._beside)
        self._is_started = False
        self._app = AccessGuard(Starlette(routes=self._routes(), lifespan=self._lifespan), self._access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.start()
        await self._app(scope, receive, send)

    def start(self) -> None:
        """Begin to look, so that the past is known when somebody comes."""
        if not self._is_started:
            self._is_started = True
            self._hall.start()

    def end_streams(self) -> None:
        """Let go of every page: a server that ends waits for them."""
        self._hall.end_streams()

    async def aclose(self) -> None:
        await self._hall.aclose()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.start()
        try:
            yield
        finally:
            await self.aclose()

    def _routes(self) -> list[Route | Mount]:
        return [
            Route("/api/about", self._about),
            Route("/api/stream", self._stream),
            Route("/api/history", self._history),
            Route("/api/partition", self._partition),
            Route("/api/rows", self._rows),
            Route("/api/plan", self._plan),
            Route("/api/dead_letters", self._dead_letters),
            Route("/api/dead_letter", self._dead_letter),
            Route("/api/preview", self._preview, methods=["POST"]),
            Route("/api/act/{action}", self._act, methods=["POST"]),
            Route("/api/{rest:path}", self._nothing),
            Route("/metrics", self._metrics),
            Mount("/", StaticFiles(directory=PAGE, html=True)),
        ]

    def _beside(self, group: Group) -> dict[str, Any]:
        """What a picture holds that is not from looks."""
        offers = [
            {name: getattr(offer, name) for name in ("name", "label", "about", "hint", "danger", "sure")}
            | {"subjects": offer.subjects(group) if offer.subjects is not None else None}
            for offer in self._offers.values()
            if self._access.allow_actions and offer.is_for(group)
        ]
        figures = self._figures(group) if self._figures is not None else ()
        return {
            "offers": offers,
            "figures": [msgspec.structs.asdict(figure) for figure in figures],
            "allowed": {"actions": self._access.allow_actions, "flags": hints_of(self._subject, group).flags},
        }

    # --- looking
    async def _about(self, request: Request) -> Response:
        """What the page must know first."""
        return _answer(
            {
                "version": version("evenflow"),
                "allow_actions": self._access.allow_actions,
                "knows_you": self._access.knows(request.headers),
                "group": self._subject.group,
            }
        )

    async def _stream(self, request: Request) -> Response:
        key = request.query_params.get("group")
        try:
            room = await self._hall.room(key) if key else None
        except EvenflowError as error:
            return _failure(error)
        return StreamingResponse(self._told(room), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _told(self, room: OpenGroup | None) -> AsyncIterator[bytes]:
        of = room.watch if room is not None else self._hall
        of.viewers += 1
        of.hurry()
        try:
            async for part in changes(of, lambda: self._hall.ended):
                yield part
        finally:
            of.viewers -= 1

    async def _history(self, request: Request) -> Response:
        return await self._looked(request, lambda room, look, known: room.watch.series())

    async def _partition(self, request: Request) -> Response:
        name = request.query_params.get("partition", "")
        return await self._looked(request, lambda room, look, known: explanation(look, known, name))

    async def _rows(self, request: Request) -> Response:
        asked = request.query_params
        start = _number(asked.get("start"), 0)
        wanted = {name: asked.get(name, "") for name in ("text", "status", "owner")}
        return await self._looked(
            request, lambda room, look, known: page_of_rows(look, known.tags, start=start, **wanted)
        )

    async def _plan(self, request: Request) -> Response:
        members = min(MEMBERS_MOST, _number(request.query_params.get("members"), 1))
        return await self._looked(request, lambda room, look, known: planned(look, members))

    async def _dead_letters(self, request: Request) -> Response:
        start, every = _number(request.query_params.get("start"), 0), request.query_params.get("every") == "1"
        return await self._mail(request, lambda filed: dead_letters_facts(filed, start, every=every))

    async def _dead_letter(self, request: Request) -> Response:
        return await self._mail(
            request, lambda filed: dead_letter_facts(filed, request.query_params.get("dead_letter", ""))
        )

    async def _metrics(self, request: Request) -> Response:
        try:
            return Response(exposition(await self._hall.looks()), media_type=CONTENT_TYPE)
        except EvenflowError as error:
            return _failure(error)

    async def _nothing(self, request: Request) -> Response:
        return refused(404, "There is no such thing in this console.")

    async def _looked(self, request: Request, make: Any) -> Response:
        """Something made from the last look."""
        try:
            room = await self._hall.room(request.query_params.get("group", ""))
            look, known = await _seen(room)
            return _answer(make(room, look, known))
        except EvenflowError as error:
            return _failure(error)

    async def _mail(self, request: Request, make: Any) -> Response:
        try:
            room = await self._hall.room(request.query_params.get("group", ""))
            return _answer(make(await room.dead_letters()))
        except EvenflowError as error:
            return _failure(error)

    # --- acting: the guard has asked for the token
    async def _preview(self, request: Request) -> Response:
        try:
            room, wanted = await self._asked(request)
            return _answer({"partitions": await room.actor.preview(wanted)})
        except EvenflowError as error:
            return _failure(error)

    async def _act(self, request: Request) -> Response:
        action = request.path_params["action"]
        try:
            room, wanted = await self._asked(request)
            who = operator_of(wanted, request.client.host if request.client is not None else "?")
            if action in ACTIONS:
                do = getattr(room.actor, action)
                work = await room.works.begin(action, who, lambda tell: do(wanted, who, tell))
            elif (offer := self._offers.get(action)) is not None and offer.is_for(room.watch.group):
                work = await room.works.begin(offer.label, who, lambda tell: room.actor.take(offer, wanted, who, tell))
            else:
                return refused(404, "There is no such action.")
            return _answer(work.facts(), 202 if work.state == "running" else 200)
        except EvenflowError as error:
            return _failure(error)

    async def _asked(self, request: Request) -> tuple[OpenGroup, ActionRequest]:
        room = await self._hall.room(request.query_params.get("group", ""))
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_MOST:
                raise Misconfigured("That is too much for an action.")
        try:
            return room, msgspec.json.decode(body or b"{}", type=ActionRequest)
        except msgspec.MsgspecError as error:
            raise Misconfigured(f"This is no action that the console knows: {error}") from error


async def _seen(room: OpenGroup) -> tuple[GroupSnapshot, PageContext]:
    """The last look, or a fresh one."""
    await room.watch.freshen()
    if room.watch.look is None or room.watch.known is None:
        why = room.watch.stale["why"] if room.watch.stale is not None else "nothing is known of this group yet"
        raise Transient(str(why))
    return room.watch.look, room.watch.known


def _number(text: str | None, least: int) -> int:
    return max(least, int(text)) if text is not None and text.isdecimal() and len(text) < 10 else least


def _answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _failure(error: EvenflowError) -> Response:
    return refused(503 if isinstance(error, Transient) else 400, str(error))
