"""The console as an ASGI application: the page, its data, its stream, its actions. Other applications can mount it.

    console = Console(Subject(store=store, source=source), clock)
    app = Starlette(routes=[Mount("/console", console)])

It starts to watch with the first request, or with the lifespan when it is the whole application. When mounted, the
embedding program ends it with `aclose`.
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
        actions: Sequence[CustomAction] = (),
        figures: CustomFigures | None = None,
        every_s: float = EVERY_S,
        unseen_every_s: float = UNSEEN_EVERY_S,
    ) -> None:
        """Without `access` every client may read, and actions are refused. It refreshes every `every_s` while a page is
        open, once for each request for metrics, and else every `unseen_every_s`."""
        self._access = access or ConsoleAccess()
        if self._access.allow_actions and not self._access.token:
            raise Misconfigured("Actions need a token. Give the console one.")
        if self._access.reading_needs_token and not self._access.token:
            raise Misconfigured("Reading needs a token, but the console has none. Give it one.")
        self._subject, self._figures = subject, figures
        self._custom = {action.name: action for action in actions}
        self._registry = GroupRegistry(
            subject, clock, every_s=every_s, unseen_every_s=unseen_every_s, extra=self._extra
        )
        self._is_started = False
        self._app = AccessGuard(Starlette(routes=self._routes(), lifespan=self._lifespan), self._access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.start()
        await self._app(scope, receive, send)

    def start(self) -> None:
        """Start to watch, so that pages open with history."""
        if not self._is_started:
            self._is_started = True
            self._registry.start()

    def end_streams(self) -> None:
        """End the streams of all pages: a server that ends waits for them."""
        self._registry.end_streams()

    async def aclose(self) -> None:
        await self._registry.aclose()

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

    def _extra(self, group: Group) -> dict[str, Any]:
        """The sections that do not come from snapshots."""
        actions = [
            {name: getattr(action, name) for name in ("name", "label", "about", "hint", "danger", "confirm")}
            | {"subjects": action.subjects(group) if action.subjects is not None else None}
            for action in self._custom.values()
            if self._access.allow_actions and action.applies_to(group)
        ]
        figures = self._figures(group) if self._figures is not None else ()
        return {
            "custom_actions": actions,
            "figures": [msgspec.structs.asdict(figure) for figure in figures],
            "allowed": {"actions": self._access.allow_actions, "flags": hints_of(self._subject, group).flags},
        }

    # --- reading
    async def _about(self, request: Request) -> Response:
        """What the page asks first."""
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
            opened = await self._registry.open(key) if key else None
        except EvenflowError as error:
            return _failure(error)
        return StreamingResponse(
            self._changes(opened), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _changes(self, opened: OpenGroup | None) -> AsyncIterator[bytes]:
        source = opened.watch if opened is not None else self._registry
        source.viewers += 1
        source.hurry()
        try:
            async for part in changes(source, lambda: self._registry.ended):
                yield part
        finally:
            source.viewers -= 1

    async def _history(self, request: Request) -> Response:
        return await self._looked(request, lambda opened, snapshot, known: opened.watch.series())

    async def _partition(self, request: Request) -> Response:
        name = request.query_params.get("partition", "")
        return await self._looked(request, lambda opened, snapshot, known: explanation(snapshot, known, name))

    async def _rows(self, request: Request) -> Response:
        asked = request.query_params
        start = _number(asked.get("start"), 0)
        wanted = {name: asked.get(name, "") for name in ("text", "status", "owner")}
        return await self._looked(
            request, lambda opened, snapshot, known: page_of_rows(snapshot, known.tags, start=start, **wanted)
        )

    async def _plan(self, request: Request) -> Response:
        members = min(MEMBERS_MOST, _number(request.query_params.get("members"), 1))
        return await self._looked(request, lambda opened, snapshot, known: planned(snapshot, members))

    async def _dead_letters(self, request: Request) -> Response:
        start, every = _number(request.query_params.get("start"), 0), request.query_params.get("every") == "1"
        return await self._filed(request, lambda filed: dead_letters_facts(filed, start, every=every))

    async def _dead_letter(self, request: Request) -> Response:
        return await self._filed(
            request, lambda filed: dead_letter_facts(filed, request.query_params.get("dead_letter", ""))
        )

    async def _metrics(self, request: Request) -> Response:
        try:
            return Response(exposition(await self._registry.snapshots()), media_type=CONTENT_TYPE)
        except EvenflowError as error:
            return _failure(error)

    async def _nothing(self, request: Request) -> Response:
        return refused(404, "The console has no such path.")

    async def _looked(self, request: Request, make: Any) -> Response:
        """An answer made from the last snapshot."""
        try:
            opened = await self._registry.open(request.query_params.get("group", ""))
            snapshot, known = await _current(opened)
            return _answer(make(opened, snapshot, known))
        except EvenflowError as error:
            return _failure(error)

    async def _filed(self, request: Request, make: Any) -> Response:
        try:
            opened = await self._registry.open(request.query_params.get("group", ""))
            return _answer(make(await opened.dead_letters()))
        except EvenflowError as error:
            return _failure(error)

    # --- acting: the guard has checked the token
    async def _preview(self, request: Request) -> Response:
        try:
            opened, wanted = await self._asked(request)
            return _answer({"partitions": await opened.runner.preview(wanted)})
        except EvenflowError as error:
            return _failure(error)

    async def _act(self, request: Request) -> Response:
        action = request.path_params["action"]
        try:
            opened, wanted = await self._asked(request)
            who = operator_of(wanted, request.client.host if request.client is not None else "?")
            if action in ACTIONS:
                do = getattr(opened.runner, action)
                job = await opened.jobs.begin(action, who, lambda report: do(wanted, who, report))
            elif (custom := self._custom.get(action)) is not None and custom.applies_to(opened.watch.group):
                job = await opened.jobs.begin(
                    custom.label, who, lambda report: opened.runner.run_custom(custom, wanted, who, report)
                )
            else:
                return refused(404, "The console has no such action.")
            return _answer(job.facts(), 202 if job.state == "running" else 200)
        except EvenflowError as error:
            return _failure(error)

    async def _asked(self, request: Request) -> tuple[OpenGroup, ActionRequest]:
        opened = await self._registry.open(request.query_params.get("group", ""))
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_MOST:
                raise Misconfigured("The request is too large for an action.")
        try:
            return opened, msgspec.json.decode(body or b"{}", type=ActionRequest)
        except msgspec.MsgspecError as error:
            raise Misconfigured(f"The request is not a valid action: {error}") from error


async def _current(opened: OpenGroup) -> tuple[GroupSnapshot, PageContext]:
    """The last snapshot, or a fresh one."""
    await opened.watch.freshen()
    if opened.watch.snapshot is None or opened.watch.known is None:
        why = (
            opened.watch.stale["why"]
            if opened.watch.stale is not None
            else "This group has not been read yet. Try again."
        )
        raise Transient(str(why))
    return opened.watch.snapshot, opened.watch.known


def _number(text: str | None, least: int) -> int:
    return max(least, int(text)) if text is not None and text.isdecimal() and len(text) < 10 else least


def _answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _failure(error: EvenflowError) -> Response:
    return refused(503 if isinstance(error, Transient) else 400, str(error))
