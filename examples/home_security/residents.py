"""The residents' page: an ASGI application that reads only blobs, so it works while no consumer runs.

uvicorn --factory examples.home_security.residents:from_environment      (HOME_SECURITY_BLOBS names the blobs)
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from examples.home_security.blobs import open_blobs
from examples.home_security.reading import read_about, read_home

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from examples.home_security.blobs import Blobs


def residents(blobs: Blobs) -> Starlette:
    """Whoever opened the blobs closes them."""

    async def home_json(request: Request) -> Response:
        about = await read_about(blobs)
        view = await read_home(blobs, about, request.path_params["home"])
        if view is None:
            return PlainTextResponse("This home has not reported yet.", 404)
        return Response(msgspec.json.encode(view), media_type="application/json")

    async def index(request: Request) -> Response:
        about = await read_about(blobs)
        return HTMLResponse(f"<h1>{about.homes:,} homes</h1><p>Open <a href='homes/42'>home 42</a>.")

    return Starlette(routes=[Route("/", index), Route("/homes/{home:int}", home_json)])


def from_environment() -> Starlette:
    blobs = open_blobs(os.environ["HOME_SECURITY_BLOBS"])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        blobs.close()

    app = residents(blobs)
    app.router.lifespan_context = lifespan
    return app
