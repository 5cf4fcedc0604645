"""The residents' page: an ASGI application that reads only blobs, so it works while no consumer runs.

uvicorn --factory examples.home_security.residents:from_environment      (HOME_SECURITY_BLOBS names the blobs)

A page asks for its home again every second. It gets the same answer as 304 and no body; and every answer says up to
when it is complete, so that a page can say when nothing new comes. What is not there yet is no error but an answer as
well: `waiting`, a sentence, after which a page asks on. A home that will never be is a 404, after which it need not.
"""

from __future__ import annotations

import os
import zlib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from evenflow.errors import EvenflowError, Transient
from examples.home_security.addresses import address_of, search
from examples.home_security.blobs import open_blobs
from examples.home_security.reading import HomeView, find_about, read_home

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from examples.home_security.blobs import Blobs
    from examples.home_security.layout import About

PAGE = Path(__file__).parent / "page"
FOUND_MOST = 8
TEXT_MOST = 100
NOTHING_YET = "Nothing has been written here yet: this page fills itself once the first consumer has started."
NOT_REPORTED = "This home has not reported yet. Every home does so once a minute."
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Address(Struct, frozen=True):
    home: int
    address: str


class Residents:
    """The residents' page. The caller closes the blobs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._about: About | None = None

    async def index(self, request: Request) -> Response:
        return Response((PAGE / "index.html").read_bytes(), headers=HEADERS, media_type="text/html")

    async def nowhere(self, request: Request) -> Response:
        """The page says so, and has a way on."""
        return Response((PAGE / "index.html").read_bytes(), 404, headers=HEADERS, media_type="text/html")

    async def nothing(self, request: Request) -> Response:
        return failure(404, "There is no such thing here.")

    async def about(self, request: Request) -> Response:
        about = await self._known()
        if about is None:
            return waiting(NOTHING_YET)
        return answer({"homes": about.homes, "partitions": about.partitions})

    async def search(self, request: Request) -> Response:
        about, text = await self._known(), request.query_params.get("text", "")[:TEXT_MOST]
        if about is None:
            return waiting(NOTHING_YET)
        found = search(text, about.homes, FOUND_MOST)
        return answer({"homes": [Address(home, address_of(home)) for home in found]})

    async def home(self, request: Request) -> Response:
        about, home = await self._known(), request.path_params["home"]
        if about is None:
            return waiting(NOTHING_YET)
        if home >= about.homes:
            return failure(404, f"There is no home {home}: they are numbered from 0 to {about.homes - 1}.")
        view = await read_home(self._blobs, about, home)
        if view is None:
            return waiting(NOT_REPORTED)
        body = msgspec.json.encode(_shown(view))
        tag = f'"{zlib.crc32(body):08x}-{len(body):x}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**HEADERS, "etag": tag})
        return Response(body, headers={**HEADERS, "etag": tag}, media_type="application/json")

    async def _known(self) -> About | None:
        if self._about is None:
            self._about = await find_about(self._blobs)
        return self._about


def residents(blobs: Blobs) -> Starlette:
    page = Residents(blobs)
    return Starlette(
        routes=[
            Route("/", page.index),
            Route("/homes/{home:int}", page.index),
            Route("/api/about", _guarded(page.about)),
            Route("/api/search", _guarded(page.search)),
            Route("/api/homes/{home:int}", _guarded(page.home)),
            Route("/api/{rest:path}", page.nothing),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/{rest:path}", page.nowhere),
        ]
    )


def from_environment() -> Starlette:
    blobs = open_blobs(os.environ["HOME_SECURITY_BLOBS"])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        blobs.close()

    app = residents(blobs)
    app.router.lifespan_context = lifespan
    return app


def _shown(view: HomeView) -> dict[str, Any]:
    """The page needs no partition, but the address. Spans and alerts go as the arrays that they are."""
    facts: dict[str, Any] = msgspec.to_builtins(view)
    return {**facts, "address": address_of(view.home)}


def _guarded(call: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """An error is a sentence for the reader: what was on the page stays, and the next look may succeed."""

    async def guarded(request: Request) -> Response:
        try:
            return await call(request)
        except EvenflowError as error:
            return failure(503 if isinstance(error, Transient) else 500, str(error))

    return guarded


def waiting(sentence: str) -> Response:
    return answer({"waiting": sentence})


def failure(status: int, sentence: str) -> Response:
    return answer({"error": sentence}, status)


def answer(facts: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(facts), status, headers=HEADERS, media_type="application/json")
