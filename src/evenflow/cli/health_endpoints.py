"""`evenflow run --health`: the liveness and readiness endpoints for an orchestrator, `/live` and `/ready` over HTTP.

Neither fails because the store or the source is unreachable: a restart would not fix that, and would lose what is in
memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable

    Answers = dict[str, Callable[[], str | None]]
    """For each path, a function that returns the problem, or None if there is none."""

REQUEST_S = 5.0
LINE_BYTES = 2048
PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def place_of(text: str) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`; loopback without a host."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise Misconfigured(f"--health {text} is not [HOST:]PORT; write for instance 8080 or 0.0.0.0:8080.")
    return host.strip("[]") or "127.0.0.1", int(port)


async def serve(host: str, port: int, answers: Answers) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                writer.write(_response(line, answers))
                await writer.drain()
        except (TimeoutError, ValueError, OSError):
            pass  # a malformed or unfinished request gets no answer
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, host, port, limit=LINE_BYTES)
    except OSError as error:
        raise Misconfigured(f"--health: cannot listen on {host}:{port}: {error.strerror or error}.") from error


def _response(line: bytes, answers: Answers) -> bytes:
    method, _, rest = line.decode("latin-1").partition(" ")
    check = answers.get(rest.split(" ")[0].partition("?")[0])
    status, body = 200, "ok"
    if check is None:
        status, body = 404, f"use {' or '.join(answers)}"
    elif method not in ("GET", "HEAD"):
        status, body = 405, "use GET"
    elif (problem := check()) is not None:
        status, body = 503, problem
    content = f"{body}\n".encode()
    head = (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else content)
