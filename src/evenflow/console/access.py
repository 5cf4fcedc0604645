"""Who may come in: the token, the names that this server goes by, and what browsers are told to forbid.

A token is asked for in a header that no other site can make a browser send, and is compared in constant time. On
loopback the names are checked, because a page from elsewhere may have its own name point here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))
SCHEME = "Bearer "
READING = ("GET", "HEAD")
DATA = ("/api/", "/metrics")
"""Paths of what is not the page itself, which holds none."""
SHELL_CACHE, DATA_CACHE = "no-cache", "no-store"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class ConsoleAccess(Struct, frozen=True, kw_only=True):
    """What is asked of whoever comes."""

    token: str | None = None
    reading_needs_token: bool = False
    allow_actions: bool = False
    hosts: frozenset[str] | None = None
    """The names that a request may ask for; None: whoever serves this looks after that."""

    def __repr__(self) -> str:
        token = "..." if self.token is not None else None
        return f"ConsoleAccess(token={token}, allow_actions={self.allow_actions})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("allow_actions", self.allow_actions)]

    def knows(self, headers: Headers) -> bool:
        """Whether the token was given."""
        given = headers.get("authorization", "")
        if self.token is None or not given.startswith(SCHEME):
            return False
        return hmac.compare_digest(given.removeprefix(SCHEME).encode(), self.token.encode())

    def is_meant(self, headers: Headers) -> bool:
        """Whether the request asks for one of our names."""
        return self.hosts is None or _name(headers.get("host", "")) in self.hosts


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return f"{host.partition(']')[0]}]".lower()
    return host.partition(":")[0].lower()


def is_from_elsewhere(headers: Headers) -> bool:
    """A browser says that another site's page has sent this."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


class AccessGuard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, access: ConsoleAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_data = scope["path"].removeprefix(scope.get("root_path", "")).startswith(DATA)

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    told[name] = value
                told["cache-control"] = DATA_CACHE if is_data else SHELL_CACHE
            await send(message)

        refusal = self._refusal(scope["method"], headers, is_data=is_data)
        answer = self._app if refusal is None else refusal
        await answer(scope, receive, dressed)

    def _refusal(self, method: str, headers: Headers, *, is_data: bool) -> JSONResponse | None:
        """The page itself holds no data: it may be had without a token, and then asks for it."""
        access = self._access
        if not access.is_meant(headers):
            return refused(421, "This console does not go by that name: open it by the address that was printed.")
        if not is_data:
            return None
        if method not in READING:
            return self._acting(headers)
        if access.reading_needs_token and not access.knows(headers):
            return refused(401, "This console asks for its token.")
        return None

    def _acting(self, headers: Headers) -> JSONResponse | None:
        if not self._access.allow_actions:
            return refused(403, "This console only looks: start it with --allow-actions to change something.")
        if is_from_elsewhere(headers):
            return refused(403, "Another site's page has sent this.")
        if not self._access.knows(headers):
            return refused(401, "Actions ask for the token.")
        if not headers.get("content-type", "").startswith("application/json"):
            return refused(415, "Actions are sent as JSON.")
        return None


def refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status, {"www-authenticate": "Bearer"} if status == 401 else None)
